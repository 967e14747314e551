"""What the scheduler programs cost per context switch, and what they cost a busy host on which nothing is traced.

A pair of threads on one CPU passes a byte through two pipes. Each round with programs is compared with the round before
it that had none, so that a change of the machine's speed cancels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "integration"))

from accounts.rig import (
    ACCOUNT_PROGRAMS,
    ALL_PROGRAMS,
    BIRTH_PROGRAMS,
    SchedulerPrograms,
    Workload,
    build_workload,
    measure,
)

HOST_SWITCHES_PER_S = 200_000  # the busy host for which a budget is set
STATS_SWITCH = Path("/proc/sys/kernel/bpf_stats_enabled")


@dataclass(frozen=True, slots=True)
class Setting:
    """The programs attached in a round."""

    name: str
    programs: Sequence[str]
    is_tracked: bool = False


SETTINGS = (
    Setting("sched_switch alone, not tracked", ("sched_switch",)),
    Setting("without interrupt markers, not tracked", (*ACCOUNT_PROGRAMS, *BIRTH_PROGRAMS)),
    Setting("all programs, not tracked", ALL_PROGRAMS),
    Setting("all programs, tracked", ALL_PROGRAMS, is_tracked=True),
)
NOTHING = Setting("nothing", ())


def used(pid: int) -> tuple[int, int]:
    """(CPU time in ns, context switches) of a process's threads so far."""
    cpu_ns = switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int((task / "schedstat").read_text().split()[0])
        status = (task / "status").read_text().splitlines()
        switches += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
    return cpu_ns, switches


def ns_per_switch(program: Path, setting: Setting, seconds: float) -> float:
    """CPU time of the pair per switch in one round."""
    with ExitStack() as stack:
        scheduler = stack.enter_context(SchedulerPrograms(setting.programs)) if setting.programs else None
        work = stack.enter_context(Workload(program, "pipe", 1, prefix=("taskset", "-c", "1")))
        if scheduler and setting.is_tracked:
            scheduler.track(work.pid)
        measure(0.1)
        cpu_before, switches_before = used(work.pid)
        measure(seconds)
        cpu_after, switches_after = used(work.pid)
    return (cpu_after - cpu_before) / (switches_after - switches_before)


def quartiles(values: Sequence[float]) -> str:
    """Median and the middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:+7.0f} ns ({low:+.0f} to {high:+.0f})"


def run(program: Path, rounds: int, seconds: float) -> None:
    """Interleaved rounds, then the table."""
    base: list[float] = []
    added: dict[str, list[float]] = {setting.name: [] for setting in SETTINGS}
    for _ in range(rounds):
        for setting in SETTINGS:
            before = ns_per_switch(program, NOTHING, seconds)
            base.append(before)
            added[setting.name].append(ns_per_switch(program, setting, seconds) - before)
    print(f"untraced: {statistics.median(base):.0f} ns of CPU per switch, {rounds} rounds of {seconds} s")
    for name, values in added.items():
        print(f"{name:<42} {quartiles(values)}")
    share = statistics.median(added["all programs, not tracked"]) * HOST_SWITCHES_PER_S / 1e9
    print(f"{HOST_SWITCHES_PER_S:,} switches/s with no target running: {100 * share:.2f} % of a core (budget 2%)")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one round")
    options = parser.parse_args()
    if STATS_SWITCH.read_text().strip() != "0":
        sys.exit("kernel.bpf_stats_enabled adds 55 ns to every program run: sysctl -w kernel.bpf_stats_enabled=0")
    with tempfile.TemporaryDirectory() as folder:
        run(build_workload(Path(folder)), options.rounds, options.seconds)


if __name__ == "__main__":
    main()
