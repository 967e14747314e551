"""What stacks cost: the walk by depth, the copy of a native stack, and a loop at 10,000 probed calls a second.

The programs' time is the kernel's own (kernel.bpf_stats_enabled, on for these seconds only), the least of many short
batches of recorded calls, with stacks minus without, from agents in turn on one process. `copied` makes each call at
another depth of the C stack, so that each one sends a copy. The loop is the trainer of bench.overhead, alone and
traced with and without stacks in turn; the agent's CPU time is told by thread: the first syncs, the others write
rows, and resolve stacks.

Run as root: python -m bench.stacks [--rounds N] [--seconds S] [--python PROGRAM] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.agent import agent, require_quiet_kernel
from bench.overhead import Trainer, untraced
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program

DEPTHS = (5, 10, 20, 40, 80)
_CALLS = 200  # of a batch
_BATCHES = {  # Python frames, different functions among them, whether each call has a stack of its own
    **{f"{depth} frames": (depth, depth, False) for depth in DEPTHS},
    "20 frames, 9 functions": (20, 9, False),  # such as forward() of nested modules, called by way of the same two
    "copied": (20, 20, True),
}
_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
_CALLER = Path(__file__).with_name("stacks_load.py")
_SOURCE = """
#include <alloca.h>
int at_depth(int (*f)(void *, int, long), long bytes)
{
	volatile char *room = alloca(bytes + 16);
	room[0] = 0;
	return f(0, 0, bytes) + room[0];
}
"""
_STACKS = {"with stacks": "--stack=true", "without": "--stack=false"}
# 35 launches a step of 7 ms, each a call of the runtime and one of the driver: about 11,000 probed calls a second
_LOOP = ("--seconds", 3600, "--layers", 2, "--us", 160, "--launches", 1)


@contextmanager
def _timed_programs() -> Iterator[None]:
    _STATS.write_text("1")
    try:
        yield
    finally:
        _STATS.write_text("0")


def _programs_ns(pid: int) -> int:
    """Run time so far of all programs that a process has loaded, while it is counted."""
    total: dict[str, int] = {}
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        if not path.exists():  # it was closed meanwhile
            continue
        lines = dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)
        if lines.get("prog_type") == "2":  # BPF_PROG_TYPE_KPROBE: scheduler and host events are of other types
            total[lines["prog_id"]] = int(lines["run_time_ns"])
    return sum(total.values())


class Load:
    """A Python program that makes batches of calls at a depth."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid

    def run(self, depth: int, functions: int, *, is_copied: bool = False) -> None:
        """One batch. functions: how many different ones the stack is made of."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{depth} {functions} {_CALLS} {int(is_copied)}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()


@contextmanager
def _load(folder: Path, python: str) -> Iterator[Load]:
    library = folder / "depth.so"
    (folder / "depth.c").write_text(_SOURCE)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, folder / "depth.c"], check=True)
    command: list[str | Path] = [python, _CALLER, build() / "libcudart.so.12", library]
    variables = {**os.environ, **environment(build())}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield Load(process)
        finally:
            process.kill()


def programs_us(
    folder: Path, *, rounds: int, batches: int, python: str = sys.executable
) -> dict[str, dict[str, float]]:
    """Microseconds of the programs per recorded call, by what was called and with or without stacks.

    python: the interpreter whose frames are walked.
    """
    found: dict[str, dict[str, float]] = {}
    with _load(folder, python) as load:
        for _ in range(rounds):
            for mode, option in _STACKS.items():
                with agent(folder, pids=[load.pid], options=["--record-all", option]) as recording:
                    recording.wait_for("second")
                    for name, (depth, functions, is_copied) in _BATCHES.items():
                        least = min(_batch_us(load, recording.pid, depth, functions, is_copied) for _ in range(batches))
                        kept = found.setdefault(name, {})
                        kept[mode] = min(least, kept.get(mode, least))
                    recording.stop()
    return found


def _batch_us(load: Load, agent_pid: int, depth: int, functions: int, is_copied: bool) -> float:
    with _timed_programs():
        began = _programs_ns(agent_pid)
        load.run(depth, functions, is_copied=is_copied)
        return (_programs_ns(agent_pid) - began) / _CALLS / 1e3


def _threads_s(pid: int) -> tuple[float, float]:
    """CPU time of the thread that syncs, and of the others."""
    times = {
        int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9
        for task in Path(f"/proc/{pid}/task").iterdir()
    }
    return times.pop(pid), sum(times.values())


def loop(folder: Path, *, rounds: int, seconds: int) -> dict[str, list[dict[str, float]]]:
    """Per mode and round: step time, its ratio to the untraced one of the round, and the agent's CPU by thread."""
    log = folder / "loop.jsonl"
    variables = {**os.environ, **environment(build(), ctl=folder / "knobs", sched="block")}
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in _STACKS}
    with Program.module("train", *_LOOP, "--out", log, environment=variables) as program:
        program.wait_for("ready")
        trainer = Trainer(program, log)
        time.sleep(1)
        for _ in range(rounds):
            for mode, option in _STACKS.items():
                alone = untraced(trainer, seconds)
                turn = _traced(trainer, folder, option, seconds)
                found[mode].append({**turn, "step_ratio": turn["step_ms"] / alone.p50_ms})
    return found


def _traced(trainer: Trainer, folder: Path, option: str, seconds: int) -> dict[str, float]:
    with agent(folder, pids=[trainer.program.pid], options=[option]) as recording:
        for _ in range(2):
            recording.wait_for("second")
        began, threads = trainer.now(), _threads_s(recording.pid)
        seconds_read = [recording.wait_for("second") for _ in range(seconds)]
        ended, after = trainer.now(), _threads_s(recording.pid)
        drops = recording.stop()
    elapsed_s = (ended[0] - began[0]) / 1e9
    return {
        "step_ms": trainer.turn("", began, ended).p50_ms,
        "drain_cpu_percent": 100 * (after[0] - threads[0]) / elapsed_s,
        "other_cpu_percent": 100 * (after[1] - threads[1]) / elapsed_s,
        "calls_per_s": sum(sum(second["calls"].values()) for second in seconds_read) / elapsed_s,
        "stacks_lost": sum(drops.get(name, 0) for name in ("stacks_ring_full", "python_code_ring_full")),
    }


def show(programs: dict[str, dict[str, float]], turns: dict[str, list[dict[str, float]]]) -> None:
    """Prints for people."""
    print("programs, us per recorded call" + "".join(f"{mode:>16}" for mode in _STACKS) + f"{'difference':>16}")
    for name, found in programs.items():
        cells = (*found.values(), found["with stacks"] - found["without"])
        print(f"{name:30}" + "".join(f"{cell:16.2f}" for cell in cells))
    copy_us = programs["copied"]["with stacks"] - programs["20 frames"]["with stacks"]
    print(f"a copy of a native stack: {copy_us:.2f} us more than a stack that was seen before, at 20 frames")
    for mode, rounds in turns.items():
        median = {name: statistics.median(turn[name] for turn in rounds) for name in rounds[0]}
        print(f"loop, {mode}: " + ", ".join(f"{name} {value:.3f}" for name, value in median.items()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8, help="of each turn of the loop (default 8)")
    parser.add_argument("--python", default=sys.executable, help="whose frames are walked (default: this one's)")
    parser.add_argument("--short", action="store_true", help="one round, for tests")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    require_quiet_kernel()
    rounds, seconds, batches = (1, 1, 3) if options.short else (options.rounds, options.seconds, 20)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        programs = programs_us(Path(name), rounds=rounds, batches=batches, python=options.python)
        turns = loop(Path(name), rounds=rounds, seconds=seconds)
    if options.json:
        print(json.dumps({"programs_us": programs, "loop": turns}))
    else:
        show(programs, turns)


if __name__ == "__main__":
    main()
