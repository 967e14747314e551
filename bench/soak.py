"""An agent that is left running: a full-rate program, processes that come and go, a database at its limit.

Run: python -m bench.soak [--duration 20m] [--max-db 100m] [--record-all], or make soak DURATION=20m. Prints a line a
minute, and at the end one verdict per promise; exit code 1 if one is broken.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from bench.agent import Agent, agent, ended_cpu_s, require_quiet_kernel
from ingero.capture.loop.drops import MEANINGS
from ingero.demo.gpusim import build as gpusim
from ingero.demo.gpusim.truth import read_all
from ingero.demo.workloads import native
from ingero.demo.workloads.program import Program
from ingero.ops import OPS
from ingero.store.writing.retention import MINUTE_NS, log_bytes
from ingero.units import format_bytes, parse_duration_s, parse_size_bytes

_MAX_GROWTH_BYTES = 5 << 20
_SELECTION = {False: [], True: ["--record-all"]}
_LINES = 20  # a minute each in 20 minutes
_SETTLED_LINES = 5  # until then tables, caches and the database's limit fill
_LEVEL_LINES = 5  # minutes whose median is a level
_FOREVER_NS = 1 << 62
_ERROR = re.compile(r" ERROR | CRITICAL |Error: |Warning: ")

# Begins nothing before it is let go, so that the libraries are probed first; its children are followed from their fork.
_LAUNCHER = """
import mmap, os, subprocess, sys, time
gate, seconds, rate, program, truth, *libraries = sys.argv[1:]
access = mmap.PROT_READ | mmap.PROT_EXEC
held = [mmap.mmap(os.open(path, os.O_RDONLY), 0, mmap.MAP_PRIVATE, access) for path in libraries]
print("loaded", os.getpid(), file=sys.stderr, flush=True)
while not os.path.exists(gate):
    time.sleep(0.01)
def start(threads, processes, seconds, rate, environment):
    command = [program, "--threads", str(threads), "--processes", str(processes), "--seconds", str(seconds)]
    return subprocess.Popen([*command, "--rate", str(rate)], env=environment, stdout=subprocess.DEVNULL)
end = time.monotonic() + float(seconds)
full = start(4, 2, seconds, rate, {**os.environ, "GPUSIM_TRACE": truth})
passing, turn = [], 0
while time.monotonic() < end:
    passing = [one for one in passing if one.poll() is None]
    passing.append(subprocess.Popen(["/bin/true"]))
    if turn % 5 == 0:
        passing.append(start(2, 1, 1, 2000, os.environ))
    turn += 1
    time.sleep(0.1)
for one in [full, *passing]:
    one.wait()
"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The agent's resources at one time. rss: its own memory and the touched part of the kernel's mapped tables."""

    at_s: float
    rss_bytes: int
    own_bytes: int
    cpu_s: float
    database_bytes: int


def _sample(running: Agent) -> Sample:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{running.pid}/status").read_text().splitlines() if ":" in line
    )
    return Sample(
        at_s=time.monotonic(),
        rss_bytes=int(status["VmRSS"].split()[0]) << 10,
        own_bytes=int(status["RssAnon"].split()[0]) << 10,
        cpu_s=ended_cpu_s(running.pid),
        database_bytes=running.database.stat().st_size + log_bytes(running.database),
    )


@contextmanager
def _launched(folder: Path, duration_s: float, rate: int) -> Iterator[tuple[Program, Path]]:
    libraries, gate = gpusim.build(), folder / "go"
    variables = gpusim.environment(libraries, ctl=folder / "knobs", trace=folder / "truth.%p", sched="block")
    truth = variables.pop("GPUSIM_TRACE")
    mapped = [str(libraries / name) for name in ("libcudart.so.12", "libcuda.so.1", "libnccl.so.2")]
    arguments = [str(gate), str(int(duration_s)), str(rate), str(native.build("calls")), truth, *mapped]
    with Program(
        [sys.executable, "-c", _LAUNCHER, *arguments], environment={**os.environ, **variables}, patience_s=10
    ) as program:
        program.wait_for("loaded")
        yield program, gate


class _Counted:
    """Calls by process id, read minute by minute: a limit of the database takes old sums, too."""

    def __init__(self, database: Path, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._until_ns = 0
        self._calls = Counter[int]()

    def read(self, *, to_end: bool = False) -> None:
        """The minutes that are whole and have not been read, the last one that began left out; or all."""
        db = apsw.Connection(str(self._database), flags=apsw.SQLITE_OPEN_READONLY)
        db.set_busy_timeout(2_000)
        with db:
            ((newest_ns,),) = db.execute("SELECT max(start_ns) FROM raw_op_stats")
            until_ns: int = _FOREVER_NS if to_end else ((newest_ns or 0) // MINUTE_NS - 1) * MINUTE_NS
            found = db.execute(
                "SELECT pid, sum(count + nested) FROM raw_op_stats JOIN raw_processes USING (process) "
                "WHERE raw_op_stats.start_ns >= ? AND raw_op_stats.start_ns < ? GROUP BY pid",
                (self._until_ns, until_ns),
            )
            self._calls.update({int(pid): int(calls) for pid, calls in found})
        db.close()
        self._until_ns = max(self._until_ns, until_ns)

    def of_full_rate(self) -> int:
        """What was counted of the processes that the simulator knows."""
        return sum(self._calls[int(path.suffix[1:])] for path in self._folder.glob("truth.*"))

    def made(self) -> int:
        """What the simulator says of the same processes, once they have ended."""
        traced = {symbol for op in OPS for symbol in op.symbols}
        truth = read_all(self._folder / "truth.%p")
        return sum(calls.total for (_, symbol), calls in truth.calls.items() if symbol in traced)


def _watch(running: Agent, counted: _Counted, duration_s: float) -> tuple[list[Sample], Counter[str]]:
    """A sample each second until the agent ends with its targets; and what it has lost."""
    began_s = time.monotonic()
    samples, drops, printed = [_sample(running)], Counter[str](), _sample(running)
    print(
        f"{'minute':>7} {'memory':>9} {'own':>9} {'CPU':>7} {'database':>9}  processes, calls/s, losses so far",
        flush=True,
    )
    while (message := _next(running)) is not None:
        drops.update(message["drops"])
        if running.process.poll() is not None:
            continue
        samples.append(_sample(running))
        if samples[-1].at_s - printed.at_s >= duration_s / _LINES:
            _print(printed, samples[-1], message, drops, (samples[-1].at_s - began_s) / 60)
            printed = samples[-1]
            counted.read()
    return samples, drops


def _next(running: Agent) -> dict[str, Any] | None:
    """The next second; None at the end. Messages are not kept: the bench is to stay small beside the agent."""
    assert running.process.stdout is not None
    running.messages.clear()
    message = running.wait_for_any(("second", "finished"))
    return message if message["type"] == "second" else None


def _print(before: Sample, now: Sample, message: dict[str, Any], drops: Counter[str], minute: float) -> None:
    cpu = (now.cpu_s - before.cpu_s) / (now.at_s - before.at_s)
    calls = sum(message["calls"].values())
    print(
        f"{minute:7.1f} {format_bytes(now.rss_bytes):>9} {format_bytes(now.own_bytes):>9} {cpu:7.1%} "
        f"{format_bytes(now.database_bytes):>9}  {message['processes']}, {calls:,}, {dict(drops) or 'none'}",
        flush=True,
    )


def _growth_bytes(samples: list[Sample], duration_s: float) -> tuple[int, int, int]:
    """How much more memory it had at the end than when it had settled; in any one minute; and at most.

    Of a minute: the median, as most of its seconds have no look at the recording in them. When it had settled, at the
    end: the median of five such minutes, as each look leaves the heap in pieces that are up to 3 MB more or less.
    """
    minutes: dict[int, list[int]] = {}
    for one in samples:
        minutes.setdefault(int((one.at_s - samples[0].at_s) / duration_s * _LINES), []).append(one.rss_bytes)
    settled = [sizes for minute, sizes in minutes.items() if _SETTLED_LINES <= minute < _LINES]
    medians, most = [statistics.median(sizes) for sizes in settled], [max(sizes) for sizes in settled]
    first, last = statistics.median(medians[:_LEVEL_LINES]), statistics.median(medians[-_LEVEL_LINES:])
    return round(last - first), round(max(medians) - medians[0]), max(most) - most[0]


def _verdicts(
    samples: list[Sample],
    drops: Counter[str],
    max_db: int,
    counted: tuple[int, int],
    errors: list[str],
    duration_s: float,
) -> bool:
    growth, in_a_minute, peaks = _growth_bytes(samples, duration_s)
    largest = max(one.database_bytes for one in samples)
    unexplained = {name for name in drops if name not in MEANINGS and not name.startswith("rows_lost_")}
    results = [
        (
            growth <= _MAX_GROWTH_BYTES,
            f"memory grew by {growth / (1 << 20):+.1f} MiB from its second quarter to its last (<= 5); most in one "
            f"minute {in_a_minute / (1 << 20):+.1f}, amid a look at the recording {peaks / (1 << 20):+.1f}",
        ),
        (largest <= max_db, f"database with its log was at most {format_bytes(largest)} (<= {format_bytes(max_db)})"),
        (counted[0] == counted[1], f"{counted[0]:,} calls counted, {counted[1]:,} made"),
        (not unexplained, f"losses without a reason: {', '.join(sorted(unexplained)) or 'none'}"),
        (not errors, f"errors told: {'; '.join(errors[:3]) or 'none'}"),
    ]
    for is_kept, text in results:
        print(f"{'kept' if is_kept else 'BROKEN'}: {text}")
    return all(is_kept for is_kept, _ in results)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=parse_duration_s, default=parse_duration_s("20m"))
    parser.add_argument("--max-db", default="100m")
    parser.add_argument("--rate", type=int, default=40_000, help="calls per second of the full-rate program")
    parser.add_argument("--record-all", action="store_true", help="every call, as fast as the disk takes them")
    options = parser.parse_args()
    require_quiet_kernel()
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ingero-soak-") as name:
        folder = Path(name)
        with (
            _launched(folder, options.duration, options.rate) as (program, gate),
            agent(
                folder, pids=[program.pid], options=["--max-db", options.max_db, *_SELECTION[options.record_all]]
            ) as running,
        ):
            gate.touch()
            counted = _Counted(running.database, folder)
            samples, drops = _watch(running, counted, options.duration)
            running.process.wait()
            errors = [line for line in running.stderr_text().splitlines() if _ERROR.search(line)]
        counted.read(to_end=True)
        calls = (counted.of_full_rate(), counted.made())
        is_kept = _verdicts(samples, drops, parse_size_bytes(options.max_db), calls, errors, options.duration)
    sys.exit(not is_kept)


if __name__ == "__main__":
    main()
