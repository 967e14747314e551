"""Who has a pipe open, at which end: looked for in /proc, in the processes that are near first, within bounds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.processes import PROC, list_pids
from ingero.discover.waiting import link_target, opened_for_writing

_MOST_CPU_S, _MOST_S = 0.25, 2.0  # of a search: 5,000 processes with 20 files each; on a busy machine it takes longer
_MOST_DESCRIPTORS = 4096  # of a process
_KEPT_S = 5.0
_PIPE = "pipe:["


@dataclass(frozen=True, slots=True)
class Ends:
    """The processes at both ends. is_complete: nobody else has it open; a file in flight over a socket is not seen."""

    readers: tuple[int, ...]
    writers: tuple[int, ...]
    is_complete: bool


class PipeEnds:
    """Finds the ends of pipes by their name. All open files are looked through at once, at most every five seconds."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._opened: dict[str, list[tuple[int, str]]] = defaultdict(list)  # process and descriptor, by name
        self._pids: set[int] = set()
        self._is_complete = False
        self._began_s = 0.0

    def find(self, target: str, near: Iterable[int]) -> Ends:
        """target: what a descriptor's link says: `pipe:[4711]`, or a FIFO's path. near: pids to look at first."""
        if not target.startswith(_PIPE) and target not in self._opened:
            self._forget()  # files were passed over
        for pid in near:
            self._look(pid, target)
        if not self._is_complete or target not in self._opened:
            self._look_through(target)
        sides = [
            (pid, is_writer)
            for pid, number in self._opened.get(target, ())
            if link_target(self._proc / str(pid) / "fd" / number) == target
            and (is_writer := opened_for_writing(self._proc / str(pid), number)) is not None
        ]
        readers, writers = ([pid for pid, side in sides if side is is_writer] for is_writer in (False, True))
        return Ends(tuple(dict.fromkeys(readers)), tuple(dict.fromkeys(writers)), is_complete=self._is_complete)

    def end_look(self) -> None:
        """Forgets what is old."""
        if time.monotonic() - self._began_s > _KEPT_S:
            self._forget()

    def _forget(self) -> None:
        self._opened.clear()
        self._pids.clear()
        self._is_complete = False

    def _look_through(self, target: str) -> None:
        cpu_until_s, until_s = time.thread_time() + _MOST_CPU_S, time.monotonic() + _MOST_S
        self._began_s = time.monotonic()
        for pid in list_pids(self._proc):
            if time.thread_time() > cpu_until_s or time.monotonic() > until_s:
                return
            self._look(pid, target)
        self._is_complete = True

    def _look(self, pid: int, wanted: str) -> None:
        if pid in self._pids:
            return
        self._pids.add(pid)
        folder = self._proc / str(pid) / "fd"
        try:
            numbers = [one.name for one, _ in zip(folder.iterdir(), range(_MOST_DESCRIPTORS), strict=False)]
        except OSError:
            return
        for number in numbers:
            target = link_target(folder / number)
            if target.startswith(_PIPE) or target == wanted:
                self._opened[target].append((pid, number))
