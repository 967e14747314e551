"""A file system in user space, for one user only as those of AppImages, with one file that is a copy of another.

usage: kept_mount.py FOLDER FILE UID: prints "ready PID" on stderr, serves until SIGTERM.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.slow_mount import FILE_NAME, SlowFile, unmount

_LOOKUP, _OPEN = 1, 14  # linux/fuse.h
_ENOENT = 2
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4


class CopiedFile(SlowFile):
    """Answers with what another file holds; it can be mapped."""

    def __init__(self, device: int, file: Path) -> None:
        self._name, self._content = os.fsencode(file.name), file.read_bytes()
        super().__init__(device, len(self._content), None)

    def answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        """As there, under its own name, and through the page cache."""
        if opcode == _OPEN:
            return 0, struct.pack("=QII", 0, 0, 0)
        if opcode == _LOOKUP:
            is_ours = body.rstrip(b"\0") == self._name
            return super().answer(opcode, node, FILE_NAME.encode()) if is_ours else (_ENOENT, b"")
        return super().answer(opcode, node, body)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """What is there."""
        return self._content[offset : offset + size_bytes]


def main(folder: Path, file: Path, uid: int) -> None:
    """Serves it."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={uid},group_id={uid}".encode()
    if libc.mount(b"kept", str(folder).encode(), b"fuse", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, options):
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    try:
        with lifecycle.until_stopped():
            lifecycle.announce("ready")
            CopiedFile(device, file).serve()
    finally:
        unmount(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
