"""Intervals off the CPU by blocks are those of the window, each once, and read once per block."""

from __future__ import annotations

import numpy as np
import pytest

from ingero.diagnose.offcpu.interval_blocks import BLOCK_NS, Array, OffcpuBlocks
from ingero.store.arrays.arrays import OFFCPU_DTYPE
from ingero.store.records import Window

TENTH_NS = BLOCK_NS // 10


class Stored:
    """A hundred intervals, each a little longer than the time to the next; one lasts for two blocks."""

    def __init__(self) -> None:
        self.rows = np.zeros(100, OFFCPU_DTYPE)
        self.rows["start_ns"] = np.arange(100) * TENTH_NS
        self.rows["duration_ns"] = TENTH_NS + 1
        self.rows["duration_ns"][15] = 2 * BLOCK_NS
        self.reads: list[Window] = []

    def read(self, window: Window) -> Array:
        self.reads.append(window)
        return self.touching(window)

    def touching(self, window: Window) -> Array:
        begins, ends = self.rows["start_ns"], self.rows["start_ns"] + self.rows["duration_ns"]
        found: Array = self.rows[(begins < window.end_ns) & (ends >= window.begin_ns)]
        return found


@pytest.mark.parametrize(("begin", "end"), [(0, 10), (3, 4), (9, 11), (10, 20), (12, 38), (20, 21), (33, 34), (0, 100)])
def test_a_window_has_what_touches_it_once_and_in_order(begin: int, end: int) -> None:
    stored = Stored()
    window = Window(begin_ns=begin * TENTH_NS + 5, end_ns=end * TENTH_NS)
    found = OffcpuBlocks(stored.read).rows(window)
    assert found["start_ns"].tolist() == stored.touching(window)["start_ns"].tolist()


def test_overlapping_windows_are_read_once() -> None:
    stored = Stored()
    blocks = OffcpuBlocks(stored.read)
    for begin, end in ((0, 20), (5, 6), (12, 19), (0, 10)):
        blocks.rows(Window(begin_ns=begin * TENTH_NS, end_ns=end * TENTH_NS))
    assert [one.begin_ns for one in stored.reads] == [0, BLOCK_NS]


def test_of_a_long_recording_the_blocks_asked_for_last_are_kept() -> None:
    stored = Stored()
    blocks = OffcpuBlocks(stored.read)
    for block in (0, 1, 2, 3, 4, 5, 6, 7, 8, 0):
        blocks.rows(Window(begin_ns=block * BLOCK_NS, end_ns=(block + 1) * BLOCK_NS))
    assert len(stored.reads) == 10
    blocks.rows(Window(begin_ns=0, end_ns=9 * BLOCK_NS))
    assert (stored.reads[-1].end_ns, len(stored.reads)) == (9 * BLOCK_NS, 11), (
        "a window of all of them is read as it is"
    )
