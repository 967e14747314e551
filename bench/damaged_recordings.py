"""Damaged recordings through every command that reads one: a sentence, never a traceback, and nothing without end.

Bytes are changed, pages swapped or overwritten, the end cut off, columns given values that their table would refuse.
Each file goes through each command in a process of its own, forked from one that has imported them; a run is broken
where a command prints a traceback, is ended by a signal, exits with another code than its own, or takes more than 500
MiB or 10 s of CPU time.

Run: python -m bench.damaged_recordings [--files N] [--seed S] [--recording FILE] [--json]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.agent import BenchError
from ingero.cli import compare, copy, explain, export, main, query
from ingero.cli.merge.command import command as merge
from ingero.serve.dashboard.app import create_app
from ingero.serve.dashboard.security import Sessions
from ingero.serve.recording_source import RecordingSource
from tests.unit.dashboard_client import client_of

_IMPORTED = (compare, copy, explain, export, merge, query)
_EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "recordings"
_PAGE_BYTES = 4096
_MAX_BYTES, _MAX_CPU_S, _LONGEST_S = 500 << 20, 10.0, 120
_EXIT_CODES = (0, 1, 2, 3, 4)  # done, findings, an error that says what to do, and those of `compare`
_DONE = (0, 1)
_TRACEBACK = 99
_DASHBOARD = "dashboard"  # every address of its API that takes no value, asked once each
_ANSWERS = (200, 400, 404, 422, 503)

# {db}: the damaged file; {out}: where something may be written; {whole}: the recording before it was damaged
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("explain", "--db", "{db}"),
    ("explain", "--per-process", "--stacks", "--db", "{db}"),
    ("explain", "--json", "--per-process", "--db", "{db}"),
    ("explain", "--chains", "--db", "{db}"),
    ("explain", "--short", "--db", "{db}"),
    ("explain", "--html", "{out}/r.html", "--force", "--db", "{db}"),
    ("query", "--db", "{db}"),
    ("query", "SELECT * FROM op_stats", "--db", "{db}"),
    ("query", "--json", "SELECT * FROM processes", "--db", "{db}"),
    ("query", "--csv", "SELECT * FROM stack_traces", "--db", "{db}"),
    ("export", "--format", "perfetto", "-o", "{out}/r.pf", "--db", "{db}"),
    ("export", "--format", "chrome", "-o", "{out}/r.json", "--db", "{db}"),
    ("export", "--format", "flamegraph", "-o", "{out}/r.txt", "--db", "{db}"),
    ("export", "--format", "pprof", "-o", "{out}/r.pp", "--db", "{db}"),
    ("compare", "{whole}", "{db}"),
    ("copy", "{db}", "{out}/copy.db"),
    ("merge", "{db}", "{whole}", "-o", "{out}/merged.db"),
    (_DASHBOARD, "{db}"),
)
_VALUES = (
    "'x'", "''", "NULL", "-1", "9223372036854775807", "-9223372036854775808", "1e308", "-1e999", "x'ff00fe'", "x''",
    "cast(x'fffe41' AS text)", "printf('%.300000c','A')", "0", "char(0)", "'[[[[[[[[[['", "'{\"a\":1}'", "4294967296",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of one command on one file. problem: "" where it behaved as it should."""

    seconds: float
    code: int
    problem: str


def damage(whole: Path, path: Path, rng: random.Random) -> str:
    """Writes a damaged copy; returns how it was damaged."""
    kind = rng.choice((_bytes, _pages, _end, _values))
    shutil.copyfile(whole, path)
    return kind(path, rng)


def _bytes(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    count, within = rng.choice((1, 3, 10, 40, 200)), rng.choice((100, _PAGE_BYTES, len(data)))
    for _ in range(count):
        data[rng.randrange(16, within)] = rng.randrange(256)
    path.write_bytes(data)
    return f"{count} bytes of the first {within}"


def _pages(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    pages = len(data) // _PAGE_BYTES
    for _ in range(count := rng.choice((1, 2, 5))):
        to, source = rng.randrange(1, pages) * _PAGE_BYTES, rng.randrange(pages) * _PAGE_BYTES
        page = data[source : source + _PAGE_BYTES] if rng.random() < 0.6 else rng.randbytes(_PAGE_BYTES)
        data[to : to + _PAGE_BYTES] = page
    path.write_bytes(data)
    return f"{count} pages"


def _end(path: Path, rng: random.Random) -> str:
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut at {size}"


def _values(path: Path, rng: random.Random) -> str:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema=1")
        db.execute(
            "UPDATE sqlite_schema SET sql = replace(replace(sql, ') STRICT', ')'), ' NOT NULL', '') "
            "WHERE type = 'table' AND sql LIKE '%STRICT%'"
        )
        db.commit()
    said = []
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'raw_*'")]
        tables = [name for name in tables if _has_rows(db, name)]
        for _ in range(rng.choice((1, 1, 2, 5))):
            table = rng.choice(tables)
            column = rng.choice([row[1] for row in db.execute(f"PRAGMA table_info({table})")])
            value, where = rng.choice(_VALUES), rng.choice(("", " WHERE rowid % 3 = 1"))
            try:
                db.execute(f"UPDATE {table} SET {column} = {value}{where}")
                said.append(f"{table}.{column} = {value}")
            except sqlite3.Error:  # an index or a key refuses it
                continue
        db.commit()
    return "; ".join(said) or "nothing"


def _has_rows(db: sqlite3.Connection, name: str) -> bool:
    try:
        return db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None
    except sqlite3.Error:  # it is an index
        return False


def run(arguments: Sequence[str], said: Path) -> Run:
    """One command in a process of its own. said: a file for what it writes to standard error."""
    began_s = time.monotonic()
    pid = os.fork()
    if not pid:
        _be_command(arguments, said)
    _, status, used = os.wait4(pid, 0)
    seconds = time.monotonic() - began_s
    code = os.waitstatus_to_exitcode(status)
    return Run(seconds=seconds, code=code, problem=_problem(status, used, said.read_text(errors="replace")))


def _be_command(arguments: Sequence[str], said: Path) -> None:
    code: object = _TRACEBACK
    try:
        nothing, errors = os.open(os.devnull, os.O_RDWR), os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor, to in ((nothing, 0), (nothing, 1), (errors, 2)):
            os.dup2(descriptor, to)
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST_S, _LONGEST_S))
        sys.stdin, sys.argv = io.StringIO(""), ["ingero", *arguments]
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115  # it ends
        try:
            _ask_dashboard(Path(arguments[1])) if arguments[0] == _DASHBOARD else main.main()
            code = 0
        except SystemExit as error:
            code = error.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # that is what is looked for
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _ask_dashboard(path: Path) -> None:
    app = create_app(RecordingSource(path, may_lag=True), Sessions("", is_secure=True))
    client = client_of(path)
    for address, methods in app.openapi()["paths"].items():
        if "get" in methods and "{" not in address and "events" not in address:  # events have no end
            status = client.get(address).status_code
            if status not in _ANSWERS:
                raise BenchError(f"{address} was answered with {status}")


def _problem(status: int, used: resource.struct_rusage, said: str) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    if "Traceback" in said:
        return f"traceback: {said.strip().splitlines()[-1][:100]}"
    if (code := os.waitstatus_to_exitcode(status)) not in _EXIT_CODES:
        return f"exit code {code}"
    if (bytes_ := used.ru_maxrss << 10) > _MAX_BYTES:
        return f"{bytes_ >> 20} MiB"
    return f"{cpu_s:.0f} s of CPU time" if (cpu_s := used.ru_utime + used.ru_stime) > _MAX_CPU_S else ""


def _run(command: Sequence[str], path: Path, whole: Path, folder: Path) -> Run:
    for left in (folder / "copy.db", folder / "merged.db"):
        left.unlink(missing_ok=True)
    return run([one.format(db=path, out=folder, whole=whole) for one in command], folder / "said")


def _check(whole: Path, folder: Path) -> None:
    """Checks that every command works on an undamaged recording, as a control."""
    other = folder / "other.db"
    shutil.copyfile(whole, other)
    for command in COMMANDS:
        found = _run(command, other, whole, folder)
        if found.problem or found.code not in _DONE:
            said = (folder / "said").read_text(errors="replace").strip()
            raise BenchError(f"{' '.join(command)} ended with {found.code}: {said[-300:]}")
    other.unlink()


def _example(folder: Path) -> Path:
    """A recording that comes with the product, the smallest: with stacks and an incident."""
    found = sorted(_EXAMPLE.glob("*.db"), key=lambda path: path.stat().st_size)
    shutil.copyfile(found[0], folder / "whole.db")
    return folder / "whole.db"


def main_() -> None:
    """Prints what became of them; exit code 1 where one is broken."""
    assert _IMPORTED
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recording", type=Path, help="default: one of examples/recordings")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng, problems, longest_s, runs = random.Random(options.seed), Counter[str](), 0.0, 0
    with tempfile.TemporaryDirectory(prefix="damaged-") as name:
        folder = Path(name)
        whole = options.recording or _example(folder)
        _check(whole, folder)
        for number in range(options.files):
            path = folder / "damaged.db"
            for one in folder.glob("damaged.db*"):
                one.unlink()
            how = damage(whole, path, rng)
            for command in COMMANDS:
                found = _run(command, path, whole, folder)
                runs, longest_s = runs + 1, max(longest_s, found.seconds)
                if found.problem:
                    problems[found.problem] += 1
                    print(f"[{number}] {' '.join(command)}: {found.problem} <- {how}", file=sys.stderr, flush=True)
    figures = {
        "files": options.files, "commands": len(COMMANDS), "runs": runs, "longest_s": round(longest_s, 2),
        "problems": dict(problems),
    }  # fmt: skip
    if options.json:
        print(json.dumps(figures))
    else:
        print(
            f"{options.files} damaged recordings through {len(COMMANDS)} commands: {runs} runs, the longest "
            f"{longest_s:.1f} s, {sum(problems.values())} broken"
        )
        for problem, count in problems.most_common():
            print(f"{count:5} {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main_()
