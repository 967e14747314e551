"""Where threads were, from samples of them: the line at which most of some chosen time was spent, and doing what."""

from __future__ import annotations

import enum
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import CodeLine
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.events import THREAD_STATES
from ingero.store.arrays.arrays import OFFCPU_DTYPE, SAMPLE_DTYPE
from ingero.store.arrays.spans import Spans as WindowSpans
from ingero.store.call_stacks import CallStack, PythonPlace, own_place
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]
Spans: TypeAlias = Mapping[int, Sequence[tuple[int, int]]]  # by thread: from, to, in ns

RUN = THREAD_STATES.index("run")
SLEEP = THREAD_STATES.index("sleep")
_ASLEEP = tuple(THREAD_STATES.index(name) for name in ("sleep", "io", "uninterruptible"))
MIN_SAMPLES = 5  # fewer name no line
_JUST_BEFORE_NS = 11_000_000  # what a sample stands for at the highest rate
_SIGMAS = 2  # a sampled time is believed to be at most so much more
_PASSING = re.compile(r"/multiprocessing/(queues|reductions?|connection|synchronize|managers|shared_memory)\.py$")
_FORKED = re.compile(r"/multiprocessing/process\.py$")
_LOADER = re.compile(r"/utils/data/")
_GETTERS = frozenset(("__getitem__", "__getitems__"))
_WAITS_FOR_ITEMS = re.compile(r"/(queue|threading|selectors|concurrent/futures/\w+|asyncio/\w+)\.py$")
_GETS = re.compile(r"/queue\.py$|/multiprocessing/queues\.py$|/utils/data/")
_ASKS_ANOTHER = re.compile(
    r"/(multiprocessing/managers|http/client|xmlrpc/client|ftplib|smtplib|urllib3/\w+|redis/\w+|grpc/_channel|"
    r"httpcore/.+|aiohttp/client\w*|pymongo/.+|pymysql/\w+|psycopg\d?/\w+|wandb/sdk/.+)\.py$"
)
_RUNS_PROGRAM = re.compile(r"/(subprocess|multiprocessing/popen_\w+)\.py$")


class Doing(enum.Enum):
    """What a thread on a CPU outside calls was busy with, as far as its stack shows."""

    COLLECTING = "collecting garbage"
    PASSING = "passing items between processes"
    LOADING = "loading data"
    COMPUTING = "computing"


@dataclass(frozen=True, slots=True)
class Stay:
    """Samples of one thread in one state with one stack."""

    tid: int
    is_collecting: bool
    stack: CallStack | None
    count: int
    ns: int

    @property
    def doing(self) -> Doing:
        """What it was busy with."""
        return Doing.COLLECTING if self.is_collecting else doing_of(self.stack)

    @property
    def line(self) -> CodeLine | None:
        """The user's own line, else the innermost one; a native function where there is no Python."""
        if self.stack is None:
            return None
        own = own_place(_of_this_process(self.stack.python))
        if own:
            return _line(own)
        native = self.stack.issuer
        return CodeLine(file=native.file, line=0, function=native.symbol) if native else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Sampled time of one kind. line: where most of it went; at_most_ns: what it may be, with the samples' error."""

    ns: float
    count: int
    line: CodeLine | None

    @property
    def at_most_ns(self) -> float:
        """The upper end of what the samples say."""
        return self.ns * (1 + _SIGMAS / math.sqrt(max(self.count, 1)))

    @property
    def is_enough(self) -> bool:
        """Whether there are enough samples to name it."""
        return self.count >= MIN_SAMPLES


def doing_of(stack: CallStack | None) -> Doing:
    """What a running thread with this stack is busy with."""
    frames = stack.python if stack else ()
    if frames and _PASSING.search(frames[0].file):
        return Doing.PASSING
    iterates = False
    for place in reversed(frames):
        iterates = iterates or place.function.rpartition(".")[2] == "__next__"
        if _LOADER.search(place.file) or (iterates and place.function.rpartition(".")[2] in _GETTERS):
            return Doing.LOADING
    return Doing.COMPUTING


def waits_for_items(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits for something that another one makes (a queue, a condition, a future)."""
    return bool(stack and stack.python and _WAITS_FOR_ITEMS.search(stack.python[0].file))


def gets_an_item(stack: CallStack | None) -> bool:
    """Whether it waits at a queue or a data loader, however often it looks meanwhile."""
    return bool(waits_for_items(stack) and stack and any(_GETS.search(place.file) for place in stack.python))


def asks_another(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits for the answer of another process that it has asked."""
    return bool(stack and any(_ASKS_ANOTHER.search(place.file) for place in stack.python))


def runs_program(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits for a program or a process that it has started: for what it says, or its end."""
    return bool(stack and any(_RUNS_PROGRAM.search(place.file) for place in _of_this_process(stack.python)))


# Chosen time


def empty_spans(sync_intervals: Array) -> Spans:
    """When nothing was enqueued, by syncing thread."""
    return _spans(sync_intervals, "prev_sync_tid", "prev_sync_end_ns", "first_launch_ns")


def host_spans(sync_intervals: Array) -> Spans:
    """When nothing was enqueued and while it was enqueued, by the critical-path threads."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for part in (
        empty_spans(sync_intervals),
        _spans(sync_intervals, "first_launch_tid", "first_launch_ns", "sync_start_ns"),
    ):
        for tid, found in part.items():
            spans[tid] += found
    return spans


def spans_of(segments: Iterable[Segment]) -> Spans:
    """When the threads of these pieces of paths were on them."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in segments:
        spans[one.tid].append((one.begin_ns, one.end_ns))
    return spans


def _spans(sync_intervals: Array, tid: str, begin: str, end: str) -> Spans:
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for thread, start, stop in sync_intervals[[tid, begin, end]].tolist():
        spans[thread].append((start, stop))
    return spans


# Samples in it


def stays(evidence: Evidence, process: int, windows: Iterable[Window], spans: Spans | None, state: int) -> list[Stay]:
    """Where threads of a process ran (RUN) or slept (SLEEP) within the spans (None: in all windows), most time first.

    A sleep is known by what its thread did as it began; where too few were looked at so, by who was seen asleep.
    """
    rows = evidence.samples(windows, process)
    rows = rows[np.isin(rows["state"], _ASLEEP) if state == SLEEP else rows["state"] == state]
    if spans is not None and len(rows):
        rows = rows[_is_inside(rows, spans)]
    if spans is not None and state == SLEEP:
        rows = _better(rows, _looks(evidence, process, spans))
    counts: Counter[tuple[int, bool, int]] = Counter()
    sums: Counter[tuple[int, bool, int]] = Counter()
    for tid, mark, stack, ns in rows[["tid", "is_collecting", "stack_hash", "weight_ns"]].tolist():
        counts[tid, bool(mark), stack] += 1
        sums[tid, bool(mark), stack] += ns
    evidence.stacks.read(stack for _, _, stack in sums)
    return [Stay(*key[:2], evidence.stacks.of(key[2]), counts[key], ns) for key, ns in sums.most_common()]


def _looks(evidence: Evidence, process: int, spans: Spans) -> Array:
    """What of the sleeps that were looked at as they began lies within the spans, each in the form of a sample."""
    found = evidence.waits.looks(spans) if evidence.has_offcpu else np.zeros(0, OFFCPU_DTYPE)
    # in a call that may wait for the GPU it is at no place of its own
    found = found[(found["process"] == process) & np.isin(found["state"], _ASLEEP) & (found["is_gpu_call"] == 0)]
    begins, ends = found["start_ns"], found["start_ns"] + found["duration_ns"]
    ends = np.where(found["woken_ns"] > 0, np.clip(found["woken_ns"], begins, ends), ends)
    rows = np.zeros(len(found), SAMPLE_DTYPE)
    for name in ("tid", "state", "stack_hash"):
        rows[name] = found[name]
    rows["time_ns"] = begins
    for tid, mine in spans.items():
        chosen = found["tid"] == tid
        if chosen.any():
            meant = WindowSpans(Window(begin_ns=begin, end_ns=end) for begin, end in mine)
            rows["weight_ns"][chosen] = meant.shares(begins[chosen], ends[chosen]) * (ends - begins)[chosen]
    asleep: Array = rows[rows["weight_ns"] > 0]
    return asleep


def _better(samples: Array, looks: Array) -> Array:
    """Of each thread the looks at its sleeps, unless there are few and it was seen asleep more often."""
    threads, counts = np.unique(looks["tid"], return_counts=True)
    known = Counter(samples["tid"][samples["stack_hash"] != 0].tolist())
    chosen = [tid for tid, count in zip(threads.tolist(), counts, strict=True) if count >= min(MIN_SAMPLES, known[tid])]
    left, taken = samples[~np.isin(samples["tid"], chosen)], looks[np.isin(looks["tid"], chosen)]
    return np.concatenate([left, taken])


def _is_inside(rows: Array, spans: Spans) -> Array:
    inside = np.zeros(len(rows), bool)
    for tid, mine in spans.items():
        chosen = rows["tid"] == tid
        if chosen.any():
            ordered = np.array(sorted(mine), np.int64)
            index = np.searchsorted(ordered[:, 0], rows["time_ns"][chosen], side="right") - 1
            ends = np.maximum.accumulate(ordered[:, 1])
            inside[chosen] = (index >= 0) & (rows["time_ns"][chosen] < ends[np.maximum(index, 0)])
    return inside


def spent(found: Sequence[Stay]) -> Spent:
    """These samples together, with the most frequent line of the function that they were in most."""
    by_function: Counter[tuple[str, str]] = Counter()
    by_line: Counter[CodeLine] = Counter()
    for one in found:
        if one.line:
            by_function[one.line.file, one.line.function] += one.ns
            by_line[one.line] += one.ns
    line = None
    if by_function:
        function = by_function.most_common(1)[0][0]
        line = next(place for place, _ in by_line.most_common() if (place.file, place.function) == function)
    return Spent(ns=sum(one.ns for one in found), count=sum(one.count for one in found), line=line)


def waited_at(evidence: Evidence, process: int, windows: Sequence[Window], waits: Sequence[Segment]) -> CodeLine | None:
    """The line at which a process went to sleep for these waits in the kernel, or was seen in such ones.

    Where nobody looked at it then, as at few short waits: the line at which it was seen to run just before.
    """
    asleep = spent(stays(evidence, process, windows, spans_of(waits), SLEEP)).line
    seen = (evidence.sampled_line(window, process, states=("io", "uninterruptible")) for window in windows)
    return asleep or next((line for line in seen if line), None) or _ran_before(evidence, process, windows, waits)


def _ran_before(
    evidence: Evidence, process: int, windows: Sequence[Window], waits: Sequence[Segment]
) -> CodeLine | None:
    just_before = spans_of(replace(one, begin_ns=one.begin_ns - _JUST_BEFORE_NS, end_ns=one.begin_ns) for one in waits)
    return spent(stays(evidence, process, windows, just_before, RUN)).line


def at(line: CodeLine | None) -> str:
    """The line in a sentence."""
    return f", {line}" if line else ""


def matching(found: Iterable[Stay], is_meant: Callable[[CallStack | None], bool]) -> float:
    """Of these samples with a stack, the share that is meant."""
    known = [one for one in found if one.stack is not None and one.stack.python]
    total = sum(one.ns for one in known)
    return sum(one.ns for one in known if is_meant(one.stack)) / total if total else 0.0


def _of_this_process(frames: Sequence[PythonPlace]) -> Sequence[PythonPlace]:
    """The frames inside the begin of a forked worker: what lies outside it is where its parent forked."""
    begins = (index for index, place in enumerate(frames) if _FORKED.search(place.file))
    return frames[: next(begins, len(frames))]


def _line(place: PythonPlace) -> CodeLine:
    return CodeLine(file=place.file, line=place.line, function=place.function)
