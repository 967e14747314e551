"""Counts the CPU time of the sandbox processes as the agent's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = "ingero-"  # how all of theirs begin: a pid may be somebody else's when its process has ended


class OwnProcesses:
    """Maps the pids of sandbox processes to the agent. pids: of living and of ended ones."""

    def __init__(self, pids: Callable[[], Set[int]] = frozenset) -> None:
        self._pids = pids

    def owner(self, pid: int, name: str) -> int:
        """The agent's pid for a sandbox process, else the pid itself. name: of its thread."""
        return os.getpid() if pid in self._pids() and name.startswith(_NAMES) else pid

    def owners(self, pids: Array) -> Array:
        """`owner` of many pids at once, whose names are not known."""
        found: Array = np.where(np.isin(pids, list(self._pids())), os.getpid(), pids)
        return found
