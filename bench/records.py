"""How many calls a second `--record-all` stores, and whether those beyond that are counted.

Four threads in each of two processes call every traced operation on the simulated GPU. Once the agent runs all the
time; once it is stopped (SIGSTOP) for two seconds, which is more than its ring holds: every call has to be a row or be
counted as lost.

Run as root: python -m bench.records [--rate N] [--seconds S] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import apsw

from bench.agent import agent, ended_cpu_s, peak_rss_bytes, require_quiet_kernel
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program
from ingero.events import CallFlag
from ingero.ops import Source

CALL_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)
STALL_S = 2.0
_UNFINISHED = int(CallFlag.UNFINISHED)  # has a record and is in no sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run. calls: outermost calls that returned, exactly counted; each is a stored row or counted as lost."""

    seconds: float
    calls: int
    stored: int
    lost_in_ring: int
    lost_in_queue: int
    cpu_percent: float
    peak_rss_bytes: int
    database_bytes: int

    @property
    def unaccounted(self) -> int:
        """Calls that are neither stored nor counted as lost."""
        return abs(self.calls - self.stored - self.lost_in_ring - self.lost_in_queue)


def run(folder: Path, *, rate: int, seconds: float, stall_s: float) -> Result:
    """One recording of a workload that makes `rate` calls a second; the agent is stopped for `stall_s` meanwhile."""
    gate = folder / f"go-{stall_s}"
    variables = {**os.environ, **environment(build(), ctl=folder / "knobs", sched="block")}
    arguments = ["--threads", "4", "--processes", "2", "--seconds", seconds, "--rate", rate, "--gate", gate]
    with Program.module("calls", *arguments, environment=variables) as program:
        pid = int(program.wait_for("loaded")[0])
        with agent(folder, pids=[pid], options=["--record-all"]) as recording:
            cpu_s, began_s = ended_cpu_s(recording.pid), time.monotonic()
            gate.touch()
            if stall_s:
                stall(recording.process, seconds / 4, stall_s)
            program.finish()
            cpu_s, elapsed_s = ended_cpu_s(recording.pid) - cpu_s, time.monotonic() - began_s
            rss = peak_rss_bytes(recording.pid)
            drops = recording.stop()
    with apsw.Connection(str(recording.database), flags=apsw.SQLITE_OPEN_READONLY) as db:
        calls = next(iter(db.execute("SELECT sum(count) FROM raw_op_stats")))[0]
        sources = ",".join(str(int(source)) for source in CALL_SOURCES)
        query = f"SELECT count(*) FROM raw_events WHERE source IN ({sources}) AND NOT flags & {_UNFINISHED}"
        stored = next(iter(db.execute(query)))[0]
    return Result(
        seconds=elapsed_s,
        calls=calls,
        stored=stored,
        lost_in_ring=drops.get("call_records_ring_full", 0),
        lost_in_queue=sum(count for name, count in drops.items() if name.startswith("rows_lost_raw_events")),
        cpu_percent=100 * cpu_s / elapsed_s,
        peak_rss_bytes=rss,
        database_bytes=recording.database.stat().st_size,
    )


def stall(process: subprocess.Popen[str], after_s: float, stall_s: float) -> None:
    """Stops a process for a while, as an overloaded machine or a slow disk may do."""
    time.sleep(after_s)
    process.send_signal(signal.SIGSTOP)
    time.sleep(stall_s)
    process.send_signal(signal.SIGCONT)


def show(title: str, result: Result) -> None:
    """Prints a run for people."""
    print(title)
    print(f"  calls          {result.calls:12,}   {result.calls / result.seconds:,.0f} a second")
    print(f"  stored         {result.stored:12,}   {result.stored / result.seconds:,.0f} a second")
    print(f"  lost in ring   {result.lost_in_ring:12,}")
    print(f"  lost in queue  {result.lost_in_queue:12,}")
    print(f"  unaccounted    {result.unaccounted:12,}   must be 0")
    print(f"  CPU            {result.cpu_percent:12.1f} % of a core")
    print(f"  peak memory    {result.peak_rss_bytes / 1e6:12.0f} MB")
    print(f"  bytes per call {result.database_bytes / max(1, result.stored):12.0f}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=45_000, help="calls a second to keep up with (default 45,000)")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--short", action="store_true", help="a few seconds, for tests")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    require_quiet_kernel()
    seconds = 3.0 if options.short else options.seconds
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        sustained = run(Path(name), rate=options.rate, seconds=seconds, stall_s=0)
        stalled = run(Path(name), rate=options.rate, seconds=seconds, stall_s=STALL_S)
    if options.json:
        print(json.dumps({"sustained": asdict(sustained), "stalled": asdict(stalled)}))
        return
    show(f"{options.rate:,} calls a second", sustained)
    show(f"the same, the agent stopped for {STALL_S:.0f} s", stalled)


if __name__ == "__main__":
    main()
