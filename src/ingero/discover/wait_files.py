"""What is asked of processes to know what their threads wait for, and who could end it; asked here and now.

Some of it the kernel tells only when an exec is over, or reads in memory whose lock the process may hold
(memory_files.py): a recording asks through the sandbox (capture/foreign/wait_files.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.discover import waiting
from ingero.discover.processes import PROC
from ingero.discover.waiting import Wait, link_target, read_wait

PIPE = "pipe:["
_MOST_DESCRIPTORS = 4096  # of a process


@dataclass(frozen=True, slots=True)
class Pipes:
    """found: process, descriptor and name of each pipe. missing: processes that did not answer. cpu_s: what it took."""

    found: list[tuple[int, str, str]]
    missing: frozenset[int] = frozenset()
    cpu_s: float = 0.0


class WaitFiles:
    """Nothing of it raises: what is not to be had is not there."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def waits(self, pid: int, tids: Sequence[int]) -> list[Wait | None]:
        """What threads of a process wait for, as `read_wait`."""
        return [read_wait(pid, tid, self._proc) for tid in tids]

    def pipes(self, pids: Sequence[int], wanted: str) -> Pipes:
        """The pipes that processes have open, and whatever else is called as is wanted."""
        began_s = time.thread_time()
        found = [one for pid in pids for one in self._pipes_of(pid, wanted)]
        return Pipes(found, cpu_s=time.thread_time() - began_s)

    def _pipes_of(self, pid: int, wanted: str) -> list[tuple[int, str, str]]:
        folder = self._proc / str(pid) / "fd"
        try:
            numbers = [one.name for one, _ in zip(folder.iterdir(), range(_MOST_DESCRIPTORS), strict=False)]
        except OSError:
            return []
        targets = [(number, link_target(folder / number)) for number in numbers]
        return [(pid, number, target) for number, target in targets if target.startswith(PIPE) or target == wanted]

    def sides(self, pid: int, numbers: Sequence[str]) -> list[tuple[str, bool | None]]:
        """What descriptors of a process are now, and whether they can write; None: they are gone."""
        folder = self._proc / str(pid)
        return [(link_target(folder / "fd" / one), waiting.opened_for_writing(folder, one)) for one in numbers]

    def folder(self, pid: int) -> str:
        """The folder that a process is in."""
        return link_target(self._proc / str(pid) / "cwd")

    def shared_memory(self, pid: int) -> tuple[int, int] | None:
        """As `waiting.shared_memory`."""
        return waiting.shared_memory(pid, self._proc)
