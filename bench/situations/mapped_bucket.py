"""Tokens are read from a file that is mapped into memory (numpy.memmap), on a FUSE mount that became slow.

No read() and no stat(): the loop touches six pages of the file in each step, and each page is fetched inside a page
fault, page by page, as mapped files at random places are. Then a page takes 5 ms instead of 0.2.

Source: https://github.com/mcvickerlab/GenVarLoader/issues/338 (mapped files on a network mount)
"""

from __future__ import annotations

import itertools
import mmap
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations import bucket
from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle, slow_mount

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_FILE_BYTES = 256 << 20
_PAGES, _PAGE_S = 6, 0.005
_OPEN, _READ = 14, 15  # linux/fuse.h


class Bucket(slow_mount.SlowFile):
    """One file, whose pages are cached once they were read; that can be mapped."""

    def __init__(self, device: int, folder: Path) -> None:
        super().__init__(device, _FILE_BYTES, None)
        self._folder = folder

    def answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        """As of the demo's file system, but reads are late."""
        if opcode == _OPEN:
            return 0, struct.pack("=QII", 0, 0, 0)  # without FOPEN_DIRECT_IO
        if opcode == _READ and has_begun(self._folder):
            time.sleep(_PAGE_S)
        return super().answer(opcode, node, body)


def mount_server(folder: Path) -> None:
    """Serves the file system."""
    bucket.serve(folder, Bucket)


def gather_tokens(tokens: mmap.mmap, offsets: Iterator[int]) -> int:
    """Touches the pages of the samples of this batch."""
    return sum(tokens[next(offsets)] for _ in range(_PAGES))


def trainer(folder: Path) -> None:
    """Trains on a mapped file."""
    gpu = Gpu()
    offsets = itertools.cycle(range(0, _FILE_BYTES, mmap.PAGESIZE))
    with (folder / bucket.MOUNT / slow_mount.FILE_NAME).open("rb") as file:
        tokens = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tokens.madvise(mmap.MADV_RANDOM)
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        gather_tokens(tokens, offsets)
        gpu.step()


def make(situation: Situation) -> None:
    """The trainer is traced, beside the mount."""
    bucket.make(situation)


EXPECTED = Fault(
    answer="""network-filesystem-wait: the trainer waits at gather_tokens for pages of a mapped file of a FUSE mount,
    served by gcsfuse [<mount_server>]; read larger pieces, cache, copy. Wrong: major-page-faults "from disk" or
    memory-pressure (nothing was evicted, no disk is involved); ipc-bound about an answer to ask for earlier, a
    QueueHandler or a scanner of files; host-bound; data-starvation; silence as "no work requested".""",
    wanted=(r"^network-filesystem-wait:", r"<mount_server>|gcsfuse", at("gather_tokens")),
    never=(
        r"^(?:major-page-faults|memory-pressure|block-io|data-starvation|sleep-in-loop|host-bound|gpu-slower):",
        r"^unexplained:",
        r"QueueHandler|scanner of files|ask for the next answer",
    ),
)

if __name__ == "__main__":
    play({"mount_server": mount_server, "trainer": trainer})
