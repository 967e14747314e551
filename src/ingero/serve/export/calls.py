"""Recorded calls and host events as slices on their thread; also block I/O by device and NCCL by communicator."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.events import STATE_COLUMNS, WAKER_KINDS, CallFlag
from ingero.ops import NCCL_DATATYPES, NCCL_REDUCE_OPS, Source
from ingero.serve.export.model import Address, Args, Slice, Value
from ingero.serve.export.tracks import Tracks
from ingero.serve.text.stack_lines import stack_lines
from ingero.store.call_stacks import call_stack
from ingero.store.records import Communicator
from ingero.store.streaming.names import Names
from ingero.store.streaming.stream_rows import EventRow
from ingero.store.streaming.streams import Streams

CATEGORIES = {source.value: source.name.lower() for source in Source}

_CLOCKS = slice(EventRow._fields.index(STATE_COLUMNS[0]), EventRow._fields.index(STATE_COLUMNS[-1]) + 1)
_CALLS = frozenset({Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL})
_FLAG_TEXTS = {
    flags: ", ".join(one.name.lower() for one in CallFlag if flags & one and one.name) for flags in range(128)
}
_KEPT_STACKS = 1 << 12  # of a few KB each
_MINOR_BITS = 20  # of the kernel's dev_t
_SEQUENCE_BITS = 40  # of column function of a NCCL call; above it the number of the communicator

# NCCL calls whose arg2 names a data type: collectives, sends and receives (view nccl_events has the same list)
_TYPED = frozenset({3, 4, 5, 6, 7, 8, 12, 13, 18, 19, 20})
_TO_PEER = frozenset({7, 8})


def call_slices(streams: Streams, tracks: Tracks, names: Names) -> Iterator[Slice]:
    """Slices of every recorded event, in the order of time."""
    places = _Places(names)
    for row in streams.events():
        name = names.ops.get((row.source, row.op)) or f"{row.source}/{row.op}"
        category = CATEGORIES.get(row.source, "other")
        end_ns = row.start_ns + row.duration_ns
        if row.source == Source.IO:
            track = tracks.gpu_stream(
                tracks.node(row.session), _device(row), start_ns=row.start_ns, end_ns=end_ns, can_nest=False
            )
            args = _io_args(row, names)
        else:
            track = tracks.on_thread(row, end_ns)
            args = _args(row, tracks, names, places)
        yield Slice(track, row.start_ns, row.duration_ns, name, category, args)
        if row.source == Source.NCCL and row.op in _TYPED:
            yield _collective(row, tracks, names, name)


class _Places:
    """The line of a stack, and the whole stack, as arguments of a slice."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._args: dict[int, Args] = {}

    def of(self, stack_hash: int) -> Args:
        args = self._args.get(stack_hash)
        if args is None:
            if len(self._args) >= _KEPT_STACKS:
                self._args.clear()
            args = self._args[stack_hash] = self._read(stack_hash)
        return args

    def _read(self, stack_hash: int) -> Args:
        stored = self._names.stack(stack_hash)
        if stored is None:
            return ()
        stack = call_stack(stored)
        own = stack.own
        line: Args = (("line", own.short),) if own else ()
        return (*line, ("stack", "\n".join(stack_lines(stack))))


def _args(row: EventRow, tracks: Tracks, names: Names, places: _Places) -> Args:
    """Arguments of a call's slice: thread-state time, objects it worked on, what delayed it, where it was made."""
    args: list[tuple[str, Value]] = []
    if row.run_ns is not None:
        args += [(name, value) for name, value in zip(STATE_COLUMNS, _clocks(row), strict=True) if value]
        if row.residual_ns:
            args.append(("residual_ns", row.residual_ns))
    if row.arg0:
        args.append(("bytes", row.arg0))
    if row.ret_code:
        args.append(("ret_code", row.ret_code))
    if row.source in _CALLS:
        _add_call(args, row, names)
    if row.culprit_pid:
        args.append(("culprit", f"{names.text(row.culprit_name)} [{row.culprit_pid}]"))
        args.append(("culprit_ns", row.culprit_ns))
    if row.waker_kind:
        args.append(("woken_by", _waker(row, names)))
    if row.detail:
        args.append(("detail", names.text(row.detail)))
    if row.flags:
        args.append(("flags", _FLAG_TEXTS.get(row.flags) or str(row.flags)))
    container = tracks.container(row.cgroup_id)
    if container:
        args.append(("container", container))
    if row.stack_hash:
        args.extend(places.of(row.stack_hash))
    return tuple(args)


def _clocks(row: tuple[object, ...]) -> tuple[int | None, ...]:
    return row[_CLOCKS]  # type: ignore[return-value]  # the fields of these names


def _add_call(args: list[tuple[str, Value]], row: EventRow, names: Names) -> None:
    if row.gpu_id >= 0:
        args.append(("gpu", row.gpu_id))
    if row.stream:
        args.append(("stream", Address(row.stream)))
    if row.caller_library:
        args.append(("caller_library", names.text(row.caller_library)))
    if row.function and row.source != Source.NCCL:
        kernel = names.kernel(row.process, row.function, row.start_ns)
        args.append(("kernel", kernel) if kernel else ("kernel_address", Address(row.function)))


def _waker(row: EventRow, names: Names) -> str:
    kind = WAKER_KINDS[row.waker_kind or 0]
    return f"{names.text(row.waker_name)} [{row.waker_tid}]" if row.waker_tid else kind


def _device(row: EventRow) -> str:
    return f"block I/O {row.arg2 >> _MINOR_BITS}:{row.arg2 & (1 << _MINOR_BITS) - 1}" if row.arg2 else "block I/O"


def _io_args(row: EventRow, names: Names) -> Args:
    issuer = f"{names.text(row.comm)} [{row.pid}]"
    args: Args = (("bytes", row.arg0), ("sector", row.arg1), ("issued_by", issuer))
    return (*args, ("detail", names.text(row.detail))) if row.detail else args


def _collective(row: EventRow, tracks: Tracks, names: Names, name: str) -> Slice:
    """An NCCL call as a slice on the track of its communicator."""
    found = _communicator(row, names)
    if found is None or found.comm_id_hash is None:
        title = f"NCCL communicator at {row.arg1:#x}"
    else:
        rank = f", rank {found.rank} of {found.nranks}" if found.rank is not None else ""
        title = f"NCCL communicator {found.comm_id_hash & (1 << 64) - 1:#x}{rank}"
    track = tracks.gpu_stream(
        tracks.process(row.session, row.process, row.pid),
        title,
        start_ns=row.start_ns,
        end_ns=row.start_ns + row.duration_ns,
    )
    return Slice(track, row.start_ns, row.duration_ns, name, "communicator", tuple(_collective_args(row)))


def _communicator(row: EventRow, names: Names) -> Communicator | None:
    """A call's communicator: by the number that the call carries, else the newest one with its handle."""
    number = row.function >> _SEQUENCE_BITS
    end_ns = row.start_ns + row.duration_ns
    for communicator in names.communicators(row.process):
        if (
            communicator.number == number
            if row.function
            else communicator.handle == row.arg1 and communicator.created_ns <= end_ns
        ):
            return communicator
    return None


def _collective_args(row: EventRow) -> Iterator[tuple[str, Value]]:
    sequence = row.function & (1 << _SEQUENCE_BITS) - 1
    if sequence:
        yield "sequence", sequence
    yield "bytes", row.arg0
    datatype, operation, other = row.arg2 & 0xFF, (row.arg2 >> 8 & 0xFF) - 1, (row.arg2 >> 16 & 0xFFFFFF) - 1
    if datatype < len(NCCL_DATATYPES):
        yield "datatype", NCCL_DATATYPES[datatype][0]
    if 0 <= operation < len(NCCL_REDUCE_OPS):
        yield "reduce_op", NCCL_REDUCE_OPS[operation]
    if other >= 0:
        yield "peer" if row.op in _TO_PEER else "root", other
