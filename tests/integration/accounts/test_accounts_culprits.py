"""Who took the CPU: names, shares, control groups, and the one who ran longest in one wait."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import cgroups
from .conftest import Start
from .rig import SchedulerPrograms, measure, undisturbed, window

pytestmark = pytest.mark.integration
ON_ONE_CPU = ("taskset", "-c", "0")
SHORTEST_NS = 100_000


def test_each_of_four_hogs_is_named_with_its_share(scheduler: SchedulerPrograms, start: Start, hog: Path) -> None:
    hogs = {start("spin", 1, program=hog, prefix=ON_ONE_CPU).pid for _ in range(4)}
    work = start("spin", 2, prefix=ON_ONE_CPU)
    slot = scheduler.track(work.pid)
    with window(scheduler, work.pid, slot) as result:
        measure(2)
    print("\n" + result[0].line("shares of four hogs"))
    charged = {culprit.pid: culprit for culprit in result[0].culprits.values() if culprit.pid in hogs}
    assert {culprit.comm for culprit in charged.values()} == {"hog"}
    shares = [culprit.ns for culprit in charged.values()]
    assert len(shares) == 4
    assert max(shares) < 2 * min(shares)


# Runs under one name, then under another, as a shell's child does that executes a program.
RENAMED = """
import os, sys, time
os.sched_setaffinity(0, {0})
for name in ("first", "second"):
    with open("/proc/self/comm", "w") as file:
        file.write(name)
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
print("done", flush=True)
sys.stdin.readline()
"""


def test_a_culprit_has_the_name_of_the_program_that_it_runs_now(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("spin", 1, prefix=ON_ONE_CPU)
    slot = scheduler.track(work.pid)
    with subprocess.Popen(
        [sys.executable, "-c", RENAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "done\n"
        charged = scheduler.culprits(slot)[process.pid, False]
        process.communicate("\n")
    assert charged.comm == "second"


def test_the_waits_of_eighty_processes_on_one_cpu_are_all_charged(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("spinners", 80, 0)
    scheduler.track(work.pid)
    work.go()
    while len(list(scheduler.maps["targets"].items())) < 81:
        measure(0.05)
    with undisturbed():
        begin_ns, before, first = time.monotonic_ns(), scheduler.culprit_sum_ns(), scheduler.dump()
        reading_ns = time.monotonic_ns() - begin_ns
    measure(3)
    with undisturbed():
        begin_ns, after, last = time.monotonic_ns(), scheduler.culprit_sum_ns(), scheduler.dump()
        reading_ns += time.monotonic_ns() - begin_ns
    _, old, new = np.intersect1d(first["tid"], last["tid"], return_indices=True)
    runq_ns = int((last["state_ns"][new, 1].astype(np.int64) - first["state_ns"][old, 1].astype(np.int64)).sum())
    print(f"\n80 processes on a CPU: runq={runq_ns / 1e9:.3f} charged={(after - before) / 1e9:.3f}")
    # what no switch has charged yet is up to a time slice of each waiter, and 80 wait while their sums are read
    assert abs(after - before - runq_ns) <= 0.01 * runq_ns + 80 * reading_ns


def test_a_culprit_is_found_in_its_memory_group(scheduler: SchedulerPrograms, start: Start, hog: Path) -> None:
    with cgroups.group("memory") as folder:
        greedy = start("spin", 1, program=hog, prefix=ON_ONE_CPU)
        cgroups.add(folder, greedy.pid)
        work = start("spin", 1, prefix=ON_ONE_CPU)
        slot = scheduler.track(work.pid)
        measure(0.3)
        culprit = scheduler.culprits(slot)[greedy.pid, False]
        assert culprit.cgroup_id == folder.stat().st_ino
        greedy.__exit__(None, None, None)


def test_an_interval_off_the_cpu_names_the_thread_that_ran_instead(
    scheduler: SchedulerPrograms, start: Start, hog: Path
) -> None:
    greedy = start("spin", 1, program=hog, prefix=ON_ONE_CPU)
    work = start("spin", 1, prefix=ON_ONE_CPU)
    scheduler.track(work.pid)
    by_hog = _intervals_with_culprit(scheduler, work.pid, greedy.pid)
    assert set(by_hog["culprit_comm"].tolist()) == {b"spin"}  # the thread's name, not its process's
    assert set(by_hog["culprit_tid"].tolist()) == {_worker_of(greedy.pid)}
    lengths = by_hog["end_ns"] - by_hog["start_ns"]
    assert (lengths >= SHORTEST_NS).all()
    assert (by_hog["culprit_ns"] <= lengths).all()
    assert (by_hog["woken_ns"] == 0).all()  # it never slept
    print(f"\n{len(by_hog)} waits behind a hog, which ran {by_hog['culprit_ns'].sum() / lengths.sum():.3f} of them")


def _intervals_with_culprit(scheduler: SchedulerPrograms, pid: int, culprit_pid: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Ten and more off-CPU intervals of a process in which the culprit ran longest."""
    found: list[np.ndarray[Any, np.dtype[Any]]] = []
    while sum(map(len, found)) < 10:
        measure(0.1)
        scheduler.dump()  # empties the threads' buffers into the ring
        rows = scheduler.rings["offcpu"].read("offcpu_record")
        found.append(rows[(rows["pid"] == pid) & (rows["culprit_pid"] == culprit_pid)])
    return np.concatenate(found)


def _worker_of(pid: int) -> int:
    return max(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 (names, not paths)
