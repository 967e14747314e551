"""The processes that read foreign files for the agent: what they take of a CPU, the agent answers for."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = "ingero-"  # how all of theirs begin: a pid may be somebody else's when its process has ended


class OwnProcesses:
    """pids: of those there are, and of those that have ended."""

    def __init__(self, pids: Callable[[], Set[int]] = frozenset) -> None:
        self._pids = pids

    def owner(self, pid: int, name: str) -> int:
        """The agent's pid for one of its own, else the pid itself. name: of its thread."""
        return os.getpid() if pid in self._pids() and name.startswith(_NAMES) else pid

    def owners(self, pids: Array) -> Array:
        """The same for many at once, of which no names are known."""
        found: Array = np.where(np.isin(pids, list(self._pids())), os.getpid(), pids)
        return found
