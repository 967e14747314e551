"""Finds the processes at the ends of a pipe in /proc, nearby processes first, within time limits."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.processes import PROC, list_pids
from ingero.discover.wait_files import PIPE, OpenPipes, WaitFiles

_MAX_CPU_S, _MAX_S = 0.25, 2.0  # of a search: 5,000 processes with 20 files each; on a busy machine it takes longer
_AT_ONCE = 256  # processes
_KEPT_S = 5.0


@dataclass(frozen=True, slots=True)
class PipeUsers:
    """The processes at both ends of a pipe. is_complete: no other has it open; descriptors in flight are not seen."""

    readers: tuple[int, ...]
    writers: tuple[int, ...]
    is_complete: bool


class PipeEnds:
    """Finds the ends of pipes by name. All open files are scanned at once, at most every five seconds."""

    def __init__(self, proc: Path = PROC, files: WaitFiles | None = None) -> None:
        self._proc, self._files = proc, files or WaitFiles(proc)
        self._opened: dict[str, list[tuple[int, str]]] = defaultdict(list)  # process and descriptor, by name
        self._pids: set[int] = set()
        self._is_complete = False
        self._began_s = 0.0

    def find(self, target: str, near: Iterable[int]) -> PipeUsers:
        """The users of a pipe. target: a link: `pipe:[4711]`, or a FIFO's path. near: pids to try first."""
        if not target.startswith(PIPE) and target not in self._opened:
            self._forget()  # files were passed over
        self._search(near, target)
        if not self._is_complete or target not in self._opened:
            self._search_all(target)
        numbers: dict[int, list[str]] = defaultdict(list)
        for pid, number in self._opened.get(target, ()):
            numbers[pid].append(number)
        sides = [
            (pid, is_writer)
            for pid, mine in numbers.items()
            for name, is_writer in self._files.sides(pid, mine)
            if name == target and is_writer is not None
        ]
        readers, writers = ([pid for pid, side in sides if side is is_writer] for is_writer in (False, True))
        return PipeUsers(tuple(dict.fromkeys(readers)), tuple(dict.fromkeys(writers)), is_complete=self._is_complete)

    def end_pass(self) -> None:
        """Forgets old results at the end of a pass."""
        if time.monotonic() - self._began_s > _KEPT_S:
            self._forget()

    def _forget(self) -> None:
        self._opened.clear()
        self._pids.clear()
        self._is_complete = False

    def _search_all(self, target: str) -> None:
        until_s = time.monotonic() + _MAX_S
        cpu_s = 0.0
        self._began_s = time.monotonic()
        pids = list_pids(self._proc)
        is_whole = True
        for begin in range(0, len(pids), _AT_ONCE):
            if cpu_s > _MAX_CPU_S or time.monotonic() > until_s:
                return
            searched = self._search(pids[begin : begin + _AT_ONCE], target)
            cpu_s += searched.cpu_s
            is_whole = is_whole and not searched.missing
        self._is_complete = is_whole

    def _search(self, pids: Iterable[int], wanted: str) -> OpenPipes:
        new = [pid for pid in pids if pid not in self._pids]
        found = self._files.pipes(new, wanted)
        self._pids.update(set(new) - found.missing)
        for pid, number, target in found.found:
            self._opened[target].append((pid, number))
        return found
