"""Stacks as the dashboard shows them: those of the longest recorded calls, and a tree of all of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ingero.errors import IngeroError
from ingero.serve.dashboard.selection import ALL, CALL_SOURCES, Selection, sample_times, stack_times
from ingero.serve.dashboard.state import State
from ingero.serve.stack_lines import where_text
from ingero.store.call_stacks import CallStack, StackBook
from ingero.store.reader import Reader
from ingero.store.records import Call, Window

Kind = Literal["all", "python", "native", "op"]

_LEAST_SHARE = 0.002  # of the tree's time; what is shorter stands in its parent alone
_DEEPEST = 100
_NO_STACK = "no stack was stored"


class NoStackError(IngeroError):
    """No stack has that hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One recorded call. stack: its hash, "" where it has none. place: its line, in short. clocks: ns by state."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(State):
    """The longest recorded calls, longest first."""

    calls: list[RecordedCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One function of a stack. line: 0 where it is not known, and of native functions. is_own: the user's own code."""

    kind: Literal["python", "native"]
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
    line; else what the samples stand for.
    """

    of: str
    root: Node
    total_ns: int


def calls(
    reader: Reader, window: Window, state: Mapping[str, Any], process: int | None, limit: int, only: Selection = ALL
) -> Calls:
    """Of GPU and NCCL calls. Each source that was called costs a look at every recorded call of the window."""
    pair, book = only.op_pair, StackBook(reader)
    called = {one.source for one in reader.op_totals(window, process=process)} & set(CALL_SOURCES)
    stacks = _stacks_through(reader, window, process, only, book)
    worst = (
        one
        for source in sorted(called if pair is None else called & {pair[0]})
        for one in reader.worst_calls(
            window, process=process, source=source, op=pair[1] if pair else None, stacks=stacks, limit=limit
        )
    )
    found = sorted(worst, key=lambda one: -one.duration_ns)[:limit]
    book.read(one.stack_hash for one in found)
    return Calls(**state, calls=[_call(one, book.of(one.stack_hash)) for one in found])


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
) -> set[int] | None:
    """The stacks that go through the line; None: all may."""
    if not only.line:
        return None
    numbers = [process] if process is not None else [one.process for one in reader.processes()]
    return {one.stack_hash for number in numbers for one in stack_times(reader, window, number, only, book)}


def tree(
    reader: Reader, window: Window, state: Mapping[str, Any], process: int, of: str, only: Selection = ALL
) -> Tree:
    """What one process spent its time at, outermost function first."""
    book = StackBook(reader)
    root = Node("all", "all", is_own=False)
    if of == "calls":
        for one in stack_times(reader, window, process, only, book):
            _add(root, [*_outermost_first(book.of(one.stack_hash)), _Step(one.name, "op")], one.sum_ns, one.count)
        pair = only.op_pair
        mine = (one for one in reader.op_totals(window, process=process) if one.source in CALL_SOURCES)
        total_ns = sum(one.sum_ns for one in mine if pair in (None, (one.source, one.op)))
    else:
        for sample in sample_times(reader, window, process, only, book):
            steps = [*_outermost_first(book.of(sample.stack_hash)), _Step(f"[{sample.state}]", "op")]
            _add(root, steps, sample.ns, sample.count)
        total_ns = root.ns
    _prune(root, int(root.ns * _LEAST_SHARE))
    return Tree(**state, of=of, root=root, total_ns=total_ns)


def hash_text(stack_hash: int) -> str:
    """As addresses name it: 16 hexadecimal digits."""
    return f"{stack_hash & (2**64 - 1):016x}"


def hash_of(text: str) -> int:
    """The signed number that the file holds."""
    number = int(text, 16)
    return number - 2**64 if number >= 2**63 else number


def _call(one: Call, found: CallStack | None) -> RecordedCall:
    return RecordedCall(
        id=one.event_id,
        op=one.name,
        process=one.process,
        pid=one.pid,
        tid=one.tid,
        thread=one.comm,
        start_ns=one.start_ns,
        duration_ns=one.duration_ns,
        ret_code=one.ret_code,
        bytes=one.bytes,
        kernel=one.kernel_name,
        culprit=one.culprit_name,
        clocks=asdict(one.clocks) if one.clocks else None,
        stack=hash_text(one.stack_hash) if found else "",
        place=where_text(found) if found else "",
    )


def frames_of(found: CallStack) -> list[Frame]:
    """Innermost first, native functions before Python's."""
    native = [Frame(kind="native", function=one.symbol, file=one.file, line=0, is_own=False) for one in found.native]
    return native + [
        Frame(kind="python", function=one.function, file=one.file, line=one.line, is_own=one.is_own)
        for one in found.python
    ]


class _Step(NamedTuple):
    name: str
    kind: Kind
    is_own: bool = False


def _outermost_first(found: CallStack | None) -> list[_Step]:
    if found is None:
        return [_Step(_NO_STACK, "native")]
    steps = [_Step(place.short, "python", place.is_own) for place in reversed(found.python)]
    steps += [_Step(native.text, "native") for native in reversed(found.native)]
    return steps[:_DEEPEST]


def _add(root: Node, steps: Sequence[_Step], ns: int, count: int) -> None:
    root.ns, root.count = root.ns + ns, root.count + count
    node = root
    for step in steps:
        known = next((one for one in node.children if one.name == step.name and one.kind == step.kind), None)
        if known is None:
            known = Node(step.name, step.kind, is_own=step.is_own)
            node.children.append(known)
        node = known
        node.ns, node.count = node.ns + ns, node.count + count


def _prune(node: Node, least_ns: int) -> None:
    node.children = sorted((one for one in node.children if one.ns >= least_ns), key=lambda one: -one.ns)
    for one in node.children:
        _prune(one, least_ns)
