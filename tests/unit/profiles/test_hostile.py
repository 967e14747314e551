"""Whatever lies in a profile: it is read or refused, and what is read can be stored."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.errors import IngeroError
from ingero.profiles.json_events import EventSplitter
from ingero.profiles.kineto_event import decode_event, integer, properties_of, time_ns
from ingero.profiles.model import Notes
from ingero.profiles.reading import OF_EMPTY_PROCESSES, read_profiles
from ingero.profiles.recording import write_recording
from tests.unit.profiles import files
from tests.unit.profiles.files import database, new_trace, nsight_tables, read, rpd_tables
from tests.unit.profiles.test_unpacking import zip_of
from tests.unit.profiles.test_xprof import xprof_trace

_MANY = settings(
    max_examples=int(os.environ.get("INGERO_FUZZ", "30")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
_FEW = settings(_MANY, max_examples=int(os.environ.get("INGERO_FUZZ", "3")))  # each writes a recording
_CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=12)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_KEYS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
_ARGS = ["correlation", "External id", "device", "stream", "bytes", "cuda_sync_kind", "wait_on_stream", "Call stack"]
_ARGS += ["Process Group Name", "Process Group Ranks", "Collective name", "Group size", "name"]
_CATEGORIES = ["cuda_runtime", "kernel", "gpu_memcpy", "cuda_sync", "cpu_op", "Operator", "user_annotation"]
_EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "M"]), "cat": st.sampled_from([*_CATEGORIES, "python_function"])},
    optional=dict.fromkeys(_KEYS[2:7], _ANY) | {"args": st.dictionaries(st.sampled_from(_ARGS), _ANY) | _ANY},
)
_UNCATEGORIZED = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "pid": st.sampled_from([1, 701]),
        "tid": st.sampled_from([1, 2, 9]),
        "name": st.sampled_from(["MemcpyH2D", "Memset", "$a.py:99999999 f", "cuLaunchKernel"]) | st.text(max_size=20),
        "ts": st.floats(0, 1e7),
    },
    optional={
        "dur": _ANY,
        "args": st.dictionaries(
            st.sampled_from(["correlation_id", "memcpy_details", "step_num"]),
            st.sampled_from(["size:9", "size:" + "9" * 30, "kind_src:pinned size:\u0661"]) | _ANY,
        ),
    },
)
_ZIP = zip_of({"a.json": new_trace(files.training(3)), "b.json": new_trace(files.training(3))})
_CELLS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=9)


def _changed(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    damaged = bytearray(content)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    return bytes(damaged)


@_MANY
@given(changes=_CHANGES, chunk_bytes=st.integers(1, 5000))
def test_a_trace_with_damaged_bytes_is_read_or_refused(changes: list[tuple[int, int]], chunk_bytes: int) -> None:
    notes = Notes()
    try:
        found = read(_changed(new_trace(files.training(3)), changes), chunk_bytes=chunk_bytes, notes=notes)
    except IngeroError:
        return
    assert all(len(profile.calls) <= 5 * 3 + 1 for profile in found)


@_MANY
@given(text=st.binary(max_size=300))
def test_any_bytes_are_cut_into_events_the_same_in_one_piece_and_in_many(text: bytes) -> None:
    assert _cut(text, len(text) or 1) == _cut(text, 1)


def _cut(text: bytes, chunk_bytes: int) -> object:
    splitter = EventSplitter()
    found: list[bytes] = []
    try:
        for at in range(0, len(text), chunk_bytes):
            found += splitter.feed(text[at : at + chunk_bytes])
    except IngeroError as error:
        return found, str(error)
    return found, splitter.properties, splitter.is_complete


@_MANY
@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_an_event_of_any_bytes_is_decoded_or_none(data: bytes) -> None:
    event = decode_event(data)
    if event is not None:
        assert time_ns(event.ts) is None or time_ns(event.ts) >= 0  # type: ignore[operator]
    assert isinstance(properties_of(data), dict)


@_MANY
@given(value=st.none() | st.integers() | st.floats() | st.text(max_size=30))
def test_any_number_is_one_of_64_bits_or_the_default(value: int | float | str | None) -> None:
    assert -(1 << 62) < integer(value, 7) < 1 << 62


def test_a_deeply_nested_event_is_no_event() -> None:
    deep = b'{"ph": "X", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert decode_event(deep) is None


@_FEW
@given(events=st.lists(_EVENTS, min_size=1, max_size=12))
def test_events_of_any_values_can_be_stored(tmp_path_factory: object, events: list[files.Event]) -> None:
    folder: Path = tmp_path_factory.mktemp("any")  # type: ignore[attr-defined]
    (folder / "trace.json").write_bytes(new_trace([*files.training(1), *events]))
    _store(folder / "trace.json")


@_FEW
@given(events=st.lists(_UNCATEGORIZED, min_size=1, max_size=12))
def test_events_of_xprof_of_any_values_can_be_stored(tmp_path_factory: object, events: list[files.Event]) -> None:
    folder: Path = tmp_path_factory.mktemp("any")  # type: ignore[attr-defined]
    (folder / "a.trace.json").write_bytes(xprof_trace(events))
    _store(folder / "a.trace.json")


def test_a_process_without_anything_in_it_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(new_trace([*files.training(1), {"ph": "X", "cat": "cuda_runtime", "ts": 0}]))
    found = read_profiles([tmp_path / "trace.json"])
    assert len(found.profiles) == 1
    assert found.notes.dropped[OF_EMPTY_PROCESSES] == 1
    _store(tmp_path / "trace.json")


@_MANY
@given(changes=_CHANGES)
def test_a_zip_with_damaged_bytes_is_read_or_refused(tmp_path_factory: object, changes: list[tuple[int, int]]) -> None:
    folder: Path = tmp_path_factory.mktemp("any")  # type: ignore[attr-defined]
    (folder / "a.zip").write_bytes(_changed(_ZIP, changes))
    with suppress(IngeroError):
        read_profiles([folder / "a.zip"], max_bytes=1 << 24)


@_FEW
@given(cells=st.lists(_CELLS, min_size=8, max_size=8), table=st.integers(0, 30), is_rpd=st.booleans())
def test_rows_of_any_cells_can_be_stored(
    tmp_path_factory: object, cells: list[object], table: int, is_rpd: bool
) -> None:
    folder: Path = tmp_path_factory.mktemp("any")  # type: ignore[attr-defined]
    tables = rpd_tables(2) if is_rpd else nsight_tables(steps=2)
    name = sorted(tables)[table % len(tables)]
    columns, known = tables[name]
    tables[name] = (columns, [*known, (cells * 2)[: len(columns.split(","))]])
    _store(database(folder / "profile.sqlite", tables))


@_FEW
@given(changes=_CHANGES)
def test_a_database_with_damaged_bytes_is_read_or_refused(
    tmp_path_factory: object, changes: list[tuple[int, int]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("any")  # type: ignore[attr-defined]
    path = database(folder / "profile.sqlite", nsight_tables(steps=2))
    path.write_bytes(_changed(path.read_bytes(), changes))
    _store(path)


def _store(path: Path) -> None:
    try:
        found = read_profiles([path])
    except IngeroError:
        return
    written = write_recording(path.with_suffix(".db"), found.profiles, found.notes, files=found.files)
    assert written.end_ns >= written.begin_ns
