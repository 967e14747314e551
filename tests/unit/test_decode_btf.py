"""Layouts come from the compiled objects; names that Python repeats are compared with them."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from ingero.attach.objects import object_path
from ingero.decode.btf import Btf, LayoutError, btf_of
from ingero.events import THREAD_STATES, WAKER_KINDS, CallFlag, EpochFlag

LAYOUTS = btf_of(object_path("layouts"))
RECORDS = ("call_record", "epoch_record", "offcpu_record", "lifecycle_record", "host_record")


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_rings_have_no_holes_and_a_multiple_of_eight_bytes(name: str) -> None:
    dtype = LAYOUTS.dtype(name)
    assert dtype.itemsize % 8 == 0
    assert sum(dtype[field].itemsize for field in dtype.names or ()) == dtype.itemsize


def test_clocks_are_arrays_of_eight() -> None:
    assert LAYOUTS.dtype("call_record")["clock_ns"].shape == (8,)


def test_names_are_bytes_and_return_codes_are_signed() -> None:
    dtype = LAYOUTS.dtype("call_record")
    assert dtype["comm"] == np.dtype("S16")
    assert dtype["ret"] == np.dtype("<i4")
    assert dtype["residual_ns"] == np.dtype("<i8")


def test_a_ring_header_moves_every_field() -> None:
    plain, with_header = LAYOUTS.dtype("call_record"), LAYOUTS.dtype("call_record", header_bytes=8)
    assert plain.fields is not None
    assert with_header.fields is not None
    assert with_header.fields["start_ns"][1] == plain.fields["start_ns"][1] + 8
    assert with_header.itemsize == plain.itemsize + 8


def test_states_and_wakers_are_named_as_in_c() -> None:
    states = {name.removeprefix("STATE_").lower(): value for name, value in LAYOUTS.enum("thread_state").items()}
    wakers = {name.removeprefix("WAKER_").lower(): value for name, value in LAYOUTS.enum("waker_kind").items()}
    assert states == {name: index for index, name in enumerate(THREAD_STATES)}
    assert wakers == {name: index for index, name in enumerate(WAKER_KINDS)}


@pytest.mark.parametrize(
    ("enum_name", "prefix", "flags"), [("call_flag", "CALL_", CallFlag), ("epoch_flag", "EPOCH_", EpochFlag)]
)
def test_flags_are_those_of_c(enum_name: str, prefix: str, flags: type[CallFlag] | type[EpochFlag]) -> None:
    in_c = {name.removeprefix(prefix): value for name, value in LAYOUTS.enum(enum_name).items()}
    in_python = {flag.name: flag.value for flag in flags if flag.value < 1 << 8}
    assert in_python == in_c


def test_an_unknown_structure_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match="no_such_record"):
        LAYOUTS.dtype("no_such_record")


def test_a_section_that_is_no_btf_is_refused() -> None:
    with pytest.raises(LayoutError, match="magic"):
        Btf(b"\0" * 64)


def test_objects_exist_for_this_machine() -> None:
    assert platform.machine() in str(object_path("scheduler"))
