"""Rows of what the kernel recorded name the process that it was of."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from ingero.attach.objects import object_path
from ingero.capture.loop.clocks import WallClock
from ingero.capture.processes.callers import CallerLocations
from ingero.capture.processes.traced_processes import TracedProcess, TracedProcesses
from ingero.capture.records.rows import RowMaker
from ingero.decode.btf import btf_of
from ingero.discover.processes import ProcessId
from ingero.events import HostKind
from ingero.store.writing import tables
from tests.unit.kept_rows import MemorySink

LAYOUTS = btf_of(object_path("layouts"))
NO_SLOT = 0xFFFF


class OneTracedProcess:
    """Process 40, the recording's number 7, has slot 3."""

    def at(self, slot: int) -> TracedProcess | None:
        """The traced process with this slot."""
        if slot != 3:
            return None
        return TracedProcess(slot=3, id=ProcessId(40, 1), number=7, start_ns=0, name="a", callers=CallerLocations(40))


def maker_for(sink: MemorySink) -> RowMaker:
    clock = WallClock()
    clock.add_pair(1, 1)
    return RowMaker(
        sink,
        clock,
        cast(TracedProcesses, OneTracedProcess()),
        name_of_pid=lambda _pid: "",
        name_of_thread=lambda _tid: "",
        cgroup_keys=lambda ids: ids.astype(np.int64),
        default_gpu=-1,
    )


def test_a_process_that_has_ended_leaves_no_gpu_stream() -> None:
    maker = maker_for(MemorySink())
    batch = np.zeros(4, LAYOUTS.dtype("sync_interval_record"))
    for place, name in enumerate(("begin_ns", "first_ns", "sync_ns", "return_ns"), 1):
        batch[name] = place * 1_000_000
    batch["process_slot"], batch["stream_slot"] = [3, 3, 0x103, 0x103], [0, 7, 0, 7]
    maker.sync_intervals(batch)
    assert len(maker._gpu_streams) == 4
    maker.forget(3)
    assert sorted(place >> 16 for place in maker._gpu_streams) == [0x103, 0x103]


@pytest.mark.parametrize(
    ("slots", "gpu_stream"),
    [
        ([0, 7, 7, 0, 7, 0, 0, 7, 0, 7, 7, 0], [0, 7, 7, 0, 7, 0, 0, 7, 0, 7, 7, 0]),
        ([5] * 12, [0] * 6 + [7] * 6),  # a stream that ended, and the one that was given its place
    ],
    ids=["mixed", "one place"],
)
def test_gpu_streams_that_come_together_are_judged_as_if_each_came_alone(
    slots: list[int], gpu_stream: list[int]
) -> None:
    batch = np.zeros(12, LAYOUTS.dtype("sync_interval_record"))
    begin = np.arange(12) * 10_000_000 + 1
    of_first = np.asarray(gpu_stream) == 0
    for name, after in (("begin_ns", 0), ("first_ns", 1_000), ("sync_ns", 1_000_000), ("return_ns", 8_000_000)):
        batch[name] = begin + after
    batch["process_slot"], batch["stream_slot"], batch["stream"] = 3, slots, gpu_stream
    batch["launches"] = 10
    batch["last_off_ns"] = begin + np.where(of_first, 2_000_000, 4_000_000)  # ready is half-way, stream by stream
    batch["last_on_ns"] = batch["return_ns"] - 100_000
    together = list(maker_for(MemorySink()).sync_intervals(batch))
    alone = [list(maker_for(MemorySink()).sync_intervals(batch[one])) for one in (of_first, ~of_first)]
    assert together == alone[0] + alone[1]
    busy = tables.SYNC_INTERVALS.columns.index("busy_ns")
    assert len({row[busy] for row in together}) == 2


def test_what_a_socket_does_after_its_process_is_not_that_of_the_next_one_in_the_slot() -> None:
    sink = MemorySink()
    maker = maker_for(sink)
    batch = np.zeros(3, LAYOUTS.dtype("host_record"))
    batch["kind"] = HostKind.TCP_RETRANSMIT
    batch["process_slot"], batch["pid"] = [3, 3, NO_SLOT], [40, 39, 0]
    maker.host_events(batch)
    assert [(row["pid"], row["process"]) for row in sink.of(tables.EVENTS)] == [(40, 7), (39, 0), (0, 0)]
