"""Whatever lies in a file or a name that is somebody else's: parsers answer or refuse, by the error that they name.

The long form of these and of the other tests of damaged input is `make fuzz`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.attach.objects import object_path
from ingero.decode.btf import Btf, LayoutError
from ingero.decode.native.names import demangle, shorten
from ingero.decode.python_code import from_record
from ingero.discover.elf import ElfFile, UnreadableElfError
from ingero.discover.symbol_table import function_offsets, section_contains
from ingero.elf import ElfImage, FileSource

_MANY = settings(
    max_examples=int(os.environ.get("INGERO_FUZZ", "100")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
_BTF = ElfImage(FileSource(object_path("layouts"))).section_bytes(".BTF") or b""
_RECORD = Btf(_BTF).dtype("python_code_record")
_CHANGES = st.lists(st.tuples(st.integers(0, 1 << 24), st.integers(0, 255)), max_size=12)
_LIBRARY = """
int wanted(void) { return 1; }
static __attribute__((used, noinline)) int hidden(void) { return 2; }
int wanted_data = 3;
"""
_SYMTAB = 2  # SHT_SYMTAB
_PIECES = [
    *["_ZN", "_ZL", "_Z", "E", "I", "S_", "S0_", "St", "T_", "Lm4E", "v", "P", "K", "F", "i", "4name", "9", "0", "cl"],
    *[
        "__device_stub_",
        "25__device_stub_",
        "12_GLOBAL__N_1",
        ".cold",
        ".part.0",
        "(",
        ")",
        "<",
        ">",
        "[",
        "operator",
        "é",
    ],
]


def _changed(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    damaged = bytearray(content)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    return bytes(damaged)


@pytest.fixture(scope="module", params=["gnu", "sysv"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small shared library, with one of the two kinds of hash tables."""
    folder = tmp_path_factory.mktemp("fuzzed")
    source, path = folder / "library.c", folder / "library.so"
    source.write_text(_LIBRARY)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,--hash-style={request.param}", "-o", path, source]
    subprocess.run(command, check=True)
    return path


@given(changes=_CHANGES, kept=st.integers(0, 1 << 15))
@_MANY
def test_a_damaged_library_is_read_or_refused(library: Path, changes: list[tuple[int, int]], kept: int) -> None:
    # the headers and tables that lookups go by lie in the first and the last pages
    content = library.read_bytes()
    places = [(at % 1024 if at & 1 else -1 - at % 6000 % len(content), value) for at, value in changes]
    damaged = library.with_name("damaged.so")
    damaged.write_bytes(_changed(content, places)[: kept if kept & 1 else None])
    try:
        with ElfFile(damaged) as elf:
            for offsets in function_offsets(elf, ["wanted", "hidden", "absent"]).values():
                assert all(isinstance(offset, int) for offset in offsets)
            elf.data(["wanted_data"])
            section_contains(elf, ".strtab", b"hidden")
    except UnreadableElfError:
        return


def test_a_symbol_table_that_claims_to_be_endless_is_refused(library: Path) -> None:
    """Found by the long form: reading it would have taken for ever."""
    content = bytearray(library.read_bytes())
    headers, count = int.from_bytes(content[40:48], "little"), int.from_bytes(content[60:62], "little")
    for at in range(headers, headers + 64 * count, 64):
        if content[at + 4] == _SYMTAB:
            content[at + 32 : at + 40] = (1 << 60).to_bytes(8, "little")
    damaged = library.with_name("endless.so")
    damaged.write_bytes(content)
    with ElfFile(damaged) as elf, pytest.raises(UnreadableElfError, match="it ends before offset"):
        function_offsets(elf, ["hidden"])


@given(changes=_CHANGES, kept=st.integers(0, 1 << 16))
@_MANY
def test_damaged_type_information_is_read_or_refused(changes: list[tuple[int, int]], kept: int) -> None:
    # a third of the changes in the header, a third among the types, the rest anywhere
    places = [(at % 24 if at % 3 == 0 else 24 + at % 4096 if at % 3 == 1 else at, value) for at, value in changes]
    _ask(lambda: Btf(_changed(_BTF, places)[: kept if kept & 1 else None]))


@given(st.binary(max_size=400), st.integers(0, 60))
@_MANY
def test_any_types_are_a_layout_or_refused(types: bytes, strings: int) -> None:
    header = _BTF[:8] + b"".join(value.to_bytes(4, "little") for value in (0, len(types), len(types), strings))
    _ask(lambda: Btf(header + types + b"\0a\0int\0python_layout\0".ljust(strings, b"\0")))


def _ask(read: Callable[[], Btf]) -> None:
    try:
        btf = read()
        for name in ("call_record", "python_layout", "a"):
            assert btf.dtype(name).itemsize >= 0
        btf.enum("drop")
    except LayoutError:
        return


@given(st.one_of(st.lists(st.sampled_from(_PIECES), max_size=40).map("".join), st.text(max_size=80)))
@_MANY
def test_any_symbol_has_some_name(symbol: str) -> None:
    for name in (symbol, f"_Z{symbol}", f"_ZN{symbol}E"):
        assert isinstance(shorten(demangle(name)), str)


@pytest.mark.parametrize(
    "symbol", ["_Z" + "P" * 60_000, "_Z1fI" * 9_000, "_Z" + "9" * 9_000 + "__device_stub__Z1fv", "_ZN" * 20_000]
)
def test_a_symbol_made_to_exhaust_its_reader_has_some_name(symbol: str) -> None:
    assert demangle(symbol)


@given(raw=st.binary(max_size=_RECORD.itemsize), shift=st.sampled_from([2, 8]), is_whole=st.booleans())
@_MANY
def test_any_record_is_a_code_object_or_none(raw: bytes, shift: int, is_whole: bool) -> None:
    record = _record(raw, is_whole=is_whole)
    code = from_record(record, shift)
    if code:
        for version in ((3, 9), (3, 10), (3, 12), (3, 15)):
            assert isinstance(code.line(version, 6), (int, type(None)))


def _record(raw: bytes, *, is_whole: bool) -> object:
    import numpy as np  # noqa: PLC0415

    record = np.frombuffer(raw.ljust(_RECORD.itemsize, b"\x07"), _RECORD).copy()
    if is_whole:
        record["flags"], record["table_bytes"] = 0, record["table_bytes"] % (_RECORD["table"].itemsize + 1)
    return record[0]
