"""Rows of what the kernel recorded name the process that it was of."""

from __future__ import annotations

from typing import cast

import numpy as np

from ingero.attach.objects import object_path
from ingero.capture.callers import Callers
from ingero.capture.clocks import WallClock
from ingero.capture.rows import RowMaker
from ingero.capture.targets import Target, Targets
from ingero.decode.btf import btf_of
from ingero.discover.processes import ProcessId
from ingero.events import HostKind
from ingero.store import tables
from tests.unit.kept_rows import Kept

LAYOUTS = btf_of(object_path("layouts"))
NO_SLOT = 0xFFFF


class OneTarget:
    """Process 40, the recording's number 7, has slot 3."""

    def at(self, slot: int) -> Target | None:
        """The target with this slot."""
        if slot != 3:
            return None
        return Target(slot=3, id=ProcessId(40, 1), number=7, start_ns=0, name="a", callers=Callers(40))


def test_what_a_socket_does_after_its_process_is_not_that_of_the_next_one_in_the_slot() -> None:
    sink, clock = Kept(), WallClock()
    clock.add_pair(1, 1)
    maker = RowMaker(
        sink,
        clock,
        cast(Targets, OneTarget()),
        name_of_pid=lambda _pid: "",
        name_of_thread=lambda _tid: "",
        cgroup_keys=lambda ids: ids.astype(np.int64),
        default_device=-1,
    )
    batch = np.zeros(3, LAYOUTS.dtype("host_record"))
    batch["kind"] = HostKind.TCP_RETRANSMIT
    batch["process_slot"], batch["pid"] = [3, 3, NO_SLOT], [40, 39, 0]
    maker.host_events(batch)
    assert [(row["pid"], row["process"]) for row in sink.of(tables.EVENTS)] == [(40, 7), (39, 0), (0, 0)]
