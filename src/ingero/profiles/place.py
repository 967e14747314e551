"""The numbers that all rows of an imported process share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.ops import BY_ID
from ingero.profiles.model import Array
from ingero.store.writing.tables import Column, Table

_HASH_BYTES = 7  # a positive number for SQLite

Rows = Iterator[tuple[Table, int, dict[str, Column]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The process of rows. text: returns the number of a text; communicators: numbers by index of the group."""

    process: int
    text: Callable[[str], int]
    communicators: Sequence[int] = ()


def function_id(name: str) -> int:
    """The number of a kernel, equal in every recording; 0 for a call that launches none."""
    return int.from_bytes(hashlib.sha1(name.encode()).digest()[:_HASH_BYTES], "big") if name else 0


def by_op(calls: Array, value: Callable[[int], int]) -> Array:
    """`value` of the operation of each call."""
    table = np.array([value(op) if op in BY_ID else 0 for op in range(256)])
    found: Array = table[calls["op"]]
    return found
