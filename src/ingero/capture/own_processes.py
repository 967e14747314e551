"""The processes that read foreign files for the agent: what they take of a CPU, the agent answers for."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = "ingero-"  # how all of theirs begin; who else is called so is not in their session
_MOST = 1024  # that have ended, too, are remembered


class OwnProcesses:
    """Tells them by their session, which is the nursery's. session: its id; 0 where there is none."""

    def __init__(self, session: int = 0) -> None:
        self.session = session
        self._pids: set[int] = set()

    def owner(self, pid: int, name: str) -> int:
        """The agent's pid for one of its own, else the pid itself. name: of its thread."""
        if not name.startswith(_NAMES) or not (pid in self._pids or self._is_own(pid)):
            return pid
        return os.getpid()

    def owners(self, pids: Array) -> Array:
        """The same for many at once, of those that `owner` has met."""
        if not self._pids:
            return pids
        found: Array = np.where(np.isin(pids, list(self._pids)), os.getpid(), pids)
        return found

    def _is_own(self, pid: int) -> bool:
        try:
            is_own = self.session > 0 and os.getsid(pid) == self.session
        except ProcessLookupError:  # it has just ended
            return False
        if is_own:
            if len(self._pids) >= _MOST:
                self._pids.clear()
            self._pids.add(pid)
        return is_own
