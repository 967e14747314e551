"""Reclaim, compaction, page allocations and OOM kills."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingero.attach.objects import object_path
from ingero.decode.btf import btf_of
from tests.integration.host_events.conftest import Tracer, Workload

pytestmark = pytest.mark.integration
MIB = 1 << 20
LIMITS = btf_of(object_path("layouts")).enum("memory_limit")


@pytest.fixture
def uncached_file(data_file: Path) -> Path:
    """16 MiB that are not in the page cache: it is charged to whoever read a page first."""
    with data_file.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return data_file


def read_under_pressure(
    workload: Callable[..., Workload], cgroup: Path, path: Path, tracer: Tracer, *, is_traced: bool
) -> Workload:
    """Reads it in a control group that is entered once the interpreter runs: its files may not be cached.

    What is mapped is hard to reclaim; charged to so small a group, it was killed now and then.
    """
    reader = workload("read_file", path)
    (cgroup / "cgroup.procs").write_text(str(reader.pid))
    if is_traced:
        tracer.track(reader.pid)
    assert reader.run()["bytes"] == path.stat().st_size
    return reader


def test_reclaim_at_a_cgroup_limit_is_recorded_with_its_duration_and_cgroup(
    tracer: Tracer, workload: Callable[..., Workload], memory_cgroup: Callable[[int], Path], uncached_file: Path
) -> None:
    cgroup = memory_cgroup(10 * MIB)
    program = read_under_pressure(workload, cgroup, uncached_file, tracer, is_traced=True)
    records = tracer.records("DIRECT_RECLAIM")
    assert len(records)
    assert set(records["pid"]) == {program.pid}
    assert (records["duration_ns"] > 0).all()
    assert records["size_bytes"].sum() >= MIB
    assert (records["flags"] == tracer.flags["HOST_MEMCG_LIMIT"]).all()
    assert set(records["cgroup_id"]) == {cgroup.stat().st_ino}
    assert tracer.total("DIRECT_RECLAIM")["traced_ns"] == records["duration_ns"].sum()


def test_reclaim_of_a_process_that_is_no_target_is_counted_only(
    tracer: Tracer, workload: Callable[..., Workload], memory_cgroup: Callable[[int], Path], uncached_file: Path
) -> None:
    read_under_pressure(workload, memory_cgroup(10 * MIB), uncached_file, tracer, is_traced=False)
    assert not len(tracer.records("DIRECT_RECLAIM"))
    assert tracer.total("DIRECT_RECLAIM")["other_ns"] > 0


def test_compaction_is_recorded_with_its_duration(tracer: Tracer, workload: Callable[..., Workload]) -> None:
    program = workload("compact")
    tracer.track(program.pid)
    program.run()
    records = tracer.records("COMPACTION")
    assert len(records)
    assert set(records["pid"]) == {program.pid}
    assert (records["duration_ns"] > 0).all()


def test_an_oom_kill_in_a_cgroup_names_its_victim(
    tracer: Tracer, workload: Callable[..., Workload], memory_cgroup: Callable[[int], Path]
) -> None:
    cgroup = memory_cgroup(24 * MIB)
    hog = workload("allocate", 4096 * MIB, cgroup=cgroup)
    name = Path(f"/proc/{hog.pid}/comm").read_bytes().rstrip()
    hog.begin()
    assert hog.process.wait() == -signal.SIGKILL
    affected = tracer.lifecycle("OOM_KILL")
    affected = affected[affected["other_pid"] == hog.pid]
    assert len(affected) == 1
    assert affected["comm"][0] == name
    assert affected["cgroup_id"][0] == cgroup.stat().st_ino
    assert affected["code"][0] == signal.SIGKILL
    assert affected["process_slot"][0] == 0xFFFF
    assert affected["short_of"][0] == LIMITS["LIMIT_CGROUP"]
    assert 12 * MIB < affected["size_bytes"][0] < 36 * MIB  # of a limit of 24 MiB; the kernel sums up late


def test_an_oom_kill_of_a_target_carries_its_slot(
    tracer: Tracer, workload: Callable[..., Workload], memory_cgroup: Callable[[int], Path]
) -> None:
    hog = workload("allocate", 4096 * MIB, cgroup=memory_cgroup(24 * MIB))
    tracer.track(hog.pid)
    hog.begin()
    hog.process.wait()
    affected = tracer.lifecycle("OOM_KILL")
    assert list(affected[affected["other_pid"] == hog.pid]["process_slot"]) == [0]


def test_pages_that_a_target_allocates_are_counted(tracer: Tracer, workload: Callable[..., Workload]) -> None:
    pages = 5000
    program = workload("touch_anonymous", pages)
    tracer.track(program.pid)
    program.run()
    counted = tracer.process(program.pid)
    assert pages <= counted["page_allocs"] < pages * 1.2  # page tables and the interpreter's own
    assert counted["page_alloc_bytes"] >= pages * mmap.PAGESIZE


def test_pages_of_other_processes_are_not_counted(tracer: Tracer, workload: Callable[..., Workload]) -> None:
    program = workload("wait_for_signal")
    tracer.track(program.pid)
    workload("touch_anonymous", 5000).run()
    assert tracer.process(program.pid)["page_allocs"] == 0


def test_no_end_of_reclaim_stays_without_its_beginning(
    tracer: Tracer, workload: Callable[..., Workload], memory_cgroup: Callable[[int], Path], uncached_file: Path
) -> None:
    read_under_pressure(workload, memory_cgroup(10 * MIB), uncached_file, tracer, is_traced=True)
    assert np.all(tracer.records("DIRECT_RECLAIM")["start_ns"] > 0)
    assert tracer.drops() == {}
