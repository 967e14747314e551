"""Turns the raw memory of a Python string into text.

Source: CPython, Include/cpython/unicodeobject.h: the bit field `state` holds kind (3 bits), compact (1), ascii (1).
"""

from __future__ import annotations

_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # by kind: bytes per character


def bytes_per_character(state: int, state_shift: int) -> int | None:
    """Bytes per character of a string; None if `state` is not that of a string."""
    kind = state >> state_shift & 7
    return kind if kind in _ENCODINGS else None


def decode_string(raw: bytes, length: int, state: int, state_shift: int) -> str | None:
    """The text of a string whose characters are (or begin with) `raw`; None if `state` is not that of a string.

    length: in characters, of the whole. state_shift: of `kind` in `state`. A string that was cut ends with "...".
    """
    kind = bytes_per_character(state, state_shift)
    if kind is None:
        return None
    whole = raw[: min(length * kind, len(raw) // kind * kind)]
    text = whole.decode(_ENCODINGS[kind], errors="replace")
    return text if len(whole) == length * kind else text + "..."
