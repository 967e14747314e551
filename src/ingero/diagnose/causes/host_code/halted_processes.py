"""Processes that made steps and make none any more, outside GPU calls: since when, and what they wait for.

A wait that nobody will end is a hang as soon as some usual steps would have been made. One whose end somebody named
could bring may be a pause: it must be longer than every pause before it, and a process that others ask for work waits
for the next question.
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
_FROM_WORKERS = frozenset({"pipe-read", "shared-futex", "futex", "socket-read", "child"})

_FEW_STEPS = 10  # before, or nobody can say that it should make one
_STEPS_NS = 5  # usual ones that would have been made
_CERTAIN_NS = 3 * SECOND_NS
_NAMED_NS = 5 * SECOND_NS
_TIMES_LONGEST = 1.5  # than any step before; where an evaluation lies between two, that is one
_ASKED = 0.01  # of the window asleep until somebody outside ended it: it answers questions
_GOES_ON_NS = 6 * SECOND_NS  # between two looks, with a second for each of them
_DIED_BEFORE_NS = 2 * SECOND_NS  # a worker's last items are still taken after its end
_TIMER = WAKER_KINDS.index("timer")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who could end a wait. state: the letter of /proc, "" where it was gone."""

    pid: int
    name: str
    state: str


@dataclass(frozen=True, kw_only=True)
class HaltedProcess:
    """One halt, as its last look saw it. rows: outermost first. since_ns: end of its last step."""

    evidence: Evidence
    process: Process
    rows: tuple[HaltRow, ...]
    since_ns: int
    is_over: bool  # it has made a step since
    dead: Process | None  # the worker that it waits for, as far as is known

    @property
    def own(self) -> HaltRow:
        """The thread that should make steps."""
        return self.rows[0]

    @property
    def seen_ns(self) -> int:
        """The last look."""
        return self.own.time_ns

    @property
    def length_ns(self) -> int:
        """How long it has made no step."""
        return self.seen_ns - self.since_ns

    @property
    def is_certain(self) -> bool:
        """Whether nobody who could end it will."""
        return self.own.level == HaltLevel.NEVER or self.dead is not None

    @cached_property
    def stacks(self) -> dict[int, int]:
        """The last stack that was seen of each thread of its chain while it waited."""
        found: dict[int, int] = {}
        for process in {row.process for row in self.rows if row.process}:
            samples = self.evidence.samples((Window(begin_ns=self.since_ns, end_ns=self.seen_ns + 1),), process)
            known = samples[samples["stack_hash"] != 0]
            found |= dict(zip(known["tid"].tolist(), known["stack_hash"].tolist(), strict=True))
        return found

    def line(self, row: HaltRow) -> CodeLine | None:
        """The user's own line at which a thread waits."""
        return self.evidence.own_line(self.stacks.get(row.tid, 0))


def owners(row: HaltRow) -> list[Owner]:
    """Who could end a wait, as the recorder wrote it."""
    return [Owner(int(pid), str(name), str(state)) for pid, name, state in json.loads(row.owners)]


def halted(evidence: Evidence) -> Iterator[HaltedProcess]:
    """The halts of the window that are proven."""
    if not evidence.reader.is_recorded("raw_halts"):
        return
    looks: dict[tuple[int, int], list[HaltRow]] = defaultdict(list)
    for row in evidence.reader.halts(evidence.window):
        if row.level < HaltLevel.STOPPED:
            looks[row.halted, row.since_ns // SECOND_NS].append(row)
    for (number, _), rows in looks.items():
        last_ns = rows[-1].time_ns
        one = _halt(evidence, number, [row for row in rows if row.time_ns == last_ns])
        if one is not None and _is_proven(one):
            yield one


def _halt(evidence: Evidence, number: int, rows: Sequence[HaltRow]) -> HaltedProcess | None:
    process, gpu_stream = evidence.processes.get(number), evidence.gpu_streams.get(number)
    if process is None or gpu_stream is None or rows[0].depth != 0:
        return None
    before = gpu_stream[gpu_stream["sync_end_ns"] <= rows[0].time_ns]
    if len(before) < _FEW_STEPS:
        return None
    ended_ns, counted_ns = int(before["sync_end_ns"].max()), rows[0].since_ns
    usual_ns = int(np.median(before["sync_end_ns"] - before["prev_sync_end_ns"]))
    # of an old halt the last steps may have left the window that is looked at
    since_ns = ended_ns if counted_ns - ended_ns < 2 * SECOND_NS + 2 * usual_ns else counted_ns
    return HaltedProcess(
        evidence=evidence,
        process=process,
        rows=tuple(rows),
        since_ns=since_ns,
        is_over=bool((gpu_stream["sync_end_ns"] > rows[0].time_ns).any()),
        dead=_dead(evidence, number, rows, since_ns),
    )


def _dead(evidence: Evidence, number: int, rows: Sequence[HaltRow], since_ns: int) -> Process | None:
    """The child that ended as the steps did, and that its waits are for."""
    if rows[0].kind not in _FROM_WORKERS:
        return None
    ended = [
        (one.exit_ns, one)
        for one in evidence.children.get(number, ())
        if one.exit_ns is not None and since_ns - _DIED_BEFORE_NS <= one.exit_ns <= rows[0].time_ns
    ]
    # one that ended well may have done its work, unless nobody is left
    meant = [one for one in ended if one[1].exit_code] or (ended if rows[0].level == HaltLevel.NEVER else [])
    return max(meant, key=lambda one: one[0])[1] if meant else None


def _is_proven(halt: HaltedProcess) -> bool:
    before = halt.evidence.gpu_streams[halt.process.process]
    before = before[before["sync_end_ns"] <= halt.seen_ns]
    steps = before["sync_end_ns"] - before["prev_sync_end_ns"]
    usual_ns = _STEPS_NS * float(np.median(steps))
    if halt.is_certain:
        return halt.length_ns >= max(_CERTAIN_NS, usual_ns)
    longest_ns = _TIMES_LONGEST * float(steps.max())
    if halt.length_ns < max(_NAMED_NS, usual_ns, longest_ns):
        return False
    return not (_has_polled(halt) if halt.own.kind == "timer" else _answers(halt))


def _answers(halt: HaltedProcess) -> bool:
    """Whether others ask it for work: so much of its sleep was ended by them before."""
    evidence, number = halt.evidence, halt.process.process
    if data_workers(evidence, halt.process):
        return False
    family = evidence.family(number)
    asked_ns = sum(one.sleep_ns for one in evidence.wakers(number) if is_outside_waker(one, family))
    return asked_ns > _ASKED * evidence.window.duration_ns


def _has_polled(halt: HaltedProcess) -> bool:
    """Whether it slept at that place while it made steps: then it looks there for work."""
    stack_hash, tid = halt.stacks.get(halt.own.tid, 0), halt.own.tid
    begin_ns = max(halt.evidence.window.begin_ns, halt.since_ns - 10 * SECOND_NS)
    before = halt.evidence.waits.intervals(tid, begin_ns, halt.since_ns)
    is_there = (before["stack_hash"] == stack_hash) & (before["waker_kind"] == _TIMER)
    return not stack_hash or bool(is_there.any())


def goes_on(halt: HaltedProcess) -> bool:
    """Whether it lasts at the end of the window."""
    return not halt.is_over and halt.evidence.window.end_ns - halt.seen_ns <= _GOES_ON_NS
