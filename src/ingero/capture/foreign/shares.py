"""How much of the agent's time each user may take: who asks for more waits, and nobody else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ingero.discover.memory_files import MemoryFiles
from ingero.discover.processes import PROC, real_uid
from ingero.sandbox.process import Killed

# An honest process brings three libraries, of which each takes 20 to 60 ms to look at and to probe.
_MOST_S = 1.0  # at once
_PER_S = 0.25  # as time goes by
_MOST_OWNERS = 4096
_MOST_KILLED = 8  # of the sandbox, 2 MB each: they stand in a file system that does not answer

Owner = tuple[int, int]
"""A user: real user id, and of root, who is another in each container, the namespace of its pids."""
NOBODY: Owner = (-1, 0)
"""Whose process has ended, and who has left files on the disk."""
WITHHOLDING: Owner = (0, -1)
"""Root, wherever it is, where its process does not even tell that."""


@dataclass(slots=True)
class _Account:
    left_s: float
    since_s: float
    killed: list[Killed] = field(default_factory=list)


class Shares:
    """What is left to each user, in seconds. May be asked by any thread.

    namespace_of: tells in which namespace of pids root is.
    """

    def __init__(
        self,
        *,
        most_s: float = _MOST_S,
        per_s: float = _PER_S,
        proc: Path = PROC,
        namespace_of: Callable[[int], int] | None = None,
    ) -> None:
        self._most_s, self._per_s, self._proc = most_s, per_s, proc
        self._namespace_of = namespace_of or MemoryFiles(proc).pid_namespace
        self._accounts: dict[Owner, _Account] = {}
        self._lock = threading.Lock()

    def owner(self, pid: int) -> Owner:
        """Whose process it is."""
        uid = real_uid(pid, self._proc)
        if uid is None:
            return NOBODY
        return uid, self._namespace_of(pid) if uid == 0 else 0

    def has_some(self, owner: Owner, spent_s: float = 0.0) -> bool:
        """Whether something is left, and few of those who asked still wait. spent_s: what is about to be taken."""
        with self._lock:
            account = self._account(owner)
            account.killed = [one for one in account.killed if not one.is_gone]
            return len(account.killed) < _MOST_KILLED and account.left_s > spent_s

    def spend(self, owner: Owner, seconds: float) -> None:
        """Takes it from what is left, however little that is."""
        with self._lock:
            self._account(owner).left_s -= seconds

    def hold(self, owner: Owner, killed: Killed | None) -> None:
        """A process that was asked because of this user and killed; until it has ended it counts as one that waits."""
        if killed:
            with self._lock:
                self._account(owner).killed.append(killed)

    def _account(self, owner: Owner) -> _Account:
        now_s = time.monotonic()
        if owner not in self._accounts:
            if len(self._accounts) >= _MOST_OWNERS:
                del self._accounts[next(iter(self._accounts))]
            self._accounts[owner] = _Account(self._most_s, now_s)
        account = self._accounts[owner]
        account.left_s = min(self._most_s, account.left_s + self._per_s * (now_s - account.since_s))
        account.since_s = now_s
        return account
