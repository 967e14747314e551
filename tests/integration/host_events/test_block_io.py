"""Block I/O: exact for targets, only the slow ones of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ingero.demo.faults.processes import disturbers
from ingero.events import HOST_MANY
from tests.integration.host_events.conftest import Tracer, Workload

pytestmark = pytest.mark.integration
COUNT, BLOCK_BYTES = 40, 64 * 1024
SLOW_NS = 5_000_000
BLOCK = ("BLOCK_READ", "BLOCK_WRITE", "BLOCK_DISCARD", "BLOCK_FLUSH")  # timers of the machine are late at any time


def of(records: np.ndarray, pid: int) -> np.ndarray:
    return records[records["pid"] == pid]


@pytest.mark.parametrize(("mode", "kind"), [("write", "BLOCK_WRITE"), ("read", "BLOCK_READ")])
def test_direct_io_of_a_target_is_counted_to_the_byte(
    tracer: Tracer, workload: Callable[..., Workload], data_file: Path, mode: str, kind: str
) -> None:
    program = workload("direct_io", data_file, COUNT, mode)
    tracer.track(program.pid)
    result = program.run()
    records = of(tracer.records(kind), program.pid)
    assert records["size_bytes"].sum() == COUNT * BLOCK_BYTES
    assert set(records["tid"]) == {result["tid"]}
    assert set(records["comm"]) == {Path(f"/proc/{program.pid}/comm").read_bytes().rstrip()}
    total = tracer.total(kind)
    assert (total["traced_count"], total["traced_bytes"]) == (len(records), COUNT * BLOCK_BYTES)
    assert total["traced_ns"] == records["duration_ns"].sum()


def test_each_direct_write_is_timed_from_issue_to_completion_within_the_call(
    tracer: Tracer, workload: Callable[..., Workload], data_file: Path
) -> None:
    program = workload("direct_io", data_file, COUNT, "write")
    tracer.track(program.pid)
    result = program.run()
    records = of(tracer.records("BLOCK_WRITE"), program.pid)
    assert (records["duration_ns"] > 0).all()
    assert records["duration_ns"].sum() <= result["wall_ns"]
    assert (records["start_ns"] >= result["begin_ns"]).all()
    assert (records["start_ns"] + records["duration_ns"] <= result["begin_ns"] + result["wall_ns"]).all()
    assert (np.diff(records["start_ns"].astype(np.int64)) > 0).all()


def test_io_is_charged_to_who_asked_when_a_kernel_worker_dispatches_it(
    tracer: Tracer, workload: Callable[..., Workload], data_file: Path
) -> None:
    program = workload("submit_many", data_file, 400)  # more than the device takes at once
    tracer.track(program.pid)
    assert program.run() == {"submitted": 400, "completed": 400, "error": 0}
    records = of(tracer.records("BLOCK_WRITE"), program.pid)
    assert records["size_bytes"].sum() == 400 * 4096
    assert not records["flags"].any()


def test_a_record_names_the_device_of_the_file(
    tracer: Tracer, workload: Callable[..., Workload], data_file: Path
) -> None:
    program = workload("direct_io", data_file, 1, "read")
    tracer.track(program.pid)
    program.run()
    device = int(of(tracer.records("BLOCK_READ"), program.pid)["device"][0])
    assert (Path("/sys/dev/block") / f"{device >> 20}:{device & 0xFFFFF}" / "queue").is_dir()


@pytest.mark.alone  # the file has left the page cache, if its disk keeps up
def test_a_read_for_a_page_fault_is_flagged(tracer: Tracer, workload: Callable[..., Workload], data_file: Path) -> None:
    program = workload("touch_mapped", data_file)
    tracer.track(program.pid)
    assert program.run()["major_faults"] > 0
    records = of(tracer.records("BLOCK_READ"), program.pid)
    in_fault = records[(records["flags"] & tracer.flags["HOST_IN_PAGE_FAULT"]) != 0]
    assert in_fault["size_bytes"].sum() == data_file.stat().st_size


def test_a_read_by_system_call_is_not_flagged_as_a_page_fault(
    tracer: Tracer, workload: Callable[..., Workload], data_file: Path
) -> None:
    program = workload("direct_io", data_file, COUNT, "read")
    tracer.track(program.pid)
    program.run()
    assert not of(tracer.records("BLOCK_READ"), program.pid)["flags"].any()


@pytest.mark.alone  # retransmits of anybody are recorded
def test_a_process_that_is_no_target_leaves_no_record_but_is_counted(
    tracer: Tracer, workload: Callable[..., Workload], data_file: Path
) -> None:
    other = workload("direct_io", data_file, COUNT, "write")
    before = tracer.total("BLOCK_WRITE")
    other.run()
    after = tracer.total("BLOCK_WRITE")
    assert after["other_bytes"] - before["other_bytes"] >= COUNT * BLOCK_BYTES
    assert after["other_ns"] > before["other_ns"]
    assert not after["traced_count"]
    assert not len(tracer.records(*BLOCK))


def test_slow_io_of_a_process_that_is_no_target_is_recorded_with_its_pid(
    attach: Callable[..., Tracer], workload: Callable[..., Workload], data_file: Path
) -> None:
    tracer = attach(slow_ns=0)
    other = workload("direct_io", data_file, COUNT, "write")
    other.run()
    records = of(tracer.records("BLOCK_WRITE"), other.pid)
    assert records["size_bytes"].sum() == COUNT * BLOCK_BYTES
    assert set(records["process_slot"]) == {0xFFFF}


def test_of_others_that_are_slow_in_the_queue_only_one_in_many_is_recorded(
    attach: Callable[..., Tracer], data_file: Path
) -> None:
    tracer = attach(slow_ns=SLOW_NS)
    before = tracer.total("BLOCK_WRITE")["other_count"]
    files = [data_file.with_name(f"{data_file.name}.{number}") for number in range(4)]
    with disturbers("writer", [[str(file)] for file in files], name="writer") as writers:
        time.sleep(1)  # 64 requests at once
        records = tracer.records("BLOCK_WRITE")
    count = tracer.total("BLOCK_WRITE")["other_count"] - before
    records = records[np.isin(records["pid"], [one.pid for one in writers])]
    is_one_of_many = (records["flags"] & tracer.flags["HOST_ONE_OF_MANY"]) != 0
    assert is_one_of_many.any()
    assert (is_one_of_many == (records["duration_ns"] < SLOW_NS)).all()
    assert (records["duration_ns"] + records["arg1"] >= SLOW_NS).all()
    assert HOST_MANY * is_one_of_many.sum() < 1.5 * count


def test_what_a_kernel_thread_issues_is_flagged(
    attach: Callable[..., Tracer], workload: Callable[..., Workload], data_file: Path
) -> None:
    tracer = attach(slow_ns=0)
    workload("write_back", data_file).run()
    records = tracer.records(*BLOCK)
    assert len(records)
    kernel = (records["flags"] & tracer.flags["HOST_ISSUER_IS_KTHREAD"]) != 0
    assert kernel.any()
    assert not [pid for pid in set(records["pid"][kernel]) if Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.alone  # losses are of the whole machine
def test_no_request_begun_while_tracing_stays_unmatched(
    tracer: Tracer, workload: Callable[..., Workload], data_file: Path
) -> None:
    program = workload("direct_io", data_file, COUNT, "write")
    tracer.track(program.pid)
    program.run()
    assert tracer.drops() == {}
