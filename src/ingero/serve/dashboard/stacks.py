"""Stacks on the dashboard: those of the longest recorded calls, and a tree of all stacks of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ingero.errors import IngeroError
from ingero.serve.dashboard.selection import ALL, CALL_SOURCES, Selection, placed_times, sample_times
from ingero.serve.dashboard.state import State
from ingero.serve.text.stack_lines import waiting_text, where_text
from ingero.store.call_stacks import CallStack, StackBook, own_marks
from ingero.store.reader import Reader
from ingero.store.records import Call, Window
from ingero.store.waiters import Waiter, Waiters

Kind = Literal["all", "python", "native", "waiting", "op"]

_MIN_SHARE = 0.002  # of the tree's time; what is shorter stands in its parent alone
_DEEPEST = 100
_LOOKED_AT = 2000  # longest calls of threads without Python frames, among which those of a waiting line are looked for
_NO_STACK = "no stack was stored"


class NoStackError(IngeroError):
    """No stack has that hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One recorded call. stack: its hash, "" where it has none. place: its line, in short. clocks: ns by state.

    waiting_thread, waiting: PID/TID of the thread that waits for a call without Python frames, and the hash of what it
    has meanwhile; "" where none is known to wait.
    """

    id: str
    op: str
    process: int
    pid: int
    tid: int
    thread: str
    start_ns: int
    duration_ns: int
    ret_code: int
    bytes: int
    kernel: str
    culprit: str
    clocks: dict[str, int] | None
    stack: str
    place: str
    waiting_thread: str
    waiting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(State):
    """The longest recorded calls, longest first."""

    calls: list[RecordedCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One function of a stack. line: 0 where it is not known, and of native functions. is_own: the user's own code.

    kind: waiting is Python, too, but of the thread that waits for the calling one.
    """

    kind: Literal["python", "native", "waiting"]
    function: str
    file: str
    line: int
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Innermost first, native functions before Python's. note: what is missing of it, and why."""

    stack: str
    frames: list[Frame]
    note: str


@dataclass(slots=True)
class Node:
    """A function or line, and what it called. ns, count: with all that it called; longest child first."""

    name: str
    kind: Kind
    is_own: bool
    ns: int = 0
    count: int = 0
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree(State):
    """of: "calls", the time inside recorded calls; "samples", the time outside calls that samples stand for.

    total_ns: of "calls", the exact time of all calls (of the operation asked for), recorded or not, through whatever
    line; else what the samples stand for. note: what it does not show, and why.
    """

    of: str
    root: Node
    total_ns: int
    note: str


def calls(
    reader: Reader, window: Window, state: Mapping[str, Any], process: int | None, limit: int, only: Selection = ALL
) -> Calls:
    """The longest GPU and NCCL calls. Each source with calls costs a scan of all recorded calls of the window."""
    pair, book = only.op_pair, StackBook(reader)
    called = {total.source for total in reader.op_totals(window, process=process)} & set(CALL_SOURCES)
    sources = sorted(called if pair is None else called & {pair[0]})

    def worst(stacks: set[int] | None, most: int) -> list[Call]:
        found = (
            reader.worst_calls(
                window, process=process, source=source, op=pair[1] if pair else None, stacks=stacks, limit=most
            )
            for source in sources
        )
        return [call for calls_of_source in found for call in calls_of_source]

    waiters = _Waiters(reader, window, book)
    if only.line:
        own, waited = _stacks_through(reader, window, process, only, book)
        through = worst(own, limit) + [
            one for one in worst(waited, _LOOKED_AT) if only.has_call(None, waiters.of(one), book)
        ]
    else:
        through = worst(None, limit)
    found = sorted(through, key=lambda one: -one.duration_ns)[:limit]
    book.read(one.stack_hash for one in found)
    return Calls(**state, calls=[_call(one, book, waiters.of(one)) for one in found])


class _Waiters:
    """Finds the threads that wait for single calls of any process."""

    def __init__(self, reader: Reader, window: Window, book: StackBook) -> None:
        self._reader, self._window, self._book = reader, window, book
        self._known: dict[int, Waiters] = {}

    def of(self, call: Call) -> Waiter | None:
        """The waiter of a call, if the call's own stack has no frames of the user's code."""
        found = self._book.of(call.stack_hash)
        if found is None or not found.is_a_librarys:
            return None
        if call.process not in self._known:
            self._known[call.process] = Waiters(self._reader, self._window, process=call.process)
        return self._known[call.process].of(call.tid, call.start_ns, call.start_ns + call.duration_ns)


def stack(reader: Reader, stack_hash: int) -> Stack:
    """One stored stack.

    Raises:
        NoStackError: none has that hash.
    """
    found = StackBook(reader).of(stack_hash)
    if found is None:
        raise NoStackError(f"no stack {hash_text(stack_hash)} is stored", hint="GET /api/v1/calls names those that are")
    return Stack(stack=hash_text(stack_hash), frames=frames_of(found), note=found.note)


def _stacks_through(
    reader: Reader, window: Window, process: int | None, only: Selection, book: StackBook
) -> tuple[set[int], set[int]]:
    """The stacks that go through the line, and those of calls that a thread at the line waits for."""
    numbers = [process] if process is not None else [process.process for process in reader.processes()]
    placed = [one for number in numbers for one in placed_times(reader, window, number, only, book)[0]]
    waited = {placed_time.time.stack_hash for placed_time in placed if placed_time.waiter}
    return {placed_time.time.stack_hash for placed_time in placed} - waited, waited


def tree(
    reader: Reader, window: Window, state: Mapping[str, Any], process: int, of: str, only: Selection = ALL
) -> Tree:
    """The time of one process as a tree of functions, outermost first."""
    book = StackBook(reader)
    root, note = Node("all", "all", is_own=False), ""
    if of == "calls":
        placed, note = placed_times(reader, window, process, only, book)
        for placed_time in placed:
            waiting = book.of(placed_time.waiter.stack_hash) if placed_time.waiter else None
            steps = [
                *_outermost_first(book.of(placed_time.time.stack_hash), waiting),
                _Step(placed_time.time.name, "op"),
            ]
            _add(root, steps, placed_time.time.sum_ns, placed_time.time.count)
        pair = only.op_pair
        mine = (total for total in reader.op_totals(window, process=process) if total.source in CALL_SOURCES)
        total_ns = sum(total.sum_ns for total in mine if pair in (None, (total.source, total.op)))
    else:
        for sample in sample_times(reader, window, process, only, book):
            steps = [*_outermost_first(book.of(sample.stack_hash)), _Step(f"[{sample.state}]", "op")]
            _add(root, steps, sample.ns, sample.count)
        total_ns = root.ns
    _prune(root, int(root.ns * _MIN_SHARE))
    return Tree(**state, of=of, root=root, total_ns=total_ns, note=note)


def hash_text(stack_hash: int) -> str:
    """A stack hash as in addresses: 16 hexadecimal digits."""
    return f"{stack_hash & (2**64 - 1):016x}"


def hash_of(text: str) -> int:
    """The signed number of a stack hash, as the file holds it."""
    number = int(text, 16)
    return number - 2**64 if number >= 2**63 else number


def _call(call: Call, book: StackBook, waiter: Waiter | None) -> RecordedCall:
    found = book.of(call.stack_hash)
    waiting = waiting_text(waiter, book.of(waiter.stack_hash)) if waiter else ""
    return RecordedCall(
        id=call.event_id,
        op=call.name,
        process=call.process,
        pid=call.pid,
        tid=call.tid,
        thread=call.comm,
        start_ns=call.start_ns,
        duration_ns=call.duration_ns,
        ret_code=call.ret_code,
        bytes=call.bytes,
        kernel=call.kernel_name,
        culprit=call.culprit_name,
        clocks=asdict(call.clocks) if call.clocks else None,
        stack=hash_text(call.stack_hash) if found else "",
        place="  ".join(filter(None, (where_text(found) if found else "", waiting))),
        waiting_thread=waiter.thread if waiter and waiting else "",
        waiting=hash_text(waiter.stack_hash) if waiter and waiting else "",
    )


def frames_of(found: CallStack, waiting: CallStack | None = None) -> list[Frame]:
    """Frames, innermost first, native functions before Python's. waiting: the stack of the thread that waits."""
    native = [Frame(kind="native", function=one.symbol, file=one.file, line=0, is_own=False) for one in found.native]
    return [*native, *_python(found, "python"), *(_python(waiting, "waiting") if waiting else ())]


def _python(found: CallStack, kind: Literal["python", "waiting"]) -> Iterator[Frame]:
    for one, is_own in zip(found.python, own_marks(found.python), strict=True):
        yield Frame(kind=kind, function=one.function, file=one.file, line=one.line, is_own=is_own)


class _Step(NamedTuple):
    name: str
    kind: Kind
    is_own: bool = False


def _outermost_first(found: CallStack | None, waiting: CallStack | None = None) -> list[_Step]:
    if found is None:
        return [_Step(_NO_STACK, "native")]
    steps = [*_python_steps(waiting, "waiting"), *_python_steps(found, "python")]
    steps += [_Step(native.text, "native") for native in reversed(found.native)]
    return steps[:_DEEPEST]


def _python_steps(found: CallStack | None, kind: Kind) -> list[_Step]:
    places = found.python if found else ()
    steps = [_Step(place.short, kind, is_own) for place, is_own in zip(places, own_marks(places), strict=True)]
    return steps[::-1]


def _add(root: Node, steps: Sequence[_Step], ns: int, count: int) -> None:
    root.ns, root.count = root.ns + ns, root.count + count
    node = root
    for step in steps:
        known = next((child for child in node.children if child.name == step.name and child.kind == step.kind), None)
        if known is None:
            known = Node(step.name, step.kind, is_own=step.is_own)
            node.children.append(known)
        node = known
        node.ns, node.count = node.ns + ns, node.count + count


def _prune(node: Node, least_ns: int) -> None:
    node.children = sorted((child for child in node.children if child.ns >= least_ns), key=lambda one: -one.ns)
    for child in node.children:
        _prune(child, least_ns)
