"""NumPy types of the structures that the C headers declare, so that each layout is written once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

_SCALARS = {"uint64_t": "u8", "int64_t": "i8", "uint32_t": "u4", "int32_t": "i4", "double": "f8"}


def struct(header: str, name: str) -> np.dtype[Any]:
    """Return the type of `struct name` in the text of a header.

    Only what the headers here use is understood: fixed-width numbers, `char` arrays, and no implicit padding.

    Raises:
        KeyError: the structure, or the C type of a field, is not known.
    """
    found = re.search(rf"struct {name} {{(.*?)\n}};", header, re.DOTALL)
    if found is None:
        raise KeyError(f"struct {name} is not declared in this header")
    body = re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL)
    fields: list[tuple[str, str]] = []
    for kind, field, length in re.findall(r"(\w+) (\w+)(?:\[(\d+)\])?;", body):
        fields.append((field, f"S{length}" if kind == "char" else _SCALARS[kind]))
    return np.dtype(fields)


def constant(header: str, name: str) -> int:
    """Return the value of a `#define` that is a plain number.

    Raises:
        KeyError: there is none of this name.
    """
    found = re.search(rf"#define {name} (0x[0-9a-f]+|\d+)", header)
    if found is None:
        raise KeyError(f"{name} is not a number in this header")
    return int(found[1], 0)
