"""How much of the agent's time each user may take: who asks for more waits, and nobody else does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.processes import PROC, real_uid

# An honest process brings three libraries, of which each takes 20 to 60 ms to look at and to probe.
_MOST_S = 1.0  # at once
_PER_S = 0.25  # as time goes by
_MOST_OWNERS = 4096

Owner = tuple[int, int]
"""A user: real user id, and of root, who is another in each container, the namespace of its pids."""
NOBODY: Owner = (-1, 0)
"""Whose process has ended, and who has left files on the disk."""


@dataclass(slots=True)
class _Account:
    left_s: float
    since_s: float


class Shares:
    """What is left to each user, in seconds. One thread."""

    def __init__(self, *, most_s: float = _MOST_S, per_s: float = _PER_S, proc: Path = PROC) -> None:
        self._most_s, self._per_s, self._proc = most_s, per_s, proc
        self._accounts: dict[Owner, _Account] = {}

    def owner(self, pid: int) -> Owner:
        """Whose process it is."""
        uid = real_uid(pid, self._proc)
        if uid is None:
            return NOBODY
        return uid, self._namespace(pid) if uid == 0 else 0

    def has_some(self, owner: Owner, spent_s: float = 0.0) -> bool:
        """Whether something is left. spent_s: what is about to be taken."""
        return self._account(owner).left_s > spent_s

    def spend(self, owner: Owner, seconds: float) -> None:
        """Takes it from what is left, however little that is."""
        self._account(owner).left_s -= seconds

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

    def _namespace(self, pid: int) -> int:
        try:
            return (self._proc / str(pid) / "ns" / "pid").stat().st_ino
        except OSError:
            return 0
