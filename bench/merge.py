"""How fast `merge` is, beside SQLite that copies the same rows and makes the same indexes; its memory; and killing it.

Run: python -m bench.merge [--files N] [--rows N] [--kills N] [--short] [--json]; 64 files of 1,000,000 rows need 30 GB
of disk and some ten minutes. Every file is a node with the same pids, processes and numbers of texts. The ratio is of
CPU seconds, so that a machine that does other things says the same. Kills: of merges of small files, at random moments.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from ingero.store.merge import merge
from ingero.store.opening.own_schema import INDEXES_AT_END, index_texts, own_columns, session_indexes
from ingero.store.writing.migrations import migrate
from ingero.store.writing.recording import MAX_INDEXED_EVENTS

_BEGIN_NS = 1_790_000_000_000_000_000
_TEXTS = 500
MAX_MB, MIN_MB_PER_S = 300, 30  # of memory, and of sources: what the merge of 64 files has to keep to
MIN_SIZE_MB = 500  # below it the start of Python is most of the time
_KILLED_FILES, _KILLED_ROWS = 6, 20_000
_RANDOM = "(value * 2654435761 & 4294967295)"

# Calls of a training loop: most on a CPU, every tenth with a wait, a culprit and a waker.
_EVENTS = f"""
INSERT INTO raw_events(session, start_ns, duration_ns, process, pid, tid, source, op, arg0, arg1, stream, caller,
                       caller_library, function, cgroup_id, comm, cpu, run_ns, runq_ns, throttled_ns, yielded_ns,
                       sleep_ns, io_ns, uninterruptible_ns, stopped_ns, residual_ns, involuntary_switches, switches,
                       culprit_pid, culprit_name, culprit_ns, flags, stack_hash)
WITH RECURSIVE numbers(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM numbers WHERE value < ?)
SELECT 1, {_BEGIN_NS} + value * 20000, {_RANDOM} % 900000, 1 + value % 8, 4242 + value % 8, 4242 + value % 64, 4,
       value % 60, {_RANDOM}, 93824992231424 + {_RANDOM}, 93824992235520, 139637976727552 + {_RANDOM} % 4096,
       1 + value % {_TEXTS}, 93824992231424 + value % 256, 5722, 1 + value % 16, value % 16, {_RANDOM} % 900000,
       iif(value % 10, 0, 7000), 0, 0, 0, 0, 0, 0, 0, value % 10 = 0, value % 10 = 0, iif(value % 10, 0, 77),
       iif(value % 10, 0, 3), iif(value % 10, 0, 5000), 16, {_RANDOM}
FROM numbers
"""


def _write_all(folder: Path, files: int, rows: int) -> list[Path]:
    """A recording of each node: the first, and copies of it with another name."""
    paths = [folder / f"{number}.db" for number in range(files)]
    _write(paths[0], 0, rows)
    for number, path in enumerate(paths[1:], 1):
        shutil.copyfile(paths[0], path)
        db = apsw.Connection(str(path))
        identity = f"{number:032x}"
        db.execute(
            "UPDATE raw_sessions SET uuid = ?1, machine_id = ?1, boot_id = ?1, node = ?2", (identity, f"node-{number}")
        )
        db.close()
    return paths


def _write(path: Path, number: int, rows: int) -> None:
    db = apsw.Connection(str(path))
    for setting in ("journal_mode = off", "synchronous = off"):
        list(db.execute(f"PRAGMA {setting}"))
    migrate(db, path)
    with db:
        db.execute(
            "INSERT INTO raw_sessions(session, uuid, node, machine_id, boot_id, started_ns, last_seen_ns) "
            "VALUES (1, ?1, ?2, ?1, ?1, ?3, ?3)",
            (f"{number:032x}", f"node-{number}", _BEGIN_NS),
        )
        db.executemany(
            "INSERT INTO raw_strings VALUES (?, ?)",
            ((1 + text, f"/usr/lib/python3/dist-packages/torch/lib/lib{text}.so") for text in range(_TEXTS)),
        )
        db.executemany(
            "INSERT INTO raw_processes(process, session, pid, start_ns) VALUES (?, 1, ?, 1)",
            ((1 + process, 4242 + process) for process in range(8)),
        )
        db.execute(_EVENTS, (rows,))
    db.close()


def _copy_alone(paths: list[Path], output: Path) -> None:
    """What SQLite needs for the same rows, changed in nothing but their ids."""
    db = apsw.Connection(str(output))
    for setting in ("journal_mode = memory", "synchronous = off", "cache_size = -32000"):
        list(db.execute(f"PRAGMA {setting}"))
    migrate(db, output)
    for name in index_texts():
        db.execute(f"DROP INDEX IF EXISTS {name}")
    columns = ", ".join(name for name in own_columns()["raw_events"] if name != "id")
    for path in paths:
        db.execute("ATTACH ? AS old", (str(path),))
        with db:
            db.execute(f"INSERT INTO raw_events({columns}) SELECT {columns} FROM old.raw_events")
        db.execute("DETACH old")
    ((events,),) = db.execute("SELECT count(*) FROM raw_events")
    left_out = INDEXES_AT_END if int(events) > MAX_INDEXED_EVENTS else ()
    kept = [text for name, text in index_texts().items() if name not in left_out]
    for text in (*kept, *session_indexes().values()):
        if "ON raw_events(" in text:
            db.execute(text)
    db.close()
    descriptor = os.open(output, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def _child(what: str, output: Path, paths: list[Path]) -> None:
    began_s = time.monotonic()
    if what == "merge":
        merge(paths, output)
    else:
        _copy_alone(paths, output)
    use = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "cpu_s": use.ru_utime + use.ru_stime,
        "wall_s": time.monotonic() - began_s,
        "rss_mb": use.ru_maxrss / 1000,
    }
    print(json.dumps(figures))


def _measured(what: str, output: Path, paths: list[Path]) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.merge", "--child", what, str(output), *map(str, paths)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _killed(folder: Path, kills: int) -> Counter[str]:
    """What SIGKILL at random moments leaves of the output: nothing or all of it, anything else is an error."""
    paths = _write_all(folder, _KILLED_FILES, _KILLED_ROWS)
    output = folder / "killed.db"
    command = [sys.executable, "-m", "bench.merge", "--child", "merge", str(output), *map(str, paths)]
    began_s = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took_s = time.monotonic() - began_s
    found: Counter[str] = Counter()
    chance = random.Random(7)
    for _ in range(kills):
        output.unlink(missing_ok=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, 1.3) * took_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        found["whole" if output.exists() else "nothing"] += 1
        if output.exists():
            _require_whole(output, _KILLED_FILES, _KILLED_ROWS)
    output.unlink(missing_ok=True)
    merge(paths, output)
    left = sorted({path.name for path in folder.iterdir()} - {path.name for path in (*paths, output)})
    if left:
        raise AssertionError(f"a killed merge has left {', '.join(left)}, and the next one did not clear up")
    return found


def _require_whole(path: Path, files: int, rows: int) -> None:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        [counted] = db.execute("SELECT count(*), count(DISTINCT session) FROM raw_events")
        [(state,)] = db.execute("PRAGMA quick_check")
    finally:
        db.close()
    if counted != (files * rows, files) or state != "ok":
        raise AssertionError(f"{path.name} is neither whole nor absent: {counted}, {state}")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a file")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--short", action="store_true", help="3 files of 20,000 rows; says nothing of speed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        what, output, *paths = given.child
        _child(what, Path(output), [Path(path) for path in paths])
        return
    files, rows = (3, 20_000) if given.short else (given.files, given.rows)
    figures = _speed(files, rows)
    with tempfile.TemporaryDirectory() as folder:
        killed = _killed(Path(folder), given.kills) if given.kills else Counter()
    if given.json:
        print(json.dumps(figures | {"kills": dict(killed)}))
        return
    for line in _lines(figures, killed):
        print(line)


def _speed(files: int, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _write_all(folder, files, rows)
        size_mb = sum(path.stat().st_size for path in paths) / 1e6
        alone = _measured("alone", folder / "alone.db", paths)
        (folder / "alone.db").unlink()
        merged = _measured("merge", folder / "merged.db", paths)
        _require_whole(folder / "merged.db", files, rows)
    return {
        "files": files,
        "rows": files * rows,
        "size_mb": size_mb,
        "merge": merged,
        "sqlite_alone": alone,
        "ratio": merged["cpu_s"] / alone["cpu_s"],
        "mb_per_s": size_mb / merged["wall_s"],
        "mb_per_cpu_s": size_mb / merged["cpu_s"],
    }


def _lines(figures: dict[str, Any], killed: Counter[str]) -> Iterator[str]:
    merged, alone = figures["merge"], figures["sqlite_alone"]
    yield f"{figures['files']} files, {figures['rows']:,} rows, {figures['size_mb']:,.0f} MB"
    yield f"merge: {merged['wall_s']:.1f} s, {merged['cpu_s']:.1f} s of CPU"
    yield f"SQLite alone: {alone['wall_s']:.1f} s, {alone['cpu_s']:.1f} s of CPU"
    yield f"merge takes {figures['ratio']:.2f} times the CPU of SQLite alone"
    if figures["size_mb"] >= MIN_SIZE_MB:
        is_kept = figures["mb_per_s"] >= MIN_MB_PER_S
        yield _judged(f"{figures['mb_per_s']:.0f} MB/s", is_kept, f"at least {MIN_MB_PER_S}")
    yield _judged(f"{merged['rss_mb']:.0f} MB of memory", merged["rss_mb"] <= MAX_MB, f"at most {MAX_MB}")
    if killed:
        found = ", ".join(f"{name} {count} times" for name, count in sorted(killed.items()))
        yield f"SIGKILL at {sum(killed.values())} random moments left: {found}; never anything between"


def _judged(figure: str, is_kept: bool, limit: str) -> str:  # a word for each
    return f"{figure} ({limit}: {'kept' if is_kept else 'NOT KEPT'})"


if __name__ == "__main__":
    main()
