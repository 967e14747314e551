"""The sandbox processes of a recording: their tasks, rights and limits."""

from __future__ import annotations

import codecs
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Set

from ingero.capture.foreign import memory_tasks, native_tasks
from ingero.capture.foreign.disk_files import SandboxedDiskFiles
from ingero.capture.foreign.memory_files import SandboxedMemoryFiles
from ingero.capture.foreign.native_reader import SandboxedNativeReader
from ingero.capture.foreign.root_files import SandboxedRootFiles
from ingero.capture.foreign.shares import UserShares
from ingero.capture.foreign.wait_files import SandboxedWaitFiles
from ingero.capture.libraries.library_readers import SandboxedLibraryReader
from ingero.capture.loop.heap import return_large_blocks
from ingero.decode.native.names import demangle
from ingero.discover import library_tasks, opener_tasks
from ingero.discover.entry_points import entry_points
from ingero.discover.python_layouts import supported_versions
from ingero.sandbox import rights
from ingero.sandbox.nursery import Nursery, ProcessKind, Task
from ingero.sandbox.process import SandboxedProcess, SpareProcess

OPENER, READER = "opener", "reader"
_IDLE_S = 10.0  # a reader takes 6 MB, and what it has read again is 20 ms
_OWN_IDLE_S = 0.5  # of the loop's, which is made in 2 ms where the other one is busy just then


def nursery() -> Nursery:
    """The process that forks the others. Enter it first: its children inherit what is open or mapped by then."""
    opener = ProcessKind(name="ingero-opener", tasks=opener_tasks.tasks, capabilities=rights.to_open())
    return Nursery({OPENER: opener, READER: ProcessKind(name="ingero-reader", tasks=_reader_tasks)}, prepare=_prepare)


def _prepare() -> None:
    """Loads all that readers would import later, when they may no longer read it; returns freed memory."""
    return_large_blocks()
    demangle("_Z1fv")
    entry_points()
    supported_versions()
    for name in ("ascii", "latin-1", "unicode_escape"):
        codecs.lookup(name)


def _reader_tasks() -> Mapping[str, Task]:
    return {**library_tasks.tasks(), **native_tasks.tasks(), **memory_tasks.tasks()}


class ForeignReaders:
    """The readers of foreign files and memory of a recording. Use as a context manager.

    makes: where the processes come from; None: of its own.
    libraries: for the thread that runs the loop. native: for those that resolve stacks and names; they wait longer, so
    that the loop has an opener and a reader of its own while theirs are busy.
    root_files: for the loop: who processes are. memory_files: what they were started with, and what they map. waits:
    what their threads wait for. disk: where libraries lie that no process has loaded yet.
    """

    def __init__(self, makes: Nursery | None = None) -> None:
        self._lock, self._drops = threading.Lock(), Counter[str]()
        self._own = None if makes else nursery()
        made_by = makes or self._own
        assert made_by
        self._made_by = made_by
        opener, reader, own_opener, own_reader, searcher = (
            SandboxedProcess(made_by, kind) for kind in (OPENER, READER, OPENER, READER, OPENER)
        )
        self._idle_s = {opener: _IDLE_S, reader: _IDLE_S}
        self._idle_s |= dict.fromkeys((own_opener, own_reader, searcher), _OWN_IDLE_S)
        self._spare = opens, reads = SpareProcess(opener, own_opener), SpareProcess(reader, own_reader)
        of_who_withholds = UserShares(namespace_of=self._namespace_of)
        self.memory_files = SandboxedMemoryFiles(opens, of_who_withholds, self._count)
        self.root_files = SandboxedRootFiles(opens, of_who_withholds, self._count)
        self.libraries = SandboxedLibraryReader(
            opens, reads, self.memory_files, UserShares(namespace_of=self._namespace_of), self._count
        )
        self.disk = SandboxedDiskFiles(searcher, self.memory_files, self._count)
        self.waits = SandboxedWaitFiles(self.memory_files)
        self.native = SandboxedNativeReader(opener, reader, self.memory_files, of_who_withholds, self._count)

    @property
    def pids(self) -> Set[int]:
        """The pids of all sandbox processes, ended ones too."""
        return self._made_by.pids

    def drops(self) -> dict[str, int]:
        """Reads that were given up since the last call, by counter."""
        with self._lock:
            drops, self._drops = self._drops, Counter()
        return dict(drops)

    def end_when(self, is_over: Callable[[], bool]) -> None:
        """Once `is_over` is true, answers for the loop are waited for 0.2 s at most."""
        for process in (*self._spare, self.libraries):
            process.is_over = is_over

    def rest(self) -> None:
        """Ends the processes that were idle for a while; call it now and then."""
        for process, seconds in self._idle_s.items():
            process.close_if_idle(seconds)

    def _namespace_of(self, pid: int) -> int:
        return self.memory_files.pid_namespace(pid)

    def _count(self, counter: str) -> None:
        with self._lock:
            self._drops[counter] += 1

    def __enter__(self) -> ForeignReaders:
        if self._own:
            self._own.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._idle_s:
            process.close_if_idle(0)  # who is asked just now is not waited for: the nursery ends it
        if self._own:
            self._own.__exit__()
