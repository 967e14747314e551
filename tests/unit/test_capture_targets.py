"""A process that finds no slot is not traced, and that is counted once."""

from __future__ import annotations

import os

from ingero.capture.targets import Targets


class FullKernel:
    """A kernel side without a free slot."""

    def enroll(self, pid: int, start_boottime_ns: int) -> int | None:
        assert pid == os.getpid()
        assert start_boottime_ns > 0


def test_a_process_without_a_slot_is_refused_once_however_often_it_is_tried() -> None:
    targets = Targets(FullKernel(), 0, lambda _pid, _start: 1)  # type: ignore[arg-type]  # what `add` uses of it
    assert targets.add(os.getpid()) is None
    assert targets.add(os.getpid()) is None
    assert [one.pid for one in targets.refused] == [os.getpid()]
    assert len(targets) == 0
