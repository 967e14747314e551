"""Waiters of a thread: sleeps that another thread of the process ended, and the line where the sleeper was.

Autograd's and NCCL's threads have no Python frames, or a compiler's; the line that a person can change is that of the
thread that waits for them. It counts only where three facts meet: the sleep spans the call, the calling thread ended
the sleep, and the sleeper was sampled in that very sleep.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ingero.events import WAKER_KINDS
from ingero.store.call_stacks import StackBook
from ingero.store.reader import Reader
from ingero.store.records import StackTime, Window
from ingero.units import format_count

_WAKER_THREAD = WAKER_KINDS.index("thread")
_MAX_CALLS = 500_000  # checked one by one, in a second
_LONGEST_SLEEP_NS = 600 * 1_000_000_000  # longest sleep that begins before the window and is still found
_SLEEPS = (
    "SELECT start_ns, woken_ns, pid, tid, waker_tid FROM raw_offcpu WHERE start_ns >= :begin - :before "
    "AND start_ns < :end AND process = :process AND waker_kind = :kind AND waker_pid = pid AND waker_tid <> tid "
    "AND woken_ns > :begin ORDER BY start_ns"
)
_SAMPLES = (
    "SELECT time_ns, tid, stack_hash FROM raw_stack_samples "
    "WHERE time_ns >= :begin - :before AND time_ns < :end + :before "
    "AND process = :process AND stack_hash <> 0 AND state <> (SELECT id FROM thread_states WHERE name = 'run') "
    "ORDER BY time_ns"
)
_CALLS = (
    "SELECT source, op, stack_hash, tid, start_ns, start_ns + duration_ns FROM raw_events "
    "WHERE start_ns >= :begin AND start_ns < :end AND process = :process AND stack_hash IN ({}) "
    "AND tid IN ({})"
)


@dataclass(frozen=True, slots=True)
class Waiter:
    """A thread that slept until another woke it, and the hash of the stack that it had meanwhile."""

    pid: int
    tid: int
    stack_hash: int

    @property
    def thread(self) -> str:
        """The thread as texts name it, `pid/tid`."""
        return f"{self.pid}/{self.tid}"


@dataclass(frozen=True, slots=True)
class WaitedCalls:
    """Recorded calls of one operation from one stack that another thread waited for at one line."""

    source: int
    op: int
    stack_hash: int
    waiter: Waiter
    count: int
    sum_ns: int


@dataclass(frozen=True, slots=True)
class PlacedTime:
    """Recorded calls of one operation with one stack. waiter: the thread whose line they have, or None."""

    time: StackTime
    waiter: Waiter | None = None


@dataclass(slots=True)
class _Sleeps:
    """Sleeps of one thread that one other thread ended, in order."""

    begins_ns: list[int] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)

    def at(self, begin_ns: int, end_ns: int) -> Waiter | None:
        index = bisect_right(self.begins_ns, begin_ns) - 1
        return self.waiters[index] if index >= 0 and end_ns <= self.ends_ns[index] else None


class Waiters:
    """The sleeps of one process in a window during which the sleeper was sampled."""

    def __init__(self, reader: Reader, window: Window, *, process: int) -> None:
        self._reader = reader
        self._values = {
            "begin": window.begin_ns, "end": window.end_ns, "before": _LONGEST_SLEEP_NS, "process": process,
        }  # fmt: skip

    def of(self, tid: int, begin_ns: int, end_ns: int) -> Waiter | None:
        """The thread that waited for this one during a whole call; None where none is known, or several did."""
        found = [one for sleeps in self._sleeps.get(tid, {}).values() if (one := sleeps.at(begin_ns, end_ns))]
        return found[0] if len(found) == 1 else None

    def calls(self, stack_hashes: Collection[int]) -> list[WaitedCalls]:
        """The recorded calls with one of these stacks that another thread waited for."""
        sums: dict[tuple[int, int, int, Waiter], list[int]] = defaultdict(lambda: [0, 0])
        for source, op, stack_hash, tid, begin_ns, end_ns in self._calls(stack_hashes) if self._sleeps else ():
            waiter = self.of(tid, begin_ns, end_ns)
            if waiter:
                total = sums[source, op, stack_hash, waiter]
                total[0] += 1
                total[1] += end_ns - begin_ns
        return [WaitedCalls(*key, count, sum_ns) for key, (count, sum_ns) in sums.items()]

    def placed(self, times: Sequence[StackTime], book: StackBook) -> tuple[list[PlacedTime], str]:
        """Recorded calls of the process, most time first; those without the user's lines are split by waiting thread.

        Also the reason why no waiting threads were searched for; "" if they were. The book then has all their stacks.
        """
        book.read(stack_time.stack_hash for stack_time in times)
        of_library = {
            stack_time.stack_hash
            for stack_time in times
            if (stack := book.of(stack_time.stack_hash)) and stack.is_a_librarys
        }
        count = sum(stack_time.count for stack_time in times if stack_time.stack_hash in of_library)
        if count > _MAX_CALLS:
            return [PlacedTime(stack_time) for stack_time in times], (
                f"{format_count(count)} recorded calls of threads without the user's own lines are too many to look "
                "for the threads that waited for them: ask about a shorter time"
            )
        waited = self.calls(of_library) if of_library else []
        book.read(one.waiter.stack_hash for one in waited)
        with_line = [one for one in waited if (stack := book.of(one.waiter.stack_hash)) and stack.python]
        return sorted(_split(times, with_line), key=lambda one: -one.time.sum_ns), ""

    def _calls(self, stack_hashes: Collection[int]) -> Iterator[tuple[int, int, int, int, int, int]]:
        numbers = ",".join(str(int(number)) for number in stack_hashes)
        callers = ",".join(map(str, self._sleeps))
        values = {name: value for name, value in self._values.items() if name != "before"}
        yield from self._reader.connection.execute(_CALLS.format(numbers, callers), values)

    @cached_property
    def _sleeps(self) -> dict[int, dict[int, _Sleeps]]:
        """The sleeps by waker and sleeper."""
        found: dict[int, dict[int, _Sleeps]] = defaultdict(lambda: defaultdict(_Sleeps))
        samples = self._samples()
        values = self._values | {"kind": _WAKER_THREAD}
        for begin_ns, end_ns, pid, tid, waker in self._reader.connection.execute(_SLEEPS, values) if samples else ():
            times, hashes = samples.get(tid, ((), ()))
            index = bisect_right(times, end_ns) - 1
            if index >= 0 and times[index] >= begin_ns:
                sleeps = found[waker][tid]
                sleeps.begins_ns.append(begin_ns)
                sleeps.ends_ns.append(end_ns)
                sleeps.waiters.append(Waiter(pid, tid, hashes[index]))
        return found

    def _samples(self) -> dict[int, tuple[list[int], list[int]]]:
        """When threads off the CPU were sampled, and the hashes of their stacks, by thread."""
        samples: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        if self._reader.is_recorded("raw_stack_samples") and self._reader.is_recorded("raw_offcpu"):
            for time_ns, tid, stack_hash in self._reader.connection.execute(_SAMPLES, self._values):
                samples[tid][0].append(time_ns)
                samples[tid][1].append(stack_hash)
        return samples


def _split(times: Sequence[StackTime], waited: Sequence[WaitedCalls]) -> Iterator[PlacedTime]:
    """The calls, with those that a thread waited for split off."""
    waits: dict[tuple[int, int, int], list[WaitedCalls]] = defaultdict(list)
    for wait in waited:
        waits[wait.source, wait.op, wait.stack_hash].append(wait)
    for stack_time in times:
        left, left_ns = stack_time.count, stack_time.sum_ns
        for wait in waits.get((stack_time.source, stack_time.op, stack_time.stack_hash), ()):
            yield PlacedTime(replace(stack_time, count=wait.count, sum_ns=wait.sum_ns), wait.waiter)
            left, left_ns = left - wait.count, left_ns - wait.sum_ns
        if left:
            yield PlacedTime(replace(stack_time, count=left, sum_ns=left_ns))
