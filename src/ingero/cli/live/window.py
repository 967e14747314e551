"""Gathers seconds into the last few and the whole recording, and makes the state of the live view from them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import add, attrgetter, itemgetter
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.sums.cells import columns_of
from ingero.capture.sums.culprits import CulpritTime
from ingero.capture.sums.host_sums import HostSum
from ingero.cli.live.state import CulpritLine, DropLine, OpLine
from ingero.events import STATES
from ingero.ops import BY_ID, Kind
from ingero.store import histograms

WINDOW_S = 10.0  # training steps are 5 to 50 ms long: some hundred of them, enough for a p99
SLOW_FACTOR = 3
_JUDGED_CALLS_BEFORE = 100  # the p99 of fewer calls is their maximum
_JUDGED_CALLS = 20

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class OpSums:
    """Sums of one operation; slots: the processes that called it."""

    count: int = 0
    nested: int = 0
    errors: int = 0
    sum_ns: int = 0
    max_ns: int = 0
    histogram: Array = field(default_factory=lambda: np.zeros(histograms.BUCKETS, np.int64))
    slots: frozenset[int] = frozenset()

    def add(self, more: OpSums) -> None:
        """Adds the sums of another second."""
        self.count += more.count
        self.nested += more.nested
        self.errors += more.errors
        self.sum_ns += more.sum_ns
        self.max_ns = max(self.max_ns, more.max_ns)
        self.histogram += more.histogram
        self.slots |= more.slots


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSums:
    """Calls of one process, and the time in those that wait for the GPU."""

    calls: int
    wait_ns: int


_Key = TypeVar("_Key", bound=Hashable)
_Culprit: TypeAlias = "tuple[int, str]"  # pid, name


@dataclass(frozen=True, slots=True)
class _Amounts:
    """Sums over the window, updated as seconds enter and leave it, so that no frame adds them up. Without zeros."""

    calls: Counter[int] = field(default_factory=Counter)  # by slot
    wait_ns: Counter[int] = field(default_factory=Counter)  # by slot: in calls that wait for the GPU
    ran_instead_ns: Counter[int] = field(default_factory=Counter)  # by slot: others ran while it was runnable
    culprit_ns: Counter[_Culprit] = field(default_factory=Counter)
    culprit_switches: Counter[_Culprit] = field(default_factory=Counter)

    def change(self, by: _Amounts, sign: int) -> None:
        """Adds (+1) or subtracts (-1) the sums of a second."""
        _change(self.calls, by.calls, sign)
        _change(self.wait_ns, by.wait_ns, sign)
        _change(self.ran_instead_ns, by.ran_instead_ns, sign)
        _change(self.culprit_ns, by.culprit_ns, sign)
        _change(self.culprit_switches, by.culprit_switches, sign)


def _change(totals: Counter[_Key], by: Counter[_Key], sign: int) -> None:
    for key, amount in by.items():
        if amount:
            totals[key] += sign * amount
            if not totals[key]:
                del totals[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowSecond:
    """One second of the window, reduced to the data that is shown: its cells would take megabytes."""

    second: SecondOfCounts
    ops: dict[int, OpSums]
    amounts: _Amounts
    call_states_ns: Array


class Window:
    """The last `keep_s` seconds of a recording, and sums over all of it."""

    def __init__(self, keep_s: float = WINDOW_S) -> None:
        self._keep_s = keep_s
        self._parts: deque[_WindowSecond] = deque()
        self._totals: dict[int, OpSums] = {}
        self._amounts = _Amounts()
        self.drops: Counter[str] = Counter()
        self.length_s = 0.0
        self.recorded_s = 0.0

    def add(self, second: SecondOfCounts) -> None:
        """Adds a second, and removes those that are older than the window."""
        part = _reduced(second)
        self._parts.append(part)
        self.length_s += second.elapsed_s
        self.recorded_s += second.elapsed_s
        for op, sums in part.ops.items():
            self._totals.setdefault(op, OpSums()).add(sums)
        self.drops.update(second.drops)
        self._amounts.change(part.amounts, +1)
        # half a second of grace: a tick that came late must not shorten the window by a whole second
        while self.length_s - self._parts[0].second.elapsed_s >= self._keep_s - 0.5:
            left = self._parts.popleft()
            self.length_s -= left.second.elapsed_s
            self._amounts.change(left.amounts, -1)

    @property
    def last(self) -> SecondOfCounts | None:
        """The newest second."""
        return self._parts[-1].second if self._parts else None

    def seconds(self) -> Iterator[SecondOfCounts]:
        """The seconds in the window, oldest first."""
        return (part.second for part in self._parts)

    def ops(self) -> tuple[OpLine, ...]:
        """The traced calls, most time first."""
        recent: dict[int, OpSums] = {}
        for part in self._parts:
            for op, sums in part.ops.items():
                recent.setdefault(op, OpSums()).add(sums)
        ordered = sorted(recent.items(), key=lambda item: (-item[1].sum_ns, -item[1].nested, item[0]))
        return tuple(self._op_line(op, sums) for op, sums in ordered)

    def _op_line(self, op: int, sums: OpSums) -> OpLine:
        total = self._totals[op]
        p50 = p95 = p99 = None
        if sums.histogram.any():
            p50, p95, p99 = histograms.percentiles(sums.histogram, (0.5, 0.95, 0.99), max_ns=sums.max_ns or None)
        wall_ns = self.length_s * 1e9 * len(sums.slots)
        return OpLine(
            op=BY_ID[op],
            count=sums.count,
            nested=sums.nested,
            errors=sums.errors,
            p50_ns=p50,
            p95_ns=p95,
            p99_ns=p99,
            max_ns=sums.max_ns,
            wall_ratio=sums.sum_ns / wall_ns if wall_ns else 0.0,
            is_slow=p99 is not None and _is_slow(p99, sums, total),
            total=total.count,
        )

    def process_sums(self) -> dict[int, ProcessSums]:
        """The sums of each process, by slot."""
        calls, wait_ns = self._amounts.calls, self._amounts.wait_ns
        return {slot: ProcessSums(calls=count, wait_ns=wait_ns[slot]) for slot, count in calls.items()}

    def states_ns(self) -> tuple[int, ...]:
        """Thread-state time of all threads, in the order of STATES."""
        return _summed(part.second.states_ns for part in self._parts)

    def call_states_ns(self) -> tuple[int, ...]:
        """Thread-state time inside traced calls, in the order of STATES."""
        return _summed(part.call_states_ns for part in self._parts)

    def culprits(self) -> tuple[CulpritLine, ...]:
        """The processes that ran while traced threads were runnable, most time first."""
        culprit_ns, switches = self._amounts.culprit_ns, self._amounts.culprit_switches
        ordered = sorted(culprit_ns.items(), key=lambda item: (-item[1], item[0]))
        return tuple(
            CulpritLine(pid=culprit[0], name=culprit[1], ns=ns, switches=switches[culprit]) for culprit, ns in ordered
        )

    def ran_instead_ns(self) -> Counter[int]:
        """Time (ns) that other processes ran while a process was runnable, by its slot."""
        return Counter(self._amounts.ran_instead_ns)

    def host(self) -> tuple[HostSum, ...]:
        """Host events by operation."""
        found: dict[tuple[int, int], tuple[HostSum, tuple[int, ...]]] = {}
        for event in (event for part in self._parts for event in part.second.host):
            key, amounts = (int(event.source), int(event.op)), _host_amounts(event)
            found[key] = event, tuple(map(add, found[key][1], amounts)) if key in found else amounts
        return tuple(
            HostSum(source=event.source, op=event.op, **dict(zip(_HOST_AMOUNTS, amounts, strict=True)))
            for _, (event, amounts) in sorted(found.items(), key=itemgetter(0))
        )

    def drop_lines(self) -> tuple[DropLine, ...]:
        """All counters of dropped data that are not 0, most in the last seconds first."""
        recent = Counter[str]()
        for part in self._parts:
            recent.update(part.second.drops)
        names = sorted(self.drops, key=lambda name: (-recent[name], -self.drops[name], name))
        return tuple(DropLine(name=name, recent=recent[name], total=self.drops[name]) for name in names)

    def agent_ratio(self) -> float | None:
        """CPU time of the agent, share of one core; None before it was first measured."""
        measured = [part.second for part in self._parts if part.second.agent]
        cpu_ns = sum(second.agent.cpu_ns for second in measured if second.agent)
        return cpu_ns / (sum(second.elapsed_s for second in measured) * 1e9) if measured else None

    def per_second(self, count: int) -> float:
        """A count of the window as a rate."""
        return count / self.length_s if self.length_s else 0.0


def _reduced(second: SecondOfCounts) -> _WindowSecond:
    amounts, kept = _attributed(second.culprit_times), replace(second, cells=[])
    nothing = _WindowSecond(second=kept, ops={}, amounts=amounts, call_states_ns=np.zeros(len(STATES), np.int64))
    if not second.cells:
        return nothing
    found = columns_of(second.cells)
    order = np.argsort(found.ops, kind="stable")
    order = order[np.isin(found.ops[order], _OPS)]
    if not len(order):
        return nothing
    ops, slots, longest = found.ops[order], found.slots[order], found.max_ns[order]
    growth = found.growth.take(found.rows[order])  # megabytes of many processes: read once, then from end to end
    calls, wait_ns = _by_slot(growth, ops, slots)
    amounts.calls.update(calls)
    amounts.wait_ns.update(wait_ns)
    return _WindowSecond(
        second=kept,
        ops=_by_op(growth, ops, slots, longest),
        amounts=amounts,
        call_states_ns=growth["state_ns"].sum(axis=0, dtype=np.int64),
    )


def _by_op(growth: Array, ops: Array, slots: Array, longest: Array) -> dict[int, OpSums]:
    """The sums by operation; ops, slots and longest are rows of `growth`, sorted by operation."""
    found, starts = np.unique(ops, return_index=True)
    sums = [
        np.add.reduceat(growth[name].astype(np.int64), starts).tolist()
        for name in ("count", "nested", "errors", "sum_ns")
    ]
    most = np.maximum.reduceat(longest, starts).tolist()
    parts = map(slice, starts.tolist(), [*starts[1:].tolist(), len(ops)])
    return {
        op: OpSums(count, nested, errors, sum_ns, max_ns, _histogram(growth[mine]), frozenset(slots[mine].tolist()))
        for op, mine, max_ns, count, nested, errors, sum_ns in zip(found.tolist(), parts, most, *sums, strict=True)
    }


def _histogram(growth: Array) -> Array:
    # in 32 bits, as the kernel counts: a fifth of the time, and enough for the calls between two readings
    total: Array = growth["histogram"].sum(axis=0, dtype=np.uint32)
    return total.astype(np.int64)


def _by_slot(growth: Array, ops: Array, slots: Array) -> tuple[dict[int, int], dict[int, int]]:
    """Calls, and the ns in those that wait for the GPU."""
    calls = np.bincount(slots, growth["count"]).astype(np.int64).tolist()
    wait_ns = np.bincount(slots, np.where(np.isin(ops, _SYNCS), growth["sum_ns"], 0)).astype(np.int64).tolist()
    return dict(enumerate(calls)), dict(enumerate(wait_ns))


def _attributed(culprit_times: Iterable[CulpritTime]) -> _Amounts:
    amounts = _Amounts()
    for culprit_time in culprit_times:
        culprit = (culprit_time.culprit_pid, culprit_time.culprit_name)
        amounts.ran_instead_ns[culprit_time.slot] += culprit_time.ns
        amounts.culprit_ns[culprit] += culprit_time.ns
        amounts.culprit_switches[culprit] += culprit_time.switches
    return amounts


_OPS = np.asarray(list(BY_ID))
_SYNCS = np.asarray([op.id for op in BY_ID.values() if op.kind & Kind.SYNC])


def _is_slow(p99_ns: float, recent: OpSums, total: OpSums) -> bool:
    before = total.histogram - recent.histogram
    if recent.count < _JUDGED_CALLS or int(before.sum()) < _JUDGED_CALLS_BEFORE:
        return False
    (p99_before,) = histograms.percentiles(before, (0.99,))
    return p99_ns > SLOW_FACTOR * p99_before


def _summed(states_ns: Iterable[Array]) -> tuple[int, ...]:
    total = np.zeros(len(STATES), np.int64)
    for second_ns in states_ns:
        total = total + second_ns
    return tuple(total.tolist())


_HOST_AMOUNTS = ("count", "size_bytes", "duration_ns", "other_count", "other_bytes", "other_ns")
_host_amounts: Callable[[HostSum], tuple[int, ...]] = attrgetter(*_HOST_AMOUNTS)
