"""`ingero` whose recordings read what is foreign in their own process: to compare with, and for nothing else.

Whatever the files and processes of others make it do, it does with the agent's rights (docs/adr/0053).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from ingero.capture.foreign import readers
from ingero.capture.foreign.native_reader import NativeReader
from ingero.cli.main import main
from ingero.discover.disk_files import DiskFiles
from ingero.discover.library_reader import LibraryReader
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.rooted import RootFiles
from ingero.discover.wait_files import WaitFiles


class HereAndNow:
    """In place of `ForeignReaders`."""

    def __init__(self, makes: object) -> None:
        del makes
        self.libraries, self.native = LibraryReader(), NativeReader()
        self.root_files, self.memory_files, self.waits = RootFiles(), MemoryFiles(), WaitFiles()
        self.disk = DiskFiles()
        self.pids: frozenset[int] = frozenset()

    def drops(self) -> dict[str, int]:
        """None."""
        return {}

    def end_when(self, is_over: object) -> None:
        """Does nothing: there are no reader processes to end."""

    def rest(self) -> None:
        """There is nothing to end."""

    def __enter__(self) -> HereAndNow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def _no_nursery() -> AbstractContextManager[Any]:
    return nullcontext()


if __name__ == "__main__":
    readers.ForeignReaders, readers.nursery = HereAndNow, _no_nursery  # type: ignore[misc, assignment]  # for this bench
    main()
