"""Shares of the agent's time by user, so that a process that answers slowly delays only its own user."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ingero.discover.memory_files import MemoryFiles
from ingero.discover.processes import PROC, real_uid
from ingero.sandbox.process import KilledProcess

# An honest process brings three libraries, of which each takes 20 to 60 ms to look at and to probe.
_MAX_S = 1.0  # at once
_PER_S = 0.25  # as time goes by
_MAX_OWNERS = 4096
_MAX_KILLED = 8  # of the sandbox, 2 MB each: they stand in a file system that does not answer

Owner = tuple[int, int]
"""A user: real user id, and of root, who is another in each container, the namespace of its pids."""
NOBODY: Owner = (-1, 0)
"""Whose process has ended, and who has left files on the disk."""
WITHHOLDING: Owner = (0, -1)
"""Root, wherever it is, where its process does not even tell that."""


@dataclass(slots=True)
class _UserShare:
    left_s: float
    since_s: float
    killed: list[KilledProcess] = field(default_factory=list)


class UserShares:
    """Seconds of the agent's time left to each user. May be used by any thread.

    namespace_of: tells in which namespace of pids root is.
    """

    def __init__(
        self,
        *,
        most_s: float = _MAX_S,
        per_s: float = _PER_S,
        proc: Path = PROC,
        namespace_of: Callable[[int], int] | None = None,
    ) -> None:
        self._most_s, self._per_s, self._proc = most_s, per_s, proc
        self._namespace_of = namespace_of or MemoryFiles(proc).pid_namespace
        self._shares: dict[Owner, _UserShare] = {}
        self._lock = threading.Lock()

    def owner(self, pid: int) -> Owner:
        """The owner of a process."""
        uid = real_uid(pid, self._proc)
        if uid is None:
            return NOBODY
        return uid, self._namespace_of(pid) if uid == 0 else 0

    def has_some(self, owner: Owner, spent_s: float = 0.0) -> bool:
        """Whether the owner has time left, and few of its requests still wait. spent_s: about to be spent."""
        with self._lock:
            share = self._share(owner)
            share.killed = [one for one in share.killed if not one.is_gone]
            return len(share.killed) < _MAX_KILLED and share.left_s > spent_s

    def spend(self, owner: Owner, seconds: float) -> None:
        """Subtracts it from what is left, however little that is."""
        with self._lock:
            self._share(owner).left_s -= seconds

    def hold(self, owner: Owner, killed: KilledProcess | None) -> None:
        """Notes a process killed because of this owner; until it has ended it counts as a waiting request."""
        if killed:
            with self._lock:
                self._share(owner).killed.append(killed)

    def _share(self, owner: Owner) -> _UserShare:
        now_s = time.monotonic()
        if owner not in self._shares:
            if len(self._shares) >= _MAX_OWNERS:
                del self._shares[next(iter(self._shares))]
            self._shares[owner] = _UserShare(self._most_s, now_s)
        share = self._shares[owner]
        share.left_s = min(self._most_s, share.left_s + self._per_s * (now_s - share.since_s))
        share.since_s = now_s
        return share
