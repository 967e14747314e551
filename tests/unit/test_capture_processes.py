"""capture.processes: what is written of a process that ends while it is looked at."""

from __future__ import annotations

import os

import pytest

from ingero.capture import processes
from ingero.capture.callers import Callers
from ingero.capture.gpus import GpuRows
from ingero.capture.identity import CgroupRows
from ingero.capture.processes import ProcessRows
from ingero.capture.targets import Target
from ingero.discover.processes import Process, read_process
from ingero.store import tables
from tests.unit.test_capture_identity import Kept


class Memory:
    """Of a process that loses it after the first look: the environment and the command line go together."""

    def __init__(self) -> None:
        self._is_there = True

    def read_environ(self, _pid: int) -> dict[str, str]:
        return {"RANK": "3", "WORLD_SIZE": "8"} if self._look() else {}

    def read_process(self, pid: int) -> Process | None:
        process = read_process(pid)
        if process is None or self._look():
            return process
        fields = {name: getattr(process, name) for name in Process.__dataclass_fields__}
        return Process(**{**fields, "cmdline": ()})

    def _look(self) -> bool:
        was_there, self._is_there = self._is_there, False
        return was_there


def test_a_process_that_ends_between_two_looks_is_not_written_without_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, sink = Memory(), Kept()
    monkeypatch.setattr(processes, "read_environ", memory.read_environ)
    monkeypatch.setattr(processes, "read_process", memory.read_process)
    me = read_process(os.getpid())
    assert me is not None
    target = Target(slot=1, id=me.id, number=1, start_ns=1, name="worker", callers=Callers(me.id.pid))
    ProcessRows(sink, CgroupRows(sink), GpuRows(sink, ())).write(target, 2)
    (row,) = [row for table, row in sink.rows if table is tables.PROCESSES]
    assert (row["rank"], row["world_size"]) == (3, 8)
