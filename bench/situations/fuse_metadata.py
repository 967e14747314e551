"""The loop asks a bucket that is mounted by FUSE (gcsfuse, s3fs, JuiceFS) whether files are there: stat, three a step.

A stop flag, a marker of a new checkpoint, the size of a shard. Nothing is read. Then each request of the mount takes
5 ms, as without a metadata cache, so that a stat takes 10 ms (lookup and attributes).

Source: https://github.com/GoogleCloudPlatform/gcsfuse/issues/897
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations import bucket
from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle, slow_mount

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_REQUEST_S = 0.005
_FILE_BYTES = 1 << 20
# FUSE_LOOKUP and FUSE_GETATTR: the bytes of their answers that say for how long those are valid (linux/fuse.h)
_VALID = {1: slice(16, 40), 3: slice(0, 12)}


class Bucket(slow_mount.SlowFile):
    """One file; each lookup and each question for attributes goes over the network, as nobody may keep an answer."""

    def __init__(self, device: int, folder: Path) -> None:
        super().__init__(device, _FILE_BYTES, None)
        self._folder = folder

    def answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        """As of the demo's file system, but late."""
        if opcode in _VALID and has_begun(self._folder):
            time.sleep(_REQUEST_S)
        error, content = super().answer(opcode, node, body)
        if opcode in _VALID and not error:
            valid = _VALID[opcode]
            content = content[: valid.start] + bytes(valid.stop - valid.start) + content[valid.stop :]
        return error, content


def mount_server(folder: Path) -> None:
    """Serves the file system."""
    bucket.serve(folder, Bucket)


def check_flags(mount: Path) -> int:
    """What the loop wants to know of the bucket."""
    return sum((mount / slow_mount.FILE_NAME).stat().st_size for _ in range(3))


def trainer(folder: Path) -> None:
    """Trains, and asks the bucket."""
    gpu = Gpu()
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        check_flags(folder / bucket.MOUNT)
        gpu.step()


def make(situation: Situation) -> None:
    """The trainer is traced, beside the mount."""
    bucket.make(situation)


EXPECTED = Fault(
    answer="""network-filesystem-wait: the trainer waits at check_flags in stat() for a file of a FUSE mount, served by
    gcsfuse [<mount_server>]. Wrong: ipc-bound about a write that a reader takes late (QueueHandler): right process,
    wrong thing to do; data-starvation, block-io, sleep-in-loop; silence.""",
    wanted=(r"^network-filesystem-wait:", r"<mount_server>|gcsfuse", at("check_flags")),
    never=(
        r"^(?:data-starvation|block-io|sleep-in-loop|host-bound|gpu-slower|unexplained):",
        r"QueueHandler",
    ),
)

if __name__ == "__main__":
    play({"mount_server": mount_server, "trainer": trainer})
