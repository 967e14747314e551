"""The processes of the sandbox that a recording uses: what they do, and what they may."""

from __future__ import annotations

import codecs
import threading
from collections import Counter
from collections.abc import Mapping, Set

from ingero.capture import native_tasks
from ingero.capture.library_processes import LibraryProcesses
from ingero.capture.native_reader import SandboxedNativeReader
from ingero.capture.root_files import SandboxedRootFiles
from ingero.capture.shares import Shares
from ingero.decode.native.names import demangle
from ingero.discover import library_tasks, opener_tasks
from ingero.discover.entry_points import entry_points
from ingero.sandbox import rights
from ingero.sandbox.nursery import Kind, Nursery, Task
from ingero.sandbox.process import SandboxedProcess

OPENER, READER = "opener", "reader"
_IDLE_S = 10.0  # a reader takes 8 MB, and what it has read again is 20 ms


def nursery() -> Nursery:
    """To be entered before anything else: what is open or mapped by then is shared with all that come from it."""
    opener = Kind(name="ingero-opener", tasks=opener_tasks.tasks, capabilities=rights.to_open())
    return Nursery({OPENER: opener, READER: Kind(name="ingero-reader", tasks=_reader_tasks)}, prepare=_prepare)


def _prepare() -> None:
    """All that readers load when it is first used: nobody may not find it, or not read it."""
    demangle("_Z1fv")
    entry_points()
    for name in ("ascii", "latin-1", "unicode_escape"):
        codecs.lookup(name)


def _reader_tasks() -> Mapping[str, Task]:
    return {**library_tasks.tasks(), **native_tasks.tasks()}


class Foreign:
    """Who reads what for a recording. Use as a context manager.

    makes: where the processes come from; None: of its own.
    libraries: for the thread that runs the loop. native: for those that resolve stacks and names; they wait longer.
    root_files: for the loop: who processes are.
    """

    def __init__(self, makes: Nursery | None = None) -> None:
        self._lock, self._lost = threading.Lock(), Counter[str]()
        self._own = None if makes else nursery()
        made_by = makes or self._own
        assert made_by
        self._made_by = made_by
        opener = SandboxedProcess(made_by, OPENER)  # for all: it answers within half a second, or not at all
        loops, others = SandboxedProcess(made_by, READER), SandboxedProcess(made_by, READER)
        self._processes = [opener, loops, others]
        self.libraries = LibraryProcesses(opener, loops, Shares(), self._count)
        self.native = SandboxedNativeReader(opener, others, self._count)
        self.root_files = SandboxedRootFiles(opener, self._count)

    @property
    def pids(self) -> Set[int]:
        """Of the processes that read, also of those that have ended."""
        return self._made_by.pids

    def drops(self) -> dict[str, int]:
        """What was given up since the last time, by counter."""
        with self._lock:
            lost, self._lost = self._lost, Counter()
        return dict(lost)

    def rest(self) -> None:
        """Ends the processes that nobody has asked for a while; to be called now and then."""
        for one in self._processes:
            one.close_if_idle(_IDLE_S)

    def _count(self, counter: str) -> None:
        with self._lock:
            self._lost[counter] += 1

    def __enter__(self) -> Foreign:
        if self._own:
            self._own.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._processes:
            one.close()
        if self._own:
            self._own.__exit__()
