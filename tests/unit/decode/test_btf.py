"""Layouts come from the compiled objects; names that Python repeats are compared with them."""

from __future__ import annotations

import enum
import platform

import numpy as np
import pytest

from ingero.attach.kernel_side import Admission
from ingero.attach.objects import object_path
from ingero.capture.stacks import process_stacks, python_layouts
from ingero.capture.steps.steps import ProcessWatch
from ingero.decode.btf import Btf, LayoutError, btf_of
from ingero.events import (
    BLOCKED_KINDS,
    MEMORY_LIMITS,
    THREAD_STATES,
    WAKER_KINDS,
    CallFlag,
    CommunicatorKind,
    HostFlag,
    HostKind,
    LifecycleKind,
    SampleFlag,
    SyncIntervalFlag,
)

LAYOUTS = btf_of(object_path("layouts"))
RECORDS = ("call_record", "sync_interval_record", "offcpu_record", "lifecycle_record", "host_record")


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_rings_have_no_holes_and_a_multiple_of_eight_bytes(name: str) -> None:
    dtype = LAYOUTS.dtype(name)
    assert dtype.itemsize % 8 == 0
    assert sum(dtype[field].itemsize for field in dtype.names or ()) == dtype.itemsize


def test_clocks_are_arrays_of_eight() -> None:
    assert LAYOUTS.dtype("call_record")["state_ns"].shape == (8,)


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


@pytest.mark.parametrize(
    ("enum_name", "prefix", "names"),
    [
        ("thread_state", "STATE_", THREAD_STATES),
        ("waker_kind", "WAKER_", WAKER_KINDS),
        ("memory_limit", "LIMIT_", MEMORY_LIMITS),
        ("blocked_kind", "BLOCKED_", (*BLOCKED_KINDS, "kinds")),
    ],
)
def test_states_wakers_and_limits_are_named_as_in_c(enum_name: str, prefix: str, names: tuple[str, ...]) -> None:
    in_c = {name.removeprefix(prefix).lower(): value for name, value in LAYOUTS.enum(enum_name).items()}
    assert in_c == {name: index for index, name in enumerate(names)}


@pytest.mark.parametrize(
    ("enum_name", "prefix", "members"),
    [
        ("call_flag", "CALL_", CallFlag),
        ("sync_interval_flag", "SYNC_INTERVAL_", SyncIntervalFlag),
        ("host_flag", "HOST_", HostFlag),
        ("host_kind", "HOST_", HostKind),
        ("lifecycle_kind", "LIFECYCLE_", LifecycleKind),
        ("communicator_kind", "COMMUNICATOR_", CommunicatorKind),
        ("sample_flag", "SAMPLE_", SampleFlag),
        ("admission_mode", "ADMIT_", Admission),
        ("process_watch", "WATCH_", ProcessWatch),
    ],
)
def test_kinds_and_flags_are_those_of_c(enum_name: str, prefix: str, members: type[enum.IntEnum]) -> None:
    in_c = {name.removeprefix(prefix): value for name, value in LAYOUTS.enum(enum_name).items()}
    in_c.pop("KINDS", None)  # how many there are
    in_python = {member.name: member.value for member in members if member.value < 1 << 8}
    assert in_python == in_c


def test_what_is_said_of_python_frames_goes_by_the_numbers_of_c() -> None:
    assert set(process_stacks._PYTHON_ENDINGS) == set(LAYOUTS.enum("python_flag").values())
    in_c = LAYOUTS.enum("python_instruction")
    assert tuple(in_c[f"PYTHON_{name}"] for name in ("BYTES", "UNITS", "POINTER")) == (
        python_layouts.BYTES,
        python_layouts.UNITS,
        python_layouts.POINTER,
    )


def test_an_unknown_structure_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match="no_such_record"):
        LAYOUTS.dtype("no_such_record")


def test_a_section_that_is_no_btf_is_refused() -> None:
    with pytest.raises(LayoutError, match="magic"):
        Btf(b"\0" * 64)


def test_objects_exist_for_this_machine() -> None:
    assert platform.machine() in str(object_path("scheduler"))
