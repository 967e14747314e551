"""What the kernel's table of who took the CPU from whom has grown by, and what is removed from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from ingero.attach.libbpf import Map
from ingero.attach.objects import object_path
from ingero.capture.foreign.own_processes import OwnProcesses
from ingero.capture.sums import culprits
from ingero.capture.sums.culprits import CulpritReader
from ingero.decode.btf import btf_of

LAYOUTS = btf_of(object_path("scheduler"))
NO_PID = 2**22 + 1  # beyond the highest there can be


class Table:
    """A hash of pairs, as the reader uses it."""

    def __init__(self) -> None:
        self.pairs: dict[bytes, bytes] = {}

    def batches(self) -> Iterator[tuple[bytes, bytes]]:
        yield b"".join(self.pairs), b"".join(self.pairs.values())

    def delete(self, key: bytes) -> None:
        del self.pairs[key]

    def charge(self, slot: int, pid: int, ns: int, name: bytes = b"hog") -> None:
        key, value = np.zeros(1, LAYOUTS.dtype("culprit_key")), np.zeros(1, LAYOUTS.dtype("culprit_value"))
        key["process_slot"], key["culprit_pid"] = slot, pid
        value["ns"], value["switches"], value["comm"] = ns, ns // 10, name
        self.pairs[key.tobytes()] = value.tobytes()

    def pids(self, slot: int) -> list[int]:
        keys: np.ndarray[Any, Any] = np.frombuffer(b"".join(self.pairs), LAYOUTS.dtype("culprit_key"))
        return sorted(keys["culprit_pid"][keys["process_slot"] == slot].tolist())


def reader_of(table: Table, own: OwnProcesses | None = None) -> CulpritReader:
    return CulpritReader(cast(Map, table), LAYOUTS, own or OwnProcesses())


def test_only_what_a_pair_has_grown_by_is_told() -> None:
    table = Table()
    reader = reader_of(table)
    table.charge(3, 40, 1000)
    table.charge(5, 41, 500)
    assert {(one.slot, one.culprit_pid, one.ns, one.switches) for one in reader.read()} == {
        (3, 40, 1000, 100),
        (5, 41, 500, 50),
    }
    table.charge(3, 40, 1700)
    assert [(one.slot, one.culprit_name, one.ns, one.switches) for one in reader.read()] == [(3, "hog", 700, 70)]


def test_the_pairs_of_an_ended_affected_are_removed_and_no_others() -> None:
    table = Table()
    reader = reader_of(table)
    for slot in (3, 5):
        for pid in (40, 41):
            table.charge(slot, pid, 1000)
    reader.read()
    reader.forget(3)
    assert (table.pids(3), table.pids(5)) == ([], [40, 41])
    table.charge(3, 40, 200)  # the next process in the slot
    assert [(one.slot, one.ns) for one in reader.read()] == [(3, 200)]
    reader.forget(3)
    assert table.pids(3) == []


def test_of_many_pairs_those_are_removed_whose_culprit_has_ended(monkeypatch: Any) -> None:
    monkeypatch.setattr(culprits, "_FEW_PAIRS", 2)
    table = Table()
    reader = reader_of(table)
    for pid in (NO_PID, NO_PID + 1):
        table.charge(3, pid, 1000)
    for _ in range(3):
        reader.read()
    table.charge(3, os.getpid(), 1000)
    reader.read()
    reader.forget(5)  # one that has no pairs
    assert table.pids(3) == [os.getpid()]
    reader.forget(3)
    assert table.pids(3) == []


def test_names_of_culprits_go_though_their_affected_never_were_many(monkeypatch: Any) -> None:
    monkeypatch.setattr(culprits, "_FEW_PAIRS", 2)
    table = Table()
    reader = reader_of(table)
    for pid in range(NO_PID, NO_PID + 20):
        table.charge(3, pid, 1000)
        reader.read()
        reader.forget(3)
    assert len(reader.names) <= 3


def test_what_reads_foreign_files_for_the_agent_takes_the_cpu_in_its_name() -> None:
    table, own = Table(), OwnProcesses(lambda: {71, 72})
    table.charge(3, 71, 500, b"ingero-reader")
    table.charge(3, 72, 400, b"train")  # the pid of one that has ended
    table.charge(3, 73, 300, b"ingero-reader")  # anybody may call itself that
    charged = {one.culprit_pid: one.ns for one in reader_of(table, own).read()}
    assert charged == {os.getpid(): 500, 72: 400, 73: 300}
    assert own.owners(np.array([71, 73, 0])).tolist() == [os.getpid(), 73, 0]
