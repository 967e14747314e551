"""Memory of an interpreter that is not what it should be: nothing may come of it but a value or None."""

from __future__ import annotations

import contextlib
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.decode.python_code import from_memory
from ingero.decode.python_strings import decode_string
from ingero.discover.mappings import parse_maps
from ingero.discover.python_layouts import COOKIE, UnknownLayoutError, debug_offsets_bytes, layout_of
from tests.unit.python_layout import LAYOUT

_MANY = settings(
    max_examples=int(os.environ.get("INGERO_FUZZ", "100")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
_LAYOUT = LAYOUT | {"is_key_short": 1}


@given(memory=st.binary(min_size=200, max_size=600), address=st.integers(0, 1 << 64), key=st.integers(0, 1 << 64))
@_MANY
def test_any_memory_is_the_code_object_asked_for_or_none(memory: bytes, address: int, key: int) -> None:
    def read(at: int, size: int) -> bytes:
        if at % 7 == 6:
            raise OSError("nothing is mapped there")
        start = at % len(memory)
        return (memory * (size // len(memory) + 2))[start : start + size]

    assert from_memory(read, address, key, _LAYOUT) is None, "its key cannot be right"


@given(st.binary(max_size=64), st.integers(0, 1 << 64), st.integers(0, (1 << 32) - 1), st.sampled_from([2, 8]))
@_MANY
def test_any_bytes_are_a_string_or_none(raw: bytes, length: int, state: int, shift: int) -> None:
    text = decode_string(raw, length, state, shift)
    assert text is None or len(text) <= len(raw) + 3


@given(st.sampled_from([(3, 12), (3, 13), (3, 14), (3, 15), (3, 16)]), st.binary(max_size=900), st.booleans())
@_MANY
def test_any_offsets_are_a_layout_or_refused(version: tuple[int, int], memory: bytes, has_cookie: bool) -> None:
    with contextlib.suppress(UnknownLayoutError):
        size = debug_offsets_bytes(version)
        layout = layout_of(version, ((COOKIE if has_cookie else b"") + memory).ljust(size, b"\0"))
        assert layout.version == version


@given(st.lists(st.binary(max_size=60), max_size=8))
@_MANY
def test_any_lines_are_mappings_or_left_out(lines: list[bytes]) -> None:
    assert len(list(parse_maps(b"\n".join(lines)))) <= len(lines) * 60
