"""Samples stacks of threads that sleep outside traced calls, several times a second.

Mostly the kernel side has walked their frames as they went to sleep. Of others they are read from outside: a sleep is
known by how often its thread has been switched, and what is read counts only if that number is the same afterwards; a
thread that goes on sleeping is not read again. Every thread that is chosen gives a sample, if need be one whose place
is not known: else short sleeps would seem to be none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.capture.stacks.hung_calls import content_hash
from ingero.capture.stacks.process_stacks import ProcessStacks
from ingero.capture.stacks.stack_frames import PythonFrame, merge, stack_row
from ingero.foreign_text import decoded
from ingero.store.writing.tables import Row

TICK_S = 0.25
PLACES = 16  # threads per tick: a read takes the agent 0.5 ms and more
GPU_PLACES = 12  # of them at most for threads that have made traced calls
_FORGET_TICKS = 40  # a thread without Python frames is read again so much later
_MAX_STORED = 1 << 14

_Key = tuple[int, int]
"""Process number, thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedSample:
    """One sample of a sleeping thread (CLOCK_MONOTONIC). state: an index of thread_states.

    stack_hash: of what was read from outside, python_stack: the kernel side's, of its walk; both 0: not known.
    """

    time_ns: int
    process: int
    pid: int
    tid: int
    comm: str
    state: int
    weight_ns: int
    stack_hash: int
    python_stack: int


@dataclass(frozen=True, slots=True)
class _LastRead:
    """The stack found in the sleep after this many context switches. stack_hash None: no Python frames."""

    switches: int
    stack_hash: int | None
    tick: int


class BlockedSampler:
    """Chooses sleeping threads and reads their stacks.

    process_of: number and stacks of the process with this pid; None: it is not traced, or nothing is known of it yet.
    store: takes rows of `raw_stacks`.
    """

    def __init__(
        self,
        process_of: Callable[[int], tuple[int, ProcessStacks] | None],
        dtype: np.dtype[Any],
        store: Callable[[Sequence[Row]], object],
    ) -> None:
        self._process_of, self._dtype, self._store = process_of, dtype, store
        self._read: dict[_Key, _LastRead] = {}
        self._stored: dict[int, None] = {}
        self._tick = 0

    def sample(self, dump: bytes, elapsed_ns: int, *, only: Set[int] | None = None) -> list[BlockedSample]:
        """Samples of the threads that the kernel side found asleep (`struct parked_thread`), for the time since.

        only: of the processes with these numbers.
        """
        self._tick += 1
        threads = np.frombuffer(dump, self._dtype)
        found = {pid: self._process_of(pid) for pid in set(threads["pid"].tolist())}
        known = {pid: one for pid, one in found.items() if one and (only is None or one[0] in only)}
        with_process = [(one, *known[int(one["pid"])]) for one in threads if int(one["pid"]) in known]
        candidates = [one for one in with_process if self._may_have_frames(*one)]
        samples: list[BlockedSample] = []
        places = list(chosen([one for one, _, _ in candidates], self._tick))
        unread = self._read_anew([candidates[index] for index, _ in places])
        for index, weight in places:
            thread, number, _ = candidates[index]
            key = number, int(thread["tid"])
            stack_hash = 0 if thread["is_looked_at"] or key in unread else self._read[key].stack_hash
            if stack_hash is not None:
                samples.append(_sample(thread, number, round(weight * elapsed_ns), stack_hash))
        self._forget({(number, int(one["tid"])) for one, number, _ in with_process})
        return samples

    def _may_have_frames(self, thread: Any, number: int, process: ProcessStacks) -> bool:
        if process.interpreter is None:
            return False
        if thread["is_looked_at"]:
            return bool(thread["python_stack"])
        last = self._read.get((number, int(thread["tid"])))
        return last is None or last.stack_hash is not None or self._tick - last.tick >= _FORGET_TICKS

    def _read_anew(self, threads: Sequence[tuple[Any, int, ProcessStacks]]) -> set[_Key]:
        """Reads threads that are in another sleep than at the last reading; returns which could not be read."""
        wanted: dict[int, list[Any]] = defaultdict(list)
        processes = {number: process for _, number, process in threads}
        for thread, number, _ in threads:
            last = self._read.get((number, int(thread["tid"])))
            is_known = last and last.stack_hash is not None and last.switches == int(thread["switches"])
            if not thread["is_looked_at"] and not is_known:
                wanted[number].append(thread)
        unread: set[_Key] = set()
        for number, mine in wanted.items():
            for thread, frames in zip(mine, self._frames(mine, processes[number]), strict=True):
                key = number, int(thread["tid"])
                if frames is None:
                    unread.add(key)
                    continue
                stack_hash = self._keep(number, processes[number], frames) if frames else None
                self._read[key] = _LastRead(int(thread["switches"]), stack_hash, self._tick)
        return unread

    def _frames(self, threads: Sequence[Any], process: ProcessStacks) -> list[list[PythonFrame] | None]:
        """The Python frames of threads of one process; None: not readable, or the thread ran meanwhile."""
        assert process.interpreter is not None
        pointers, tids = ([int(one[name]) for one in threads] for name in ("thread_pointer", "tid"))
        try:
            walked = process.memory.frames(process.pid, process.layout, process.interpreter.version, pointers)
            positions = process.memory.positions(process.pid, tids)
        except OSError:  # gone, or it does not answer
            return [None] * len(threads)
        return [
            [PythonFrame(frame.file, frame.line, frame.function) for frame in frames]
            if not isinstance(frames, str)
            and position
            and position.is_blocked
            and position.switches == int(thread["switches"])
            else None
            for thread, frames, position in zip(threads, walked, positions, strict=True)
        ]

    def _keep(self, number: int, process: ProcessStacks, frames: Sequence[PythonFrame]) -> int:
        stack = merge(None, frames, process.interpreter.file if process.interpreter else "")
        found = content_hash(number, stack)
        if found not in self._stored:
            if len(self._stored) >= _MAX_STORED:
                del self._stored[next(iter(self._stored))]
            self._stored[found] = None
            self._store(stack_row(found, stack, number))
        return found

    def _forget(self, asleep: set[_Key]) -> None:
        """Forgets threads that are awake or gone."""
        self._read = {
            key: one
            for key, one in self._read.items()
            if (one.stack_hash is not None and key in asleep)
            or (one.stack_hash is None and self._tick - one.tick < _FORGET_TICKS)
        }


def chosen(threads: Sequence[Any], tick: int) -> Iterator[tuple[int, float]]:
    """(index, how many threads it stands for) of the threads to sample.

    Threads that made traced calls come first, then other main threads, then the rest; where there are more than places,
    they take turns.
    """
    ranks: tuple[list[int], list[int], list[int]] = ([], [], [])
    for index, thread in enumerate(threads):
        ranks[0 if thread["hits"] else 1 if thread["tid"] == thread["pid"] else 2].append(index)
    yield from _turns(ranks[0], GPU_PLACES, tick)
    left = PLACES - min(len(ranks[0]), GPU_PLACES)
    rest_places = max(left - len(ranks[1]), left // 4) if ranks[2] else 0
    yield from _turns(ranks[1], left - rest_places, tick)
    yield from _turns(ranks[2], rest_places, tick)


def _turns(indexes: Sequence[int], places: int, tick: int) -> Iterator[tuple[int, float]]:
    count = min(len(indexes), places)
    for turn in range(count):
        yield indexes[(tick * places + turn) % len(indexes)], len(indexes) / count


def _sample(thread: Any, number: int, weight_ns: int, stack_hash: int) -> BlockedSample:
    return BlockedSample(
        time_ns=int(thread["now_ns"]),
        process=number,
        pid=int(thread["pid"]),
        tid=int(thread["tid"]),
        comm=decoded(thread["comm"]),
        state=int(thread["state"]),
        weight_ns=weight_ns,
        stack_hash=stack_hash,
        python_stack=int(thread["python_stack"]),
    )
