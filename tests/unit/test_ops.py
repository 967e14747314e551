"""The table of traced operations is consistent with itself, with the attach cookie and with the real libraries."""

from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

import ingero.demo.gpusim
from ingero.ops import (
    BY_CODE,
    BY_ID,
    BY_NAME,
    COMMUNICATOR_CALLS,
    NCCL_DATATYPES,
    OPS,
    Arg,
    Flag,
    Kind,
    Library,
    Op,
    op_named,
)

EVERY_OP = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
NAMES = Path(ingero.demo.gpusim.__file__).parent / "names"  # the exported names of the real libraries
MAX_SLOT = 9  # six registers and three stack slots on x86-64; bpf/arguments.h reads no further


def arguments(op: Op) -> list[Arg | None]:
    """In the order of the cookie."""
    function = op.function or op.root or op.origin
    return [op.bytes, op.times or op.reduce_op, op.stream, op.handle or op.to, function, op.extra]


@lru_cache
def exported(library: Library) -> frozenset[str]:
    texts = [path.read_text() for path in NAMES.glob(f"{library.value}.so*.txt")]
    return frozenset(line.split()[0] for text in texts for line in text.splitlines() if line.strip())


def test_ids_are_dense_and_fit_into_the_cookie() -> None:
    assert [op.id for op in OPS] == list(range(1, len(OPS) + 1))
    assert len(OPS) < 256


def test_no_two_rows_share_their_published_code() -> None:
    assert len(BY_CODE) == len(OPS)


def test_no_two_rows_share_a_name_or_alias() -> None:
    names = Counter(name for op in OPS for name in (op.name, *op.aliases))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_symbol_belongs_to_two_rows() -> None:
    symbols = Counter((op.library, symbol) for op in OPS for symbol in op.symbols)
    assert [symbol for symbol, count in symbols.items() if count > 1] == []


@EVERY_OP
def test_a_real_library_exports_the_call(op: Op) -> None:
    assert set(op.symbols) & exported(op.library)


@EVERY_OP
def test_the_short_names_of_older_versions_are_understood(op: Op) -> None:
    assert {op_named(name) for name in (op.name, *op.aliases)} == {op}


def test_an_unknown_name_is_no_operation() -> None:
    assert op_named("cudaGetDevice") is None


@EVERY_OP
def test_the_cookie_carries_every_argument_slot(op: Op) -> None:
    cookie = op.cookie(op.symbols[0])
    slots = [cookie >> 28 + 4 * index & 0xF for index in range(6)]
    assert slots == [arg.slot if arg else 0 for arg in arguments(op)]


@EVERY_OP
def test_only_copies_that_enqueue_have_ends_in_the_host_memory(op: Op) -> None:
    may_touch_host = bool(op.to or op.origin)
    assert not may_touch_host or (op.kind & Kind.COPY and op.handle is None and op.function is None)
    assert may_touch_host or not ("Memcpy" in op.name and "Async" in op.name) or "Peer" in op.name or "DtoD" in op.name


@EVERY_OP
def test_the_cookie_carries_id_kind_and_flags(op: Op) -> None:
    cookie = op.cookie(op.name)
    assert (cookie & 0xFF, cookie >> 8 & 0xFFFFF, cookie >> 52) == (op.id, int(op.kind), int(op.flags))


@EVERY_OP
def test_the_cookie_fits_into_64_bits_for_every_symbol(op: Op) -> None:
    assert all(op.cookie(symbol) < 1 << 64 for symbol in op.symbols)


@EVERY_OP
def test_argument_slots_are_within_what_the_probe_reads(op: Op) -> None:
    assert all(1 <= arg.slot <= MAX_SLOT for arg in arguments(op) if arg)


@EVERY_OP
def test_a_size_has_a_unit(op: Op) -> None:
    assert op.bytes is None or op.bytes.unit == "bytes"


@EVERY_OP
def test_a_per_thread_stream_symbol_sets_the_flag(op: Op) -> None:
    flagged = {symbol for symbol in op.symbols if Flag.PER_THREAD_STREAM & op.cookie(symbol) >> 52}
    assert flagged == {symbol for symbol in op.symbols if symbol.endswith(("_ptsz", "_ptds"))}


@EVERY_OP
def test_an_event_or_device_call_names_its_handle(op: Op) -> None:
    needs_handle = Kind.SYNC_EVENT | Kind.EVENT_RECORD | Kind.STREAM_WAIT | Kind.SET_DEVICE | Kind.SET_CONTEXT
    assert op.handle is not None or not op.kind & needs_handle


@EVERY_OP
def test_flags_that_read_an_argument_have_one(op: Op) -> None:
    assert op.stream is not None or not op.flags & Flag.STREAM_IN_CONFIG
    assert op.handle is not None or not op.flags & Flag.HANDLE_OUT
    assert op.extra is not None or not op.flags & Flag.ASYNC_IF_ON_DEVICE
    assert (op.extra is not None and op.function is not None) or not op.flags & Flag.PITCHED


@EVERY_OP
def test_an_allocation_says_which_memory_it_gives(op: Op) -> None:
    assert bool(op.kind & Kind.ALLOC) <= (op.memory is not None and op.bytes is not None and op.handle is not None)
    assert op.memory is None or op.kind & (Kind.ALLOC | Kind.FREE)


def test_the_indices_hold_every_row() -> None:
    assert set(BY_ID.values()) == set(BY_CODE.values()) == set(BY_NAME.values()) == set(OPS)


def test_a_collective_has_everything_that_its_bytes_and_place_are_made_from() -> None:
    collectives = [op for op in OPS if op.kind & Kind.COLLECTIVE]
    assert all(op.flags & Flag.TYPED and op.bytes and op.extra and op.handle and op.stream for op in collectives)
    assert all(op.kind & Kind.NCCL for op in collectives)
    assert not [op.name for op in OPS if op.flags & Flag.TYPED and (op.times or op.function)], "they share their places"


def test_every_call_that_tells_of_a_communicator_is_exported() -> None:
    names = (NAMES / "libnccl.so.2.txt").read_text().split()
    assert not COMMUNICATOR_CALLS.keys() - set(names)


def test_element_sizes_are_powers_of_two_as_the_kernel_side_needs() -> None:
    assert all(size in (1, 2, 4, 8) for _, size in NCCL_DATATYPES)
