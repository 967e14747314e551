"""Processes that made steps and no longer do, outside GPU calls: since when, and what they wait for.

A wait that nobody can end is a hang as soon as some baseline steps are overdue. One that a known process could end may
be a pause: it must last longer than every earlier pause, and a process that serves requests waits for the next request.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import CodeLine
from ingero.diagnose.lost_time.no_demand import is_outside_waker
from ingero.diagnose.samples.process_roles import data_workers
from ingero.events import WAKER_KINDS
from ingero.store.records import HaltLevel, HaltRow, Process, Window
from ingero.units import SECOND_NS

PIPES = frozenset({"pipe-read", "pipe-write"})
LOCKS = frozenset({"futex", "shared-futex"})
_WAITS_FOR_WORKERS = frozenset({"pipe-read", "shared-futex", "futex", "socket-read", "child"})

_MIN_STEPS_BEFORE = 10  # steps before the halt; with fewer it is unknown whether another one was due
_MIN_MISSED_STEPS = 5  # baseline steps that would have been made meanwhile
_MIN_CERTAIN_HALT_NS = 3 * SECOND_NS  # where nobody can end the wait
_MIN_POSSIBLE_HALT_NS = 5 * SECOND_NS  # where somebody could end the wait
_MIN_TIMES_LONGEST_STEP = 1.5  # times the longest step before; an evaluation between two steps counts into one
_MIN_REQUEST_WAIT_RATIO = 0.01  # of the window, asleep until a process outside ended it: then it serves requests
_MAX_CHECK_DISTANCE_NS = 6 * SECOND_NS  # between two checks, with a second for each of them
_MAX_DEATH_BEFORE_HALT_NS = 2 * SECOND_NS  # a worker's last items are still consumed after it has ended
_TIMER_WAKER = WAKER_KINDS.index("timer")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that could end a wait. state: its state letter in /proc, "" if it was gone."""

    pid: int
    name: str
    state: str


@dataclass(frozen=True, kw_only=True)
class HaltedProcess:
    """One halt as of its last check. rows: outermost wait first. since_ns: end of the last step."""

    evidence: Evidence
    process: Process
    rows: tuple[HaltRow, ...]
    since_ns: int
    is_over: bool  # it has made a step since
    dead_worker: Process | None  # the worker that it waits for, as far as is known

    @property
    def own(self) -> HaltRow:
        """The wait of the thread that should make steps."""
        return self.rows[0]

    @property
    def seen_ns(self) -> int:
        """Time of the last check."""
        return self.own.time_ns

    @property
    def length_ns(self) -> int:
        """Time without a step, up to the last check."""
        return self.seen_ns - self.since_ns

    @property
    def is_certain(self) -> bool:
        """Whether no process that could end the wait will do so."""
        return self.own.level == HaltLevel.NEVER or self.dead_worker is not None

    @cached_property
    def stacks(self) -> dict[int, int]:
        """The last sampled stack of each thread in the chain of waits, by tid."""
        hash_by_tid: dict[int, int] = {}
        for process in {row.process for row in self.rows if row.process}:
            samples = self.evidence.samples((Window(begin_ns=self.since_ns, end_ns=self.seen_ns + 1),), process)
            known = samples[samples["stack_hash"] != 0]
            hash_by_tid |= dict(zip(known["tid"].tolist(), known["stack_hash"].tolist(), strict=True))
        return hash_by_tid

    def line(self, row: HaltRow) -> CodeLine | None:
        """The line of the user's own code at which a thread waits."""
        return self.evidence.own_line(self.stacks.get(row.tid, 0))


def wait_owners(row: HaltRow) -> list[Owner]:
    """The processes that could end a wait, as recorded."""
    return [Owner(int(pid), str(name), str(state)) for pid, name, state in json.loads(row.owners)]


def proven_halts(evidence: Evidence) -> Iterator[HaltedProcess]:
    """Proven halts in the window."""
    if not evidence.reader.is_recorded("raw_halts"):
        return
    rows_by_halt: dict[tuple[int, int], list[HaltRow]] = defaultdict(list)
    for row in evidence.reader.halts(evidence.window):
        if row.level < HaltLevel.STOPPED:
            rows_by_halt[row.halted, row.since_ns // SECOND_NS].append(row)
    for (number, _), rows in rows_by_halt.items():
        last_ns = rows[-1].time_ns
        halt = _halt(evidence, number, [row for row in rows if row.time_ns == last_ns])
        if halt is not None and _is_proven(halt):
            yield halt


def _halt(evidence: Evidence, number: int, rows: Sequence[HaltRow]) -> HaltedProcess | None:
    process, gpu_stream = evidence.processes.get(number), evidence.gpu_streams.get(number)
    if process is None or gpu_stream is None or rows[0].depth != 0:
        return None
    before = gpu_stream[gpu_stream["sync_end_ns"] <= rows[0].time_ns]
    if len(before) < _MIN_STEPS_BEFORE:
        return None
    ended_ns, counted_ns = int(before["sync_end_ns"].max()), rows[0].since_ns
    baseline_ns = int(np.median(before["sync_end_ns"] - before["prev_sync_end_ns"]))
    # the last steps before an old halt may precede the diagnosed window
    since_ns = ended_ns if counted_ns - ended_ns < 2 * SECOND_NS + 2 * baseline_ns else counted_ns
    return HaltedProcess(
        evidence=evidence,
        process=process,
        rows=tuple(rows),
        since_ns=since_ns,
        is_over=bool((gpu_stream["sync_end_ns"] > rows[0].time_ns).any()),
        dead_worker=_dead_worker(evidence, number, rows, since_ns),
    )


def _dead_worker(evidence: Evidence, number: int, rows: Sequence[HaltRow], since_ns: int) -> Process | None:
    """The child process whose end coincides with the last step and that the halted process waits for."""
    if rows[0].kind not in _WAITS_FOR_WORKERS:
        return None
    ended = [
        (child.exit_ns, child)
        for child in evidence.children.get(number, ())
        if child.exit_ns is not None and since_ns - _MAX_DEATH_BEFORE_HALT_NS <= child.exit_ns <= rows[0].time_ns
    ]
    # a child that exited normally may have finished its work, unless nobody else can end the wait
    candidates = [timed_child for timed_child in ended if timed_child[1].exit_code] or (
        ended if rows[0].level == HaltLevel.NEVER else []
    )
    return max(candidates, key=lambda timed_child: timed_child[0])[1] if candidates else None


def _is_proven(halt: HaltedProcess) -> bool:
    before = halt.evidence.gpu_streams[halt.process.process]
    before = before[before["sync_end_ns"] <= halt.seen_ns]
    steps = before["sync_end_ns"] - before["prev_sync_end_ns"]
    baseline_ns = _MIN_MISSED_STEPS * float(np.median(steps))
    if halt.is_certain:
        return halt.length_ns >= max(_MIN_CERTAIN_HALT_NS, baseline_ns)
    longest_ns = _MIN_TIMES_LONGEST_STEP * float(steps.max())
    if halt.length_ns < max(_MIN_POSSIBLE_HALT_NS, baseline_ns, longest_ns):
        return False
    return not (_polled_before(halt) if halt.own.kind == "timer" else _serves_requests(halt))


def _serves_requests(halt: HaltedProcess) -> bool:
    """Whether other processes ask it for work: they ended more than a minimal share of its earlier sleep."""
    evidence, number = halt.evidence, halt.process.process
    if data_workers(evidence, halt.process):
        return False
    family = evidence.family(number)
    asked_ns = sum(waker.sleep_ns for waker in evidence.wakers(number) if is_outside_waker(waker, family))
    return asked_ns > _MIN_REQUEST_WAIT_RATIO * evidence.window.duration_ns


def _polled_before(halt: HaltedProcess) -> bool:
    """Whether it already slept on a timer at the same place while it made steps: then it polls for work there."""
    stack_hash, tid = halt.stacks.get(halt.own.tid, 0), halt.own.tid
    begin_ns = max(halt.evidence.window.begin_ns, halt.since_ns - 10 * SECOND_NS)
    before = halt.evidence.critical_paths.intervals(tid, begin_ns, halt.since_ns)
    is_there = (before["stack_hash"] == stack_hash) & (before["waker_kind"] == _TIMER_WAKER)
    return not stack_hash or bool(is_there.any())


def is_ongoing(halt: HaltedProcess) -> bool:
    """Whether the halt lasts until the end of the window."""
    return not halt.is_over and halt.evidence.window.end_ns - halt.seen_ns <= _MAX_CHECK_DISTANCE_NS
