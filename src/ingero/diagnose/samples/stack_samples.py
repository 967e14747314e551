"""Stack samples in chosen time: the line with most of that time, and what the thread was doing there."""

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
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.events import THREAD_STATES
from ingero.store.arrays.arrays import OFFCPU_DTYPE, SAMPLE_DTYPE
from ingero.store.arrays.spans import Spans as WindowSpans
from ingero.store.call_stacks import CallStack, PythonPlace, own_place
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]
Spans: TypeAlias = Mapping[int, Sequence[tuple[int, int]]]  # by thread id: begins and ends, unix ns

RUN = THREAD_STATES.index("run")
SLEEP = THREAD_STATES.index("sleep")
_ASLEEP = tuple(THREAD_STATES.index(name) for name in ("sleep", "io", "uninterruptible"))
MIN_SAMPLES = 5  # fewer name no line (docs/adr/0030)
_JUST_BEFORE_NS = 11_000_000  # the time that one sample stands for at the highest rate
_SIGMAS = 2  # standard errors by which sampled time may be too short (docs/adr/0030)
_PASSING = re.compile(r"/multiprocessing/(queues|reductions?|connection|synchronize|managers|shared_memory)\.py$")
_FORKED = re.compile(r"/multiprocessing/process\.py$")
_LOADER = re.compile(r"/utils/data/")
_GETTERS = frozenset(("__getitem__", "__getitems__"))
_WAITS_FOR_ITEMS = re.compile(r"/(queue|threading|selectors|concurrent/futures/\w+|asyncio/\w+)\.py$")
_TAKES_ITEMS = re.compile(
    r"/(queue|multiprocessing/(queues|pool|connection|synchronize)|concurrent/futures/\w+)\.py$|/utils/data/|"
    r"/nvidia/dali/_multiproc/"
)
# Files of compilers, whole ones and those that also have what runs compiled code: of these, the functions that compile.
_COMPILERS = re.compile(
    r"/(torch/_inductor/async_compile|torch/_inductor/compile_worker/\w+|torch/utils/cpp_extension|"
    r"triton/compiler/code_generator|triton/runtime/build|jax/_src/compilation_cache)\.py$"
)
_ALSO_COMPILES = re.compile(
    r"/(torch/_dynamo/convert_frame|torch/_inductor/(compile_fx|codecache)|triton/(compiler/compiler|runtime/jit)|"
    r"jax/_src/(compiler|interpreters/mlir)|numba/cuda/(compiler|codegen))\.py$"
)
_COMPILE = re.compile(r"(^|_)compile(?!d|_wrapper)|codegen|convert_frame|make_ir|lower_jaxpr")
_EVENT_LOOP = re.compile(
    r"/(ipykernel|tornado|IPython|prompt_toolkit|uvicorn|gunicorn|hypercorn|socketserver|wsgiref|asyncio/base_events|"
    r"asyncio/selector_events|selectors|pdb|cmd|code)\b"
)
_OPTIMIZER = re.compile(r"/(torch|minitorch)/optim\b|/(optax|apex/optimizers)/")
_AUTOGRAD = re.compile(r"/(torch|minitorch)/autograd\b")
_BACKWARD = frozenset(("backward", "_engine_run_backward"))  # its functions; others run in inference, too
_GETS = re.compile(r"/queue\.py$|/multiprocessing/queues\.py$|/utils/data/")
_ASKS_ANOTHER = re.compile(
    r"/(multiprocessing/managers|http/client|xmlrpc/client|ftplib|smtplib|urllib3/\w+|redis/\w+|grpc/_channel|"
    r"httpcore/.+|aiohttp/client\w*|pymongo/.+|pymysql/\w+|psycopg\d?/\w+|wandb/sdk/.+)\.py$"
)
_LAUNCHES = re.compile(r"(^|/)(torch|torch_xla|triton|jax|flax|tensorflow|cupy|paddle|apex|flash_attn|minitorch)/")
_RUNS_PROGRAM = re.compile(r"/(subprocess|multiprocessing/popen_\w+)\.py$")


class Doing(enum.Enum):
    """What a running thread outside calls was doing, as far as its stack shows. The values are texts."""

    COLLECTING = "collecting garbage"
    PASSING = "passing items between processes"
    LOADING = "loading data"
    COMPILING = "compiling GPU code"
    COMPUTING = "computing"


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples of one thread in one state with one stack."""

    tid: int
    is_collecting: bool
    stack: CallStack | None
    count: int
    ns: int

    @property
    def doing(self) -> Doing:
        """What the thread was doing."""
        return Doing.COLLECTING if self.is_collecting else doing_of(self.stack)

    @property
    def line(self) -> CodeLine | None:
        """The user's own line, else the innermost one; a native function in a stack without Python frames."""
        if self.stack is None:
            return None
        own = own_place(_of_this_process(self.stack.python))
        if own:
            return _line(own)
        native = self.stack.issuer
        return CodeLine(file=native.file, line=0, function=native.symbol) if native else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTime:
    """The time that some samples stand for. line: the line with most of it."""

    ns: float
    count: int
    line: CodeLine | None

    @property
    def at_most_ns(self) -> float:
        """The upper bound of the time, with the error of the samples, ns."""
        return self.ns * (1 + _SIGMAS / math.sqrt(max(self.count, 1)))

    @property
    def is_enough(self) -> bool:
        """Whether there are enough samples to name a line."""
        return self.count >= MIN_SAMPLES


def doing_of(stack: CallStack | None) -> Doing:
    """What a running thread with this stack is doing."""
    frames = stack.python if stack else ()
    if frames and _PASSING.search(frames[0].file):
        return Doing.PASSING
    if compiles(stack):
        return Doing.COMPILING
    iterates = False
    for place in reversed(frames):
        iterates = iterates or _name(place) == "__next__"
        if _LOADER.search(place.file) or (iterates and _name(place) in _GETTERS):
            return Doing.LOADING
    return Doing.COMPUTING


def may_launch(stack: CallStack | None) -> bool:
    """Whether a running thread may be inside a kernel launch: its innermost frame is a framework's that launches."""
    innermost = stack.python[0] if stack and stack.python else None
    return bool(innermost and not innermost.is_own and _LAUNCHES.search(innermost.file))


def waits_for_items(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits for something from another thread (a queue, a condition, a future)."""
    return bool(stack and stack.python and _WAITS_FOR_ITEMS.search(stack.python[0].file))


def gets_an_item(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits at a queue or a data loader, even if it wakes up to check in between."""
    return bool(waits_for_items(stack) and stack and any(_GETS.search(place.file) for place in stack.python))


def takes_items(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits for what its workers make: at a queue, a pool or a data loader."""
    return bool(stack and any(_TAKES_ITEMS.search(place.file) for place in stack.python)) and not compiles(stack)


def compiles(stack: CallStack | None) -> bool:
    """Whether a thread compiles GPU code, or waits for who does; not where it runs what was compiled."""
    return bool(
        stack
        and any(
            _COMPILERS.search(place.file) or (_ALSO_COMPILES.search(place.file) and _COMPILE.search(_name(place)))
            for place in stack.python
        )
    )


def trains(stack: CallStack | None) -> bool:
    """Whether a thread is in a backward pass or an optimizer."""
    return bool(
        stack
        and any(
            _OPTIMIZER.search(place.file) or (_AUTOGRAD.search(place.file) and _name(place) in _BACKWARD)
            for place in stack.python
        )
    )


def _name(place: PythonPlace) -> str:
    return place.function.rpartition(".")[2]


def waits_for_requests(stack: CallStack | None) -> bool:
    """Whether a sleeping thread is in an event loop, a server's, or a person's prompt."""
    return bool(stack and stack.python and _EVENT_LOOP.search(stack.python[0].file))


def asks_another(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits for the answer to a request to another process."""
    return bool(stack and any(_ASKS_ANOTHER.search(place.file) for place in stack.python))


def runs_program(stack: CallStack | None) -> bool:
    """Whether a sleeping thread waits for output or the end of a program or process that it has started."""
    return bool(stack and any(_RUNS_PROGRAM.search(place.file) for place in _of_this_process(stack.python)))


# Chosen time


def idle_spans(sync_intervals: Array) -> Spans:
    """Time in which nothing was queued on the GPU, by the thread that synced before."""
    return _spans(sync_intervals, "prev_sync_tid", "prev_sync_end_ns", "first_launch_ns")


def host_spans(sync_intervals: Array) -> Spans:
    """Time in which nothing was queued, or work was being launched, by critical-path thread."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for part in (
        idle_spans(sync_intervals),
        _spans(sync_intervals, "first_launch_tid", "first_launch_ns", "sync_start_ns"),
    ):
        for tid, found in part.items():
            spans[tid] += found
    return spans


def spans_of(segments: Iterable[PathSegment]) -> Spans:
    """The time of these path segments, by thread."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for segment in segments:
        spans[segment.tid].append((segment.begin_ns, segment.end_ns))
    return spans


def _spans(sync_intervals: Array, tid: str, begin: str, end: str) -> Spans:
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for thread, start, stop in sync_intervals[[tid, begin, end]].tolist():
        spans[thread].append((start, stop))
    return spans


# Samples in it


def group_samples(
    evidence: Evidence, process: int, windows: Iterable[Window], spans: Spans | None, state: int
) -> list[SampleGroup]:
    """The samples of a process's threads that ran (RUN) or slept (SLEEP) in the spans, grouped, most time first.

    spans None: all of the windows. For sleep the stacks taken as sleeps began are used; where there are too few of
    them, periodic samples of sleeping threads.
    """
    rows = evidence.samples(windows, process)
    rows = rows[np.isin(rows["state"], _ASLEEP) if state == SLEEP else rows["state"] == state]
    if spans is not None and len(rows):
        rows = rows[_is_inside(rows, spans)]
    if spans is not None and state == SLEEP:
        rows = _prefer_sleep_stacks(rows, _sleep_stacks(evidence, process, spans))
    counts: Counter[tuple[int, bool, int]] = Counter()
    sums: Counter[tuple[int, bool, int]] = Counter()
    for tid, mark, stack, ns in rows[["tid", "is_collecting", "stack_hash", "weight_ns"]].tolist():
        counts[tid, bool(mark), stack] += 1
        sums[tid, bool(mark), stack] += ns
    evidence.stacks.read(stack for _, _, stack in sums)
    return [SampleGroup(*key[:2], evidence.stacks.of(key[2]), counts[key], ns) for key, ns in sums.most_common()]


def _sleep_stacks(evidence: Evidence, process: int, spans: Spans) -> Array:
    """Sleeps within the spans whose stacks were taken as they began, each as a sample with its time in the spans."""
    found = evidence.critical_paths.sleeps_with_stacks(spans) if evidence.has_offcpu else np.zeros(0, OFFCPU_DTYPE)
    # a sleep in a call that may wait for the GPU is not at a place of the program's own
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
            inside = WindowSpans(Window(begin_ns=begin, end_ns=end) for begin, end in mine)
            rows["weight_ns"][chosen] = inside.shares(begins[chosen], ends[chosen]) * (ends - begins)[chosen]
    asleep: Array = rows[rows["weight_ns"] > 0]
    return asleep


def _prefer_sleep_stacks(samples: Array, sleeps: Array) -> Array:
    """For each thread its sleeps with stacks, or its samples where such sleeps are few and samples are more."""
    threads, counts = np.unique(sleeps["tid"], return_counts=True)
    known = Counter(samples["tid"][samples["stack_hash"] != 0].tolist())
    chosen = [tid for tid, count in zip(threads.tolist(), counts, strict=True) if count >= min(MIN_SAMPLES, known[tid])]
    return np.concatenate([samples[~np.isin(samples["tid"], chosen)], sleeps[np.isin(sleeps["tid"], chosen)]])


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


def sampled_time(groups: Sequence[SampleGroup]) -> SampledTime:
    """The time of these samples, with the line of most time in the function of most time."""
    by_function: Counter[tuple[str, str]] = Counter()
    by_line: Counter[CodeLine] = Counter()
    for group in groups:
        if group.line:
            by_function[group.line.file, group.line.function] += group.ns
            by_line[group.line] += group.ns
    line = None
    if by_function:
        function = by_function.most_common(1)[0][0]
        line = next(place for place, _ in by_line.most_common() if (place.file, place.function) == function)
    return SampledTime(ns=sum(group.ns for group in groups), count=sum(group.count for group in groups), line=line)


def line_of_kernel_waits(
    evidence: Evidence, process: int, windows: Sequence[Window], waits: Sequence[PathSegment]
) -> CodeLine | None:
    """The line at which a process went to sleep for these waits in the kernel, or was sampled during such waits.

    Without a stack of either kind, as for a few short waits, the line at which it ran just before them.
    """
    asleep = sampled_time(group_samples(evidence, process, windows, spans_of(waits), SLEEP)).line
    seen = (evidence.sampled_line(window, process, states=("io", "uninterruptible")) for window in windows)
    return asleep or next((line for line in seen if line), None) or _ran_before(evidence, process, windows, waits)


def _ran_before(
    evidence: Evidence, process: int, windows: Sequence[Window], waits: Sequence[PathSegment]
) -> CodeLine | None:
    just_before = spans_of(replace(one, begin_ns=one.begin_ns - _JUST_BEFORE_NS, end_ns=one.begin_ns) for one in waits)
    return sampled_time(group_samples(evidence, process, windows, just_before, RUN)).line


def at(line: CodeLine | None) -> str:
    """The line as the end of a clause, after a comma; "" without a line."""
    return f", {line}" if line else ""


def matching_share(groups: Iterable[SampleGroup], matches: Callable[[CallStack | None], bool]) -> float:
    """The share of time, 0 to 1, with a matching stack in the samples with Python frames."""
    known = [group for group in groups if group.stack is not None and group.stack.python]
    total = sum(group.ns for group in known)
    return sum(group.ns for group in known if matches(group.stack)) / total if total else 0.0


def _of_this_process(frames: Sequence[PythonPlace]) -> Sequence[PythonPlace]:
    """The frames inside a forked worker's entry function; the frames outside are its parent's where it forked."""
    begins = (index for index, place in enumerate(frames) if _FORKED.search(place.file))
    return frames[: next(begins, len(frames))]


def _line(place: PythonPlace) -> CodeLine:
    return CodeLine(file=place.file, line=place.line, function=place.function)
