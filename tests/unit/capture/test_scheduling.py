"""Scheduling facts: a row at first sight and at each change, of a real process in a made-up group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.attach.objects import object_path
from ingero.capture.host.scheduling import REPEAT_NS, TAKES_NS, SchedulingRows
from ingero.capture.processes.callers import CallerLocations
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.capture.sums.culprits import CulpritTime
from ingero.decode.btf import btf_of
from ingero.discover.cgroups import read_mounts
from ingero.discover.processes import ProcessId
from ingero.discover.scheduling import read_scheduling
from ingero.store.writing import tables
from ingero.units import format_cpu_list, parse_cpu_list
from tests.unit.kept_rows import MemorySink

DUMP = btf_of(object_path("layouts")).dtype("thread_dump")
SECOND_NS = 1_000_000_000
NO_THREADS = np.zeros(0, DUMP)
NUMBER = 4
ENDED_PID = 2**22 + 1  # above every pid


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def group(tmp_path: Path, child: int) -> Path:
    """The CPU group of the child; the quota is its parent's."""
    folder = tmp_path / "fs/parent/job"
    folder.mkdir(parents=True)
    (folder / "cpu.weight").write_text("50\n")
    (folder / "cpu.max").write_text("max 100000\n")
    (folder.parent / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"30 23 0:26 / {tmp_path}/fs rw - cgroup2 cgroup2 rw\n")
    (tmp_path / str(child)).mkdir()
    (tmp_path / str(child) / "cgroup").write_text("0::/parent/job\n")
    return folder


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def look(sink: MemorySink, tmp_path: Path, group: Path, child: int) -> Callable[..., None]:
    """Looks at the child as a target, at a second."""
    assert group.exists()
    scheduling = SchedulingRows(sink, mounts=read_mounts(tmp_path), proc=tmp_path)
    traced_process = TracedProcess(
        slot=0, id=ProcessId(child, 1), number=NUMBER, start_ns=1, name="python", callers=CallerLocations(child)
    )

    def at(
        second: int, *, threads: np.ndarray[Any, Any] = NO_THREADS, culprit_times: list[CulpritTime] | None = None
    ) -> None:
        scheduling.write(second * SECOND_NS, [traced_process], threads, culprit_times or [])

    return at


def culprit_time(pid: int, ns: int) -> CulpritTime:
    return CulpritTime(
        slot=0, is_yielded=False, culprit_pid=pid, culprit_name="hog", culprit_cgroup_id=0, ns=ns, switches=1
    )


def test_a_target_has_one_row_until_something_changes(look: Callable[..., None], sink: MemorySink, child: int) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, child)
    look(1)
    look(2)
    os.setpriority(os.PRIO_PROCESS, child, 19)
    look(3)
    rows = sink.of(tables.SCHEDULING)
    assert [(row["time_ns"], row["nice"]) for row in rows] == [(SECOND_NS, nice), (3 * SECOND_NS, 19)]
    assert {(row["process"], row["pid"], row["tid"], row["policy"]) for row in rows} == {
        (NUMBER, child, child, "other")
    }
    assert rows[0]["cpus_allowed"] == format_cpu_list(os.sched_getaffinity(child))


def test_a_row_has_the_weight_of_its_group_and_the_tightest_quota(
    look: Callable[..., None], sink: MemorySink, group: Path
) -> None:
    look(1)
    (group / "cpu.max").write_text("50000 100000\n")
    look(2)
    found = [(row["cpu_weight"], row["quota_us"], row["period_us"]) for row in sink.of(tables.SCHEDULING)]
    assert found == [(50, 150_000, 100_000), (50, 50_000, 100_000)]


def test_unchanged_facts_are_written_again_before_the_size_limit_can_take_the_last_row(
    look: Callable[..., None], sink: MemorySink
) -> None:
    look(1)
    look(REPEAT_NS // SECOND_NS)
    assert len(sink.of(tables.SCHEDULING)) == 1
    look(REPEAT_NS // SECOND_NS + 1)
    assert len(sink.of(tables.SCHEDULING)) == 2


def test_who_took_much_is_looked_at_and_who_took_little_or_has_ended_is_not(
    look: Callable[..., None], sink: MemorySink
) -> None:
    own, parent = os.getpid(), os.getppid()
    much = [culprit_time(own, TAKES_NS // 2 + 1)] * 2  # of two affected processes
    look(
        1,
        culprit_times=[
            *much,
            culprit_time(parent, TAKES_NS),
            culprit_time(0, SECOND_NS),
            culprit_time(ENDED_PID, SECOND_NS),
        ],
    )
    assert [(row["pid"], row["process"]) for row in sink.of(tables.SCHEDULING) if row["process"] != NUMBER] == [
        (own, 0)
    ]


def test_a_thread_that_calls_has_rows_of_its_own(look: Callable[..., None], sink: MemorySink, child: int) -> None:
    threads = np.zeros(2, DUMP)
    threads["pid"], threads["tid"], threads["hits"] = child, [os.getpid(), os.getppid()], [5, 0]
    look(1, threads=threads)
    look(2, threads=threads)
    assert [row["tid"] for row in sink.of(tables.SCHEDULING)] == [child, os.getpid()]


def test_a_thread_that_has_ended_says_nothing() -> None:
    assert read_scheduling(ENDED_PID) is None


@pytest.mark.parametrize(("cpus", "text"), [({0}, "0"), ({0, 1, 2, 3, 8}, "0-3,8"), ({1, 3, 4}, "1,3-4"), (set(), "")])
def test_cpus_are_named_as_the_kernel_does(cpus: set[int], text: str) -> None:
    assert format_cpu_list(cpus) == text
    assert parse_cpu_list(text) == cpus
