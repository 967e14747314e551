"""Reads what threads of a process wait for, and which processes could end the wait.

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
_MAX_DESCRIPTORS = 4096  # of a process


@dataclass(frozen=True, slots=True)
class OpenPipes:
    """Open pipes. found: pid, descriptor and name of each. missing: pids that did not answer. cpu_s: the cost."""

    found: list[tuple[int, str, str]]
    missing: frozenset[int] = frozenset()
    cpu_s: float = 0.0


class WaitFiles:
    """Reads these files in this process. Never raises: unreadable items are missing."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def waits(self, pid: int, tids: Sequence[int]) -> list[Wait | None]:
        """What threads of a process wait for; see `read_wait`."""
        return [read_wait(pid, tid, self._proc) for tid in tids]

    def pipes(self, pids: Sequence[int], wanted: str) -> OpenPipes:
        """The pipes that processes have open, and other files named `wanted`."""
        began_s = time.thread_time()
        found = [one for pid in pids for one in self._pipes_of(pid, wanted)]
        return OpenPipes(found, cpu_s=time.thread_time() - began_s)

    def _pipes_of(self, pid: int, wanted: str) -> list[tuple[int, str, str]]:
        folder = self._proc / str(pid) / "fd"
        try:
            numbers = [one.name for one, _ in zip(folder.iterdir(), range(_MAX_DESCRIPTORS), strict=False)]
        except OSError:
            return []
        targets = [(number, link_target(folder / number)) for number in numbers]
        return [(pid, number, target) for number, target in targets if target.startswith(PIPE) or target == wanted]

    def sides(self, pid: int, numbers: Sequence[str]) -> list[tuple[str, bool | None]]:
        """What descriptors of a process refer to now, and whether they are writable; None: closed."""
        folder = self._proc / str(pid)
        return [(link_target(folder / "fd" / one), waiting.opened_for_writing(folder, one)) for one in numbers]

    def folder(self, pid: int) -> str:
        """The current folder of a process."""
        return link_target(self._proc / str(pid) / "cwd")

    def shared_memory(self, pid: int) -> tuple[int, int] | None:
        """Size and free bytes of /dev/shm of a process; see `waiting.shared_memory`."""
        return waiting.shared_memory(pid, self._proc)
