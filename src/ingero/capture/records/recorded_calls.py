"""Keeps a few recorded calls of the last second for display, each until its stack is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.capture.loop.clocks import WallClock
from ingero.capture.stacks.stack_frames import MergedStack
from ingero.discover import kernel_clock
from ingero.events import WAKER_KINDS
from ingero.foreign_text import decoded
from ingero.ops import BY_ID
from ingero.store.vocabulary import STATES

STACK_PATIENCE_NS = 1_000_000_000
_THREAD_WAKERS = 2  # wakers up to this number are threads and have a tid


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One recorded call. time_ns: of its return, unix. Names are empty if there is no such process.

    stack: frames as they are stored, innermost first; None where it is not known (in time). stack_note: why not, or
    what of it is missing. is_python_whole: no Python frame is missing.
    """

    time_ns: int
    name: str
    pid: int
    tid: int
    comm: str
    duration_ns: int
    states_ns: dict[str, int]
    culprit_pid: int
    culprit_name: str
    culprit_ns: int
    waker: str
    ret_code: int
    stack: list[dict[str, Any]] | None = None
    stack_note: str = ""
    is_python_whole: bool = True


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call to be shown, and when it came (CLOCK_MONOTONIC)."""

    call: RecordedCall
    stack_hash: int
    since_ns: int


class RecordedCalls:
    """Keeps the longest calls of each batch, up to `limit` between two calls of `take`.

    stack_of: the stack with a hash, None if it is not known (yet); must not wait for it.
    """

    def __init__(self, limit: int, clock: WallClock, stack_of: Callable[[int], MergedStack | None]) -> None:
        self._limit, self._clock, self._stack_of = limit, clock, stack_of
        self._kept: list[_PendingCall] = []
        self._left_out = 0

    def add(
        self,
        batch: np.ndarray[Any, Any],
        stack_hashes: Sequence[int],
        name_of_pid: Callable[[int], str],
        name_of_thread: Callable[[int], str],
    ) -> None:
        """Takes a batch of `struct call_record`; stack_hashes: of each, 0 where none was taken."""
        if not self._limit:
            return
        room = self._limit - len(self._kept)
        longest = np.sort(np.argsort(batch["duration_ns"])[::-1][:room])
        self._left_out += len(batch) - len(longest)
        now_ns = kernel_clock.monotonic_ns()
        for index in longest.tolist():
            call = self._call(batch[index], name_of_pid, name_of_thread)
            self._kept.append(_PendingCall(call, stack_hashes[index], now_ns))

    def take(self, *, is_last: bool = False) -> tuple[list[RecordedCall], int]:
        """The calls to be shown now, and how many were left out since the last call.

        Those whose stack is not known yet wait for it, but not for long; with is_last not at all.
        """
        taken: list[RecordedCall] = []
        kept: list[_PendingCall] = []
        now_ns = kernel_clock.monotonic_ns()
        for waiting in self._kept:
            stack = self._stack_of(waiting.stack_hash) if waiting.stack_hash else None
            if stack:
                frames, is_whole = json.loads(stack.frames), stack.is_python_whole
                taken.append(replace(waiting.call, stack=frames, stack_note=stack.note, is_python_whole=is_whole))
            elif is_last or not waiting.stack_hash or now_ns - waiting.since_ns >= STACK_PATIENCE_NS:
                note = "its stack is not known yet" if waiting.stack_hash else "no stack was taken"
                taken.append(replace(waiting.call, stack_note=note))
            else:
                kept.append(waiting)
        left_out, self._kept = self._left_out, kept
        self._left_out = 0
        return taken, left_out

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
            comm=decoded(record["comm"]),
            duration_ns=int(record["duration_ns"]),
            states_ns={clock: int(ns) for clock, ns in zip(STATES, record["state_ns"], strict=True) if ns},
            culprit_pid=culprit_pid,
            culprit_name=name_of_pid(culprit_pid) if culprit_pid else "",
            culprit_ns=int(record["culprit_ns"]),
            waker=name_of_thread(tid) if tid and 0 < kind <= _THREAD_WAKERS else WAKER_KINDS[kind] if kind else "",
            ret_code=int(record["ret"]),
        )
