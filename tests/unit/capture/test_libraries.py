"""Which copies are probed: not those of a process that holds the lock which a probe takes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingero.capture.libraries import libraries
from ingero.capture.libraries.libraries import LibraryProbes
from ingero.demo.gpusim.build import build
from ingero.discover.libraries import LibraryCopy, LibraryScanner
from ingero.discover.library_reader import LibraryReader


class Reader(LibraryReader):
    """Of a machine where some processes withhold their memory."""

    def __init__(self) -> None:
        self.holders: set[int] = set()

    def withholds(self, pid: int) -> bool:
        return pid in self.holders

    def may_read(self, pid: int) -> bool:
        return pid not in self.holders


class Kernel:
    """Notes what would be probed: a real probe on a file whose process holds its lock stops every fork of the host."""

    def __init__(self) -> None:
        self.probed: list[int] = []

    def attach_calls(self, calls: Sequence[object], number: int) -> dict[Any, str]:
        assert calls
        self.probed.append(number)
        return {}

    def attach_kernel_names(self, calls: Sequence[object], number: int) -> dict[Any, str]:
        del calls, number
        return {}


@pytest.fixture
def mapped() -> Iterator[None]:
    """A library that this process maps."""
    with (build() / "libcudart.so.12").open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    yield
    held.close()


@pytest.mark.usefixtures("mapped")
def test_a_library_is_probed_once_nobody_who_maps_it_withholds_his_memory(caplog: pytest.LogCaptureFixture) -> None:
    kernel, reader, me = Kernel(), Reader(), os.getpid()
    probes = LibraryProbes(kernel, reader=reader)  # type: ignore[arg-type]  # what it uses of it
    copies = probes.scan({me}).copies
    reader.holders.add(me)
    for _ in range(2):
        assert probes.attach_new(copies) == []
    assert kernel.probed == []
    assert caplog.text.count(f"process {me} maps it and withholds its memory") == 1
    assert probes.waiting() == set()
    reader.holders.clear()
    assert probes.waiting() == {me}
    assert probes.attach_new(probes.rescan((), {me}).copies)
    assert len(kernel.probed) == 1
    assert probes.waiting() == set()


@pytest.fixture
def many(tmp_path: Path) -> Iterator[list[Path]]:
    """Copies of a library that this process maps, all different."""
    data = (build() / "libcudart.so.12").read_bytes()
    paths, maps = [tmp_path / str(number) / "libcudart.so.12" for number in range(5)], []
    for number, path in enumerate(paths):
        path.parent.mkdir()
        path.write_bytes(data + bytes([number]))
        with path.open("rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
    yield paths
    for one in maps:
        one.close()


def _places(copies: Iterable[LibraryCopy], paths: list[Path]) -> list[str]:
    return sorted(one.mapped_path for one in copies if Path(one.mapped_path) in paths)


def test_copies_without_end_are_looked_at_and_probed_a_few_at_a_time(
    many: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look, and each turn, does one thing where there is no time for more; nothing is done twice."""
    kernel, reader, me = Kernel(), Reader(), os.getpid()
    reached: list[str] = []
    reach = reader.reach
    monkeypatch.setattr(reader, "reach", lambda process, one: (reached.append(one.path), reach(process, one))[1])
    probes = LibraryProbes(kernel, reader=reader)  # type: ignore[arg-type]  # what it uses of it
    monkeypatch.setattr(libraries, "_TURN_S", -1.0)  # it is over as it begins
    turns = []
    probes.begin_turn()
    assert probes.scan({me}).copies == ()
    assert probes.put_off() == {me}
    monkeypatch.setattr(libraries, "_TURN_S", 60.0)
    probes.begin_turn()
    copies = probes.rescan({me}).copies
    assert _places(copies, many) == sorted(map(str, many))
    assert probes.put_off() == set()
    monkeypatch.setattr(libraries, "_TURN_S", -1.0)
    while len(turns) < 20 and (not turns or probes.waiting()):
        probes.begin_turn()
        probes.attach_new(probes.rescan((), probes.waiting()).copies)
        turns.append(len(kernel.probed))
    assert turns == [1, 2, 3, 4, 5]
    assert len(reached) == len(set(reached)), "a process that has not changed is not looked at again"


def test_a_look_goes_on_where_it_was_put_off(many: list[Path]) -> None:
    left = [4]  # the process itself, and three of its files

    def is_over() -> bool:
        left[0] -= 1
        return left[0] < 0

    scanner = LibraryScanner(reader=LibraryReader(), is_turn_over=is_over)
    assert len(_places(scanner.scan({os.getpid()}).copies, many)) == 3
    assert scanner.put_off == {os.getpid()}
    left[0] = 3
    assert len(_places(scanner.rescan({os.getpid()}).copies, many)) == 5
    left[0] = 10**6  # for what may be linked into other files
    scanner.rescan({os.getpid()})
    assert scanner.put_off == set()


def test_a_process_whose_user_has_no_time_left_is_not_even_asked_what_it_maps(
    many: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read 65,000 mappings takes long, and anybody may change them all the time."""
    reader, me = Reader(), os.getpid()
    asked: list[Path] = []
    maps = reader.maps
    monkeypatch.setattr(reader, "maps", lambda process: (asked.append(process), maps(process))[1])
    scanner = LibraryScanner(reader=reader)
    assert len(_places(scanner.scan({me}).copies, many)) == 5
    reader.holders.add(me)
    assert len(_places(scanner.rescan({me}).copies, many)) == 5
    assert len(asked) == 1
    assert scanner.put_off == {me}
    reader.holders.clear()
    scanner.rescan({me})
    assert len(asked) == 2
    assert scanner.put_off == set()


def test_who_was_put_off_comes_behind_all_others(many: list[Path]) -> None:
    probes = LibraryProbes(Kernel(), reader=Reader())  # type: ignore[arg-type]  # what it uses of it
    copies = [one for one in probes.scan({os.getpid()}).copies if Path(one.mapped_path) in many]
    probes._put_off[copies[0].number] = os.getpid()
    other = replace(copies[-1], pids=(1,))
    assert probes._in_order([*copies, other])[0] == other
