"""How fast a large recording is exported, and in how much memory: packets a second, and the most memory at two sizes.

Makes a recording of made-up rows (calls, a tenth as many intervals off the CPU, a hundredth as many sync intervals),
exports it with the command of users in a process of its own, and asks the kernel for the most memory that process ever
had (VmHWM). Memory is constant if ten times the rows need the same.

Run: python -m bench.export [--events N] [--format perfetto] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import apsw

from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

BEGIN_NS = 1_790_000_000_000_000_000
STEP_NS = 20_000  # between two calls: 50,000 a second, as much as --record-all stores
_THREADS = 8

# What the command does, and after it what only its process knows: times, and its status.
_EXPORT = """
import sys, time
from pathlib import Path
from ingero.serve.export.flamegraph import Weight
from ingero.serve.export.formats import Format, export
from ingero.serve.export.output import output_file
from ingero.store.reader import open_reader
from ingero.store.streaming.streams import Streams
path, form, output = sys.argv[1:]
with open_reader(Path(path)) as reader, output_file(Path(output)) as file:
    window = reader.window(None, 0)
    began = time.perf_counter()
    written = export(Streams(reader, window), window, Format(form), file, weight=Weight.TIME, progress=lambda *_: None)
    file.flush()
    print(written.packets or written.stacks, time.perf_counter() - began, time.process_time())
print(open("/proc/self/status").read())
"""

_EVENTS = """
INSERT INTO raw_events(session, start_ns, duration_ns, process, pid, tid, source, op, arg0, stream, gpu_id,
    caller_library, function, comm, cpu, run_ns, runq_ns, throttled_ns, yielded_ns, sleep_ns, io_ns, uninterruptible_ns,
    stopped_ns, residual_ns, involuntary_switches, switches, culprit_pid, culprit_name, culprit_ns, flags, stack_hash)
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :events)
SELECT :session, :begin + i * :step, iif(i % 100 = 99, 15000, 4000 + i % 997), :process, 4242, 4242 + i % :threads, 1,
    iif(i % 100 = 99, 5, iif(i % 10 = 0, 7, 3)), iif(i % 10 = 0, 1048576, 0), 93824992235520, 0, :library,
    iif(i % 10 = 0 OR i % 100 = 99, 0, 93824992231424 + i % 256), :comm, i % 16, 4000, iif(i % 100 = 99, 11000, 0), 0,
    0, 0, 0, 0, 0, 0, 0, 0, iif(i % 100 = 99, 77, 0), iif(i % 100 = 99, :culprit, 0), iif(i % 100 = 99, 9000, 0), 16,
    i % 64 + 1
FROM n
"""
_OFFCPU = """
INSERT INTO raw_offcpu(session, start_ns, duration_ns, process, pid, tid, comm, state, woken_ns, cpu, waker_kind,
    waker_tid, waker_name)
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :events / 10)
SELECT :session, :begin + i * 10 * :step, 9 * :step, :process, 4242, 4242 + i % :threads, :comm, 5,
    :begin + i * 10 * :step + 8 * :step, i % 16, 1, 4242 + (i + 1) % :threads, :comm
FROM n
"""
_SYNC_INTERVALS = """
INSERT INTO raw_sync_intervals(session, process, pid, device, stream, prev_sync_end_ns, first_launch_ns, sync_start_ns,
gpu_done_ns, gpu_done_low_ns, gpu_done_high_ns, sync_end_ns, idle_ns,
    busy_ns, return_delay_ns, launches, source, op, first_launch_tid, sync_tid)
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :events / 100), t(a) AS (
    SELECT :begin + i * 100 * :step FROM n)
SELECT :session, :process, 4242, 0, 36028797018963969, a, a + :step, a + 99 * :step, a + 99 * :step + 14000,
    a + 99 * :step + 14000, a + 99 * :step + 14000, a + 99 * :step + 15000, :step, 98 * :step + 14000, 1000, 99, 1, 5,
    4243, 4249
FROM t
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One export. packets: of a Perfetto trace, events of a JSON trace, stacks of a profile."""

    form: str
    events: int
    packets: int
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    file_bytes: int


def make_recording(path: Path, events: int) -> None:
    """A recording with that many calls."""
    with Writer(path, session=SessionFacts(uuid="bench", started_ns=BEGIN_NS), node="bench") as writer:
        values = {
            "session": writer.session,
            "process": writer.process_id(4242, 1),
            "library": writer.intern("libtorch_cuda.so"),
            "comm": writer.intern("python3"),
            "culprit": writer.intern("fluent-bit"),
        }
        process = tables.PROCESSES.rows(
            1, process=values["process"], session=writer.session, pid=4242, start_ns=1, name="python3", rank=0
        )
        writer.append(tables.PROCESSES, process)
        threads = tables.THREADS.rows(
            _THREADS, process=values["process"], tid=[4242 + number for number in range(_THREADS)], name="python3"
        )
        writer.append(tables.THREADS, threads)
        frames = json.dumps(
            [{"symbol": "at::native::gemm", "file": "libtorch_cuda.so"}]
            + [{"py_file": f"/srv/train/layer{n}.py", "py_func": "forward", "py_line": n} for n in range(12)]
        )
        writer.append(tables.STACKS, tables.STACKS.rows(64, hash=list(range(1, 65)), frames=frames))
        writer.flush()
    values |= {"events": events, "begin": BEGIN_NS, "step": STEP_NS, "threads": _THREADS}
    db = apsw.Connection(str(path))
    db.execute("PRAGMA synchronous = OFF")
    with db:
        for sql in (_EVENTS, _OFFCPU, _SYNC_INTERVALS):
            db.execute(sql, {name: value for name, value in values.items() if f":{name}" in sql})
    db.close()


def measure(recording: Path, form: str, events: int) -> Result:
    """Exports it once."""
    output = recording.with_suffix(f".{form}")
    command = [sys.executable, "-c", _EXPORT, str(recording), form, str(output)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    packets, seconds, cpu_seconds = done.stdout.splitlines()[0].split()
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert peak
    result = Result(
        form=form,
        events=events,
        packets=int(packets),
        seconds=float(seconds),
        cpu_seconds=float(cpu_seconds),
        peak_rss_bytes=int(peak[1]) * 1024,
        file_bytes=output.stat().st_size,
    )
    output.unlink()
    return result


def show(result: Result) -> None:
    """Prints a run for people."""
    rate, cpu_us = result.packets / result.seconds, result.cpu_seconds / result.packets * 1e6
    print(
        f"{result.form:11}{result.events:12,} calls{result.packets:13,} packets{result.seconds:8.1f} s"
        f"{rate:12,.0f} packets/s{cpu_us:7.2f} us CPU each"
        f"{result.peak_rss_bytes / 2**20:8.1f} MiB at most{result.file_bytes / 2**20:10,.0f} MiB file",
        flush=True,
    )


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--events", type=int, default=1_000_000, help="calls of the larger recording (default 1,000,000)"
    )
    parser.add_argument("--format", action="append", choices=["perfetto", "chrome", "flamegraph", "pprof"])
    parser.add_argument("--short", action="store_true", help="a small recording, for tests")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    events = 20_000 if options.short else options.events
    results = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for size in (events // 10, events):
            recording = Path(folder) / f"{size}.db"
            make_recording(recording, size)
            for form in options.format or ["perfetto", "chrome", "flamegraph", "pprof"]:
                results.append(measure(recording, form, size))
                if not options.json:
                    show(results[-1])
    if options.json:
        print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
