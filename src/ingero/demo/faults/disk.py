"""The fault of a busy disk: another process writes where the workload reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.demo.faults.model import FaultError, Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.faults.processes import disturbers

DATA_BYTES = 256 << 20
WRITERS = 10  # 160 requests of 256 KiB at once: a batch takes three steps or more
BATCH_BYTES = 1 << 20  # read and decoded in less than half a step of 6.5 ms, also where a disk is slow for a while


class IoStorm(Recipe):
    """Writers of 16 threads each fill the disk's queue, past the page cache, while workers read from it.

    `duty`: the share (0-1) of every half second in which they write.
    """

    def __init__(self, *, culprit: str = "writer", writers: int = WRITERS, duty: float = 1.0) -> None:
        self.culprit = culprit
        self.writers = writers
        self.duty = duty
        self._scratch: Path | None = None

    def requires(self) -> str | None:
        """A file system with direct I/O under the temporary directory."""
        return refuses_direct_io(Path(tempfile.gettempdir()))

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Write the data set; let workers read from it, past the page cache, with time to spare on a quiet disk."""
        reason = refuses_direct_io(scratch)
        if reason:
            raise FaultError(reason, hint="choose a scratch directory on a disk")
        self._scratch = scratch
        data = write_data(scratch, DATA_BYTES)
        yield WorkloadSetup(arguments=("--data", str(data), "--nbytes", str(BATCH_BYTES), "--cpu-ms", "0.5"))

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Run the writers; remove what they wrote."""
        del workload
        if self._scratch is None:
            raise FaultError("there is no data set to disturb", hint="start the workload as prepare() says")
        files = [self._scratch / f"storm.{number}" for number in range(self.writers)]
        try:
            arguments = [[str(file), str(100 * self.duty)] for file in files]
            with disturbers("writer", arguments, name=self.culprit) as writers:
                yield Injection(culprits=tuple(w.pid for w in writers))
        finally:
            for file in files:
                file.unlink(missing_ok=True)


def refuses_direct_io(folder: Path) -> str | None:
    """Return why files in this folder cannot be opened with O_DIRECT, None if they can."""
    probe = folder / f".direct-{os.getpid()}"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        return f"no direct I/O in {folder}: {error.strerror}"
    finally:
        probe.unlink(missing_ok=True)
    return None


def write_data(folder: Path, size_bytes: int) -> Path:
    """Return a file of random bytes that really lies on the disk, made once for each folder."""
    path = folder / f"data-{size_bytes}.bin"
    if not path.exists():
        block = os.urandom(1 << 20)
        with path.open("wb") as file:
            for _ in range(size_bytes // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return path


def evict(path: Path) -> None:
    """Drop a file from the page cache: cached pages stay charged to whoever read them first."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
