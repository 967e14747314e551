"""Keeps what tracing costs inside two budgets: the traced threads' time, and the agent's own CPU time.

Decisions are made in `levels` and `agent_limiter`; here cost is measured, levels are applied, stored and reported.

A level is changed without losing or doubling a call: entry programs obey a set of suspended operations from one call to
the next, so a launch is decided once, at the entry of its runtime call. Probes are detached only when none of their
calls is open any more, and attached again before their operations are resumed.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ingero import given_up
from ingero.attach.groups import GROUP_OF_OP, Coverage, Coverages, Group, op_set
from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import ProbeMode
from ingero.capture.budget import agent_limiter, levels
from ingero.capture.budget.agent_limiter import AGENT_LEVELS, AgentLimiter
from ingero.capture.budget.levels import BLINDING, Budget, Levels, LimiterState, coverages
from ingero.capture.budget.overhead import LoadEstimate, Overhead, OverheadMeter
from ingero.capture.budget.rehearsal import NO_REHEARSAL, Rehearsal
from ingero.capture.budget.trap_cost import TrapCosts, measure_trap_costs
from ingero.capture.loop.coverage_spans import CoverageSpans
from ingero.capture.loop.drainer import Drainer
from ingero.capture.loop.second import SecondOfCounts, SecondReader
from ingero.capture.records.rows import Sink
from ingero.discover import kernel_clock
from ingero.store.writing import tables

logger = logging.getLogger(__name__)

_SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
_MEMBARRIER_GLOBAL = 1  # returns when every BPF program that ran at the call has ended
_START_S = 3.0  # attaching probes and reading libraries costs CPU time once
_UNKNOWN = TrapCosts(full_ns=0.0, nested_ns=0.0, counted_ns=0.0, suspended_ns=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondCost:
    """What tracing cost in a second, and what was given up in it (codes of `given_up`)."""

    overhead: Overhead
    agent_cpu_ratio: float
    level: int
    not_traced: tuple[str, ...]


class OverheadLimiter:
    """Keeps the two budgets of a recording. A ratio of 0: no budget; cost is measured and reported all the same.

    coverage_spans: receives when coverage changes, and what is missing then.
    """

    def __init__(
        self,
        kernel: KernelSide,
        sink: Sink,
        seconds: SecondReader,
        drainer: Drainer,
        coverage_spans: CoverageSpans,
        *,
        max_overhead_ratio: float,
        max_cpu_ratio: float,
        with_stacks: bool = False,
        rehearsal: Rehearsal = NO_REHEARSAL,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._kernel, self._sink, self._seconds, self._drainer = kernel, sink, seconds, drainer
        self._max_overhead_ratio, self._max_cpu_ratio = max_overhead_ratio, max_cpu_ratio
        self._unix_ns, self._with_stacks, self._rehearsal = unix_ns, with_stacks, rehearsal
        self.costs = _UNKNOWN
        self._coverage_spans = coverage_spans
        self._meter, self._estimate = OverheadMeter(), LoadEstimate()
        self._state, self._agent_limiter = LimiterState(), AgentLimiter()
        self._overhead, self._cpu_ratio = Overhead(), 0.0
        self._cpu_before = (time.process_time_ns(), kernel_clock.monotonic_ns())
        self._recorded_s = 0.0
        self._is_detaching = False
        self._checked_at = b""
        # whether levels have changed since the last reading, and whether they had in what it has read
        self._has_changed = self._is_mixed = False

    @property
    def levels(self) -> Levels:
        """The levels in force now."""
        return self._state.levels

    @property
    def not_traced(self) -> tuple[str, ...]:
        """The codes of `given_up` for what is given up now."""
        codes = tuple(levels.CODES[level] for level in sorted(self.levels))
        if codes and not self._kernel.probes.can_detach:
            codes = (*codes, given_up.PROBES_STAY.code)
        if self._with_stacks and not self._takes_stacks:
            codes = (*codes, given_up.STACKS_OFF.code)
        return (*codes, AGENT_LEVELS[self._agent_limiter.level].code) if self._agent_limiter.level else codes

    @property
    def _takes_stacks(self) -> bool:
        """Whether stacks are taken: they cost the agent's time; of a traced thread's time, they take 0.3%."""
        return AGENT_LEVELS[self._agent_limiter.level].takes_stacks

    def _switch_stacks(self) -> None:
        """Tells the kernel side whether to take stacks."""
        self._kernel.maps["stacks_off"].update(struct.pack("<I", 0), struct.pack("<I", not self._takes_stacks))

    def start(self) -> None:
        """Measures what a probe hit costs. Call it before any process is traced: it reads the rings of calls."""
        measured = measure_trap_costs(self._kernel, self._drainer.rings["calls"], self._seconds.forget)
        if measured is None:
            logger.warning(
                "process limit reached: the cost of a probe cannot be measured, and the overhead is not limited"
            )
        self.costs = self._rehearsal.costs(measured) if measured else _UNKNOWN
        self._forget_untimed()
        self._store("start")
        if self._rehearsal.given_up:
            self.apply(self._rehearsal.given_up, "requested by a test (rehearsal)")

    def observe(self, second: SecondOfCounts) -> SecondCost:
        """Measures the cost of the second that has just been read."""
        cpu_ns, now_ns = time.process_time_ns(), kernel_clock.monotonic_ns()
        self._cpu_ratio = (cpu_ns - self._cpu_before[0]) / max(1, now_ns - self._cpu_before[1])
        self._cpu_before = cpu_ns, now_ns
        self._overhead = self._meter.read(self._seconds.threads, second.cells, self.costs)
        self._recorded_s += second.elapsed_s
        self._is_mixed, self._has_changed = self._has_changed, False
        self._forget_untimed()
        return SecondCost(
            overhead=self._overhead,
            agent_cpu_ratio=self._cpu_ratio,
            level=max(self.levels, default=0),
            not_traced=self.not_traced,
        )

    def act(self) -> None:
        """Once a second, after `observe`: decides and acts. The cost of changing levels does not count."""
        now_s = time.monotonic()
        if self._is_detaching:
            self._detach()
        if self._is_mixed:
            return
        if self._limits_overhead:
            self._keep_overhead(now_s)
        if self._max_cpu_ratio and self._recorded_s > _START_S:
            self._keep_cpu(now_s)

    @property
    def _limits_overhead(self) -> bool:
        return bool(self._max_overhead_ratio) and self.costs is not _UNKNOWN

    @property
    def _budget(self) -> Budget:
        return Budget(ratio=self._max_overhead_ratio, costs=self.costs, can_detach=self._kernel.probes.can_detach)

    def ends_second(self) -> bool:
        """Whether the second should be read before it is over.

        Rungs have just changed in it, or one thread's traps have already cost so much that a level will be climbed.
        """
        seen, self._checked_at = self._checked_at, self._drainer.threads
        if self._has_changed or seen is self._checked_at or self._is_detaching or not self._limits_overhead:
            return self._has_changed
        threads = np.frombuffer(self._checked_at, self._kernel.layouts.dtype("thread_dump"))
        return levels.is_over_budget(self._state, self._meter.most_hits(threads), self._budget)

    def _keep_overhead(self, now_s: float) -> None:
        budget = self._budget
        load = self._estimate.update(self._overhead.seen, coverages(self.levels))
        before, began_ns = self.levels, self._unix_ns()
        self._state = levels.decide(self._state, load, self._overhead.ratio, now_s, budget)
        self._keep_rehearsed(before)
        if self.levels != before:
            note = self._put_in_force()
            # less is traced from the begin of the change on, more from its end on
            self._store(self._state.reason + note, began_ns if self.levels - before else self._unix_ns())
            self._has_changed = True
            self._drainer.empty_buffers_soon()

    def _keep_rehearsed(self, before: Levels) -> None:
        """Keeps the levels of a rehearsal in force, even in trials; if that leaves nothing to try, nothing changes."""
        new_levels = self._state.levels | self._rehearsal.given_up
        self._state = replace(self._state, levels=before if coverages(new_levels) == coverages(before) else new_levels)

    def _keep_cpu(self, now_s: float) -> None:
        before = self._agent_limiter.level
        self._agent_limiter = agent_limiter.decide(self._agent_limiter, self._cpu_ratio, now_s, self._max_cpu_ratio)
        if self._agent_limiter.level != before:
            level = AGENT_LEVELS[self._agent_limiter.level]
            self._seconds.cells.records_ratio, self._drainer.drain_ns = level.records_ratio, level.drain_ns
            self._switch_stacks()
            self._store(self._agent_limiter.reason)

    def apply(self, new_levels: Levels, reason: str) -> None:
        """Puts levels in force whatever the load is; the limiter continues from there."""
        self._state = replace(
            self._state, levels=new_levels, recent=(), calm_since_s=None, changed_s=time.monotonic(), reason=reason
        )
        self._store(reason + self._put_in_force())

    def _put_in_force(self) -> str:
        """Attaches missing probes, then changes the settings of the kernel side, then detaches unneeded probes.

        Answers with what could not be attached again.
        """
        left = coverages(self.levels)
        begin_ns = kernel_clock.monotonic_ns()
        failures = self._kernel.probes.raise_to(left)
        # an operation that is suspended stays among the counted ones, so that it changes sets by one bit at a time
        counted = [op for op, group in GROUP_OF_OP.items() if left[group] is not Coverage.FULL]
        suspended = [op for op, group in GROUP_OF_OP.items() if left[group] is Coverage.NONE]
        self._kernel.change_settings(
            counted_ops=op_set(counted),
            suspended_ops=op_set(suspended),
            are_enqueues_unseen=bool(self.levels & BLINDING),
        )
        self._seconds.cells.untimed_ops |= set(counted)
        self._seconds.memory.suspend(is_suspended=left[Group.MEMORY] is Coverage.NONE)
        launches, end_ns = {left[Group.RUNTIME_LAUNCHES], left[Group.DRIVER_LAUNCHES]}, kernel_clock.monotonic_ns()
        self._coverage_spans.changed.changed(begin_ns, end_ns)
        self._coverage_spans.untimed.changed(begin_ns, end_ns, is_blind=Coverage.FULL not in launches)
        self._coverage_spans.without_launches.changed(begin_ns, end_ns, is_blind=launches == {Coverage.NONE})
        self._coverage_spans.without_copies.changed(begin_ns, end_ns, is_blind=left[Group.COPIES] is Coverage.NONE)
        self._detach()
        return f"; {len(failures)} calls cannot be probed again: {failures[0].reason}" if failures else ""

    def _detach(self) -> None:
        """Detaches unneeded probes; later, if one of their calls is in flight: its return would be lost."""
        left = coverages(self.levels)
        have_ended = _wait_for_programs() or self._is_detaching  # or, since the last try, had a second to end
        self._is_detaching = not have_ended or self._has_call_in_flight(left)
        if not self._is_detaching:
            self._kernel.probes.lower_to(left)

    def _has_call_in_flight(self, left: Coverages) -> bool:
        threads = np.frombuffer(self._kernel.read_threads(), self._kernel.layouts.dtype("thread_dump"))
        lowered = [op for op, group in GROUP_OF_OP.items() if left[group] is not Coverage.FULL]
        is_one = np.isin(threads["call_op"], lowered) & (threads["open_calls"] > 0)
        # of several open calls only the oldest is shown
        return bool((is_one | (threads["open_calls"] > 1)).any())

    def _forget_untimed(self) -> None:
        """From here on only calls that are counted now can lack a duration."""
        left = coverages(self.levels)
        is_every = self._kernel.mode is ProbeMode.ENTRY_ONLY
        self._seconds.cells.untimed_ops = frozenset(
            op for op, group in GROUP_OF_OP.items() if is_every or left[group] is not Coverage.FULL
        )

    def _store(self, reason: str, time_ns: int | None = None) -> None:
        rows = tables.OVERHEAD_LEVELS.rows(
            1,
            session=self._sink.session,
            time_ns=self._unix_ns() if time_ns is None else time_ns,
            level=int(max(self.levels, default=0)),
            agent_level=self._agent_limiter.level,
            not_traced=",".join(self.not_traced),
            reason=reason,
            overhead_ratio=self._overhead.ratio,
            hits_per_s=self._overhead.hits_per_s,
            tid=self._overhead.tid,
            agent_cpu_ratio=self._cpu_ratio,
            full_ns=self.costs.full_ns,
            nested_ns=self.costs.nested_ns,
            counted_ns=self.costs.counted_ns,
            suspended_ns=self.costs.suspended_ns,
        )
        self._sink.append(tables.OVERHEAD_LEVELS, rows)


def _wait_for_programs() -> bool:
    """Waits until programs that may not have seen a change of the settings have ended; False if that cannot be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    return not libc.syscall(_SYS_MEMBARRIER[platform.machine()], _MEMBARRIER_GLOBAL, 0, 0)
