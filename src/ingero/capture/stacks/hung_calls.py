"""Reads stacks of calls that have been in flight so long that they may never return.

Such a call's stack is read from outside, between two looks at the threads; it counts only if the second one finds the
same call still open: then all that was read is of that call.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ingero.capture.stacks.blocked_threads import InFlightCall, NotBlockedError, in_flight_call_stack
from ingero.capture.stacks.process_stacks import ProcessStacks
from ingero.capture.stacks.stack_frames import MergedStack, stack_row
from ingero.discover import kernel_clock
from ingero.store.writing.tables import Row

logger = logging.getLogger(__name__)

HUNG_NS = 2_000_000_000  # in flight for longer (docs/adr/0019-lines-of-code.md)
_HASH_BYTES = 8
_HASH_MASK = (1 << 63) - 1
_MAX_CALLS = 4096

_Key = tuple[int, int, int]
"""Thread, when its call began, process number."""


@dataclass(frozen=True, slots=True)
class _ReadStack:
    stack: MergedStack
    read_ns: int  # CLOCK_MONOTONIC, when the last of it was read


@dataclass(frozen=True, slots=True)
class _StoredStack:
    stack_hash: int
    read_ns: int  # as in _ReadStack


class HungCalls:
    """Reads the stacks of hung calls on another thread.

    do: has something done there. process_of: the stacks of a process by its number; called there. store: takes rows of
    `raw_stacks`.
    """

    def __init__(
        self,
        do: Callable[[Callable[[], None]], None],
        process_of: Callable[[int], ProcessStacks | None],
        store: Callable[[Sequence[Row]], object],
    ) -> None:
        self._do, self._process_of, self._store = do, process_of, store
        self._found: dict[_Key, _ReadStack] = {}
        self._stored: dict[_Key, _StoredStack] = {}

    def stack_of(self, number: int, thread: Any) -> int:
        """The hash of the stack of a thread's call in flight (`struct thread_dump`); 0 until known."""
        key = int(thread["tid"]), int(thread["call_start_ns"]), number
        if int(thread["now_ns"]) - key[1] < HUNG_NS:
            return 0
        if key not in self._stored:
            found = self._found.pop(key, None)
            if found is None or found.read_ns > int(thread["now_ns"]):
                self._do(partial(self._read, key, _in_flight_call(thread)))
                return 0
            self._keep(key, found)
        return self._stored[key].stack_hash

    def of_returned(self, batch: np.ndarray[Any, Any], numbers: Sequence[int], hashes: Sequence[int]) -> list[int]:
        """The stack hashes of recorded calls; of the stack read in flight where there is one.

        A read is of the call that was open on its thread all the while: the thread did not run meanwhile.
        """
        chosen = list(hashes)
        for index in np.flatnonzero(batch["duration_ns"] >= HUNG_NS).tolist():
            begin_ns = int(batch["start_ns"][index])
            end_ns = begin_ns + int(batch["duration_ns"][index])
            thread = int(batch["tid"][index]), numbers[index]
            for key in [key for key in (*self._stored, *list(self._found)) if (key[0], key[2]) == thread]:
                read = self._stored.get(key) or self._found.get(key)  # another thread fills, and may clear it
                if read and begin_ns <= read.read_ns <= end_ns:
                    chosen[index] = self._kept(key, read)
        return chosen

    def _kept(self, key: _Key, read: _StoredStack | _ReadStack) -> int:
        if isinstance(read, _ReadStack):
            self._keep(key, read)
            self._found.pop(key, None)
        return self._stored[key].stack_hash

    def _keep(self, key: _Key, found: _ReadStack) -> None:
        if len(self._stored) >= _MAX_CALLS:
            del self._stored[next(iter(self._stored))]
        stack, stack_hash = found.stack, content_hash(key[2], found.stack)
        self._stored[key] = _StoredStack(stack_hash, found.read_ns)
        self._store(stack_row(stack_hash, stack, key[2]))

    def _read(self, key: _Key, call: InFlightCall) -> None:
        process = self._process_of(key[2])
        if process is None or not process.pid:
            return
        try:
            stack = in_flight_call_stack(call, process)
        except (NotBlockedError, OSError) as error:  # read again in a second, if it is still there
            logger.info("cannot read the stack of thread %d: %s", call.tid, error)
            return
        if len(self._found) >= _MAX_CALLS:
            self._found.clear()
        self._found[key] = _ReadStack(stack, kernel_clock.monotonic_ns())


def _in_flight_call(thread: Any) -> InFlightCall:
    return InFlightCall(
        pid=int(thread["pid"]),
        tid=int(thread["tid"]),
        thread_pointer=int(thread["thread_pointer"]),
        sp=int(thread["call_sp"]),
        caller=int(thread["call_caller"]),
    )


def content_hash(number: int, stack: MergedStack) -> int:
    """The hash under which a stack read from outside is stored. number: of the process. Never 0."""
    content = f"{number}\0{stack.ips}\0{stack.frames}\0{stack.note}".encode()
    digest = hashlib.blake2b(content, digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "little") & _HASH_MASK or 1
