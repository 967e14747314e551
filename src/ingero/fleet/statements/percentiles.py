"""Percentiles over many nodes: each node counts its values per bucket, and buckets are added up.

The least and largest value of each bucket are kept, so that a percentile is exact at both ends of a bucket and where it
holds one or two values; in between the error is less than the bucket's width.
"""

from __future__ import annotations

import math
from functools import partial

import apsw

from ingero.store.sql_text import Value

PER_OCTAVE = 32  # a bucket is 2.2% wide; between 1 us and 100 s there are 850, few enough for each group of a node
_ABOVE_ALL = 40_000  # more than PER_OCTAVE times the exponents of a 64-bit float, so that negative numbers come first

NAMES = frozenset({"percentile", "percentile_cont", "percentile_disc", "median"})


def bucket_sql(value: str) -> str:
    """The number of a value's bucket, growing with the value; NULL for what is no number."""
    near = f"{_ABOVE_ALL} + CAST(floor({PER_OCTAVE} * log2(abs(({value}) + 0.0))) AS INTEGER)"
    return f"iif(({value}) = 0, 0, sign({value}) * ({near}))"


class Percentile:
    """Aggregate function of (bucket, least, largest, how many, where) over the buckets of all nodes.

    where: 0 to 100 for percentile, else 0 to 1. NULL for no value, as SQLite's own.
    """

    def __init__(self, *, name: str, most: float, is_discrete: bool) -> None:
        self._name, self._most, self._is_discrete = name, most, is_discrete
        self._buckets: dict[int, tuple[float, float, int]] = {}
        self._where: float | None = None

    def step(self, *values: Value) -> None:
        """Add one bucket of one node."""
        bucket, least, largest, count, where = values
        if isinstance(where, str | bytes | None) or not 0 <= where <= self._most:
            raise apsw.SQLError(f"the fraction argument to {self._name}() is not between 0.0 and {self._most}")
        self._where = where / self._most
        if least is None:
            return
        if not isinstance(bucket, int) or not isinstance(count, int):
            raise apsw.SQLError(f"input to {self._name}() is not numeric")
        if isinstance(least, str | bytes) or isinstance(largest, str | bytes | None) or count <= 0:
            raise apsw.SQLError(f"input to {self._name}() is not numeric")
        known = self._buckets.get(bucket, (math.inf, -math.inf, 0))
        self._buckets[bucket] = (min(known[0], least), max(known[1], largest), known[2] + count)

    def final(self) -> float | None:
        """The percentile."""
        total = sum(count for _, _, count in self._buckets.values())
        if not total or self._where is None:
            return None
        place = self._where * (total - 1)
        first = int(place)
        below = self._at(first)
        if self._is_discrete or place == first:
            return float(below)
        return below + (self._at(first + 1) - below) * (place - first)

    def _at(self, place: int) -> float:
        """The value at an index in the order of all values, from 0."""
        for _, (least, largest, count) in sorted(self._buckets.items()):
            if place < count:
                share = place / (count - 1) if count > 1 else 0.0
                if self._is_discrete:  # a value that is there
                    return float(least if share < 1 / 2 else largest)
                return least + (largest - least) * share
            place -= count
        return max(largest for _, largest, _ in self._buckets.values())


def register(db: apsw.Connection) -> None:
    """Register the functions on a connection under SQLite's own names, with five arguments."""
    for name, most, is_discrete in (
        ("percentile", 100.0, False),
        ("percentile_cont", 1.0, False),
        ("percentile_disc", 1.0, True),
    ):
        db.create_aggregate_function(name, partial(Percentile, name=name, most=most, is_discrete=is_discrete), 5)
