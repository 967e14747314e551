"""Which copies are probed: not those of a process that holds the lock which a probe takes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ingero.capture.libraries import LibraryProbes
from ingero.demo.gpusim.build import build
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
    reader.holders.add(me)
    for _ in range(2):
        assert probes.attach_new(probes.scan({me}).copies) == []
    assert kernel.probed == []
    assert caplog.text.count(f"process {me} maps it and withholds its memory") == 1
    assert probes.put_off() == set()
    reader.holders.clear()
    assert probes.put_off() == {me}
    assert probes.attach_new(probes.look_again({me}).copies)
    assert len(kernel.probed) == 1
    assert probes.put_off() == set()
