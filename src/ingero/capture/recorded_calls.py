"""Keeps a few of the recorded calls of the last second, to be shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.capture.clocks import WallClock
from ingero.events import WAKER_KINDS
from ingero.ops import BY_ID
from ingero.store.vocabulary import CLOCKS

_THREAD_WAKERS = 2  # wakers up to this number are threads and have a tid


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call that got a record. time_ns: of its return, unix. Names are empty where there is nobody."""

    time_ns: int
    name: str
    pid: int
    tid: int
    comm: str
    duration_ns: int
    clocks_ns: dict[str, int]
    culprit_pid: int
    culprit_name: str
    culprit_ns: int
    waker: str
    ret_code: int


class RecordedCalls:
    """The longest calls of each batch, `limit` between two calls of `take`."""

    def __init__(self, limit: int, clock: WallClock) -> None:
        self._limit, self._clock = limit, clock
        self._kept: list[RecordedCall] = []
        self._left_out = 0

    def add(
        self, batch: np.ndarray[Any, Any], name_of_pid: Callable[[int], str], name_of_thread: Callable[[int], str]
    ) -> None:
        """Takes a batch of `struct call_record`."""
        if not self._limit:
            return
        room = self._limit - len(self._kept)
        longest = np.sort(np.argsort(batch["duration_ns"])[::-1][:room])
        self._left_out += len(batch) - len(longest)
        for record in batch[longest]:
            self._kept.append(self._call(record, name_of_pid, name_of_thread))

    def take(self) -> tuple[list[RecordedCall], int]:
        """The calls kept since the last time, and how many were left out."""
        taken, self._kept = (self._kept, self._left_out), []
        self._left_out = 0
        return taken

    def _call(
        self, record: np.void, name_of_pid: Callable[[int], str], name_of_thread: Callable[[int], str]
    ) -> RecordedCall:
        kind, tid = int(record["waker_kind"]), int(record["waker_tid"])
        op = BY_ID.get(int(record["op"]))
        culprit_pid = int(record["culprit_pid"])
        return RecordedCall(
            time_ns=self._clock.unix_ns_of(int(record["start_ns"]) + int(record["duration_ns"])),
            name=op.name if op else "",
            pid=int(record["pid"]),
            tid=int(record["tid"]),
            comm=record["comm"].decode(errors="replace"),
            duration_ns=int(record["duration_ns"]),
            clocks_ns={clock: int(ns) for clock, ns in zip(CLOCKS, record["clock_ns"], strict=True) if ns},
            culprit_pid=culprit_pid,
            culprit_name=name_of_pid(culprit_pid) if culprit_pid else "",
            culprit_ns=int(record["culprit_ns"]),
            waker=name_of_thread(tid) if tid and 0 < kind <= _THREAD_WAKERS else WAKER_KINDS[kind] if kind else "",
            ret_code=int(record["ret"]),
        )
