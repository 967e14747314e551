"""Writes recorded calls as collapsed stacks, the input of flame graph tools: `outer;inner;call weight` per line."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath

from ingero.errors import IngeroError
from ingero.foreign_text import label
from ingero.serve.export.samples import Place, Sample
from ingero.store.call_stacks import PythonPlace

_NO_STACK = "[no stack stored]"


class Weight(enum.Enum):
    """The meaning of a frame's width: ns in calls, number of calls, or ns of calls spent off the CPU."""

    TIME = "time"
    CALLS = "calls"
    OFFCPU = "offcpu"


class NoBreakdownError(IngeroError):
    """The recording has no thread-state time of calls."""

    def __init__(self) -> None:
        super().__init__(
            "these calls were recorded without thread-state time: how long they were off the CPU is unknown",
            hint="--weight time, or record again with this version of ingero",
        )


def write_flamegraph(samples: Iterable[Sample], weight: Weight, write: Callable[[bytes], object]) -> int:
    """Write the lines; returns their number. Stacks without weight are left out.

    Raises:
        NoBreakdownError: there are calls, but none with an account, and the weight wants one.
    """
    lines, has_calls, has_breakdown = 0, False, False
    for sample in samples:
        has_calls, has_breakdown = True, has_breakdown or sample.offcpu_ns is not None
        value = _value(sample, weight)
        if value:
            write(f"{';'.join(_frames(sample))} {value}\n".encode("utf-8", "replace"))
            lines += 1
    if weight is Weight.OFFCPU and has_calls and not has_breakdown:
        raise NoBreakdownError
    return lines


def _value(sample: Sample, weight: Weight) -> int:
    if weight is Weight.CALLS:
        return sample.calls
    return sample.time_ns if weight is Weight.TIME else sample.offcpu_ns or 0


def _frames(sample: Sample) -> Iterator[str]:
    """The frames of a sample, outermost first."""
    yield _clean(process_text(sample))
    if not sample.places:
        yield _NO_STACK
    for place in reversed(sample.places):
        yield _clean(_text(place))
    yield _clean(sample.op)


def process_text(sample: Sample) -> str:
    """A process and its rank."""
    name = sample.process.name if sample.process and sample.process.name else "process"
    rank = sample.process.rank if sample.process else None
    return f"{name} [{sample.pid}]" + (f", rank {rank}" if rank is not None else "")


def _text(place: Place) -> str:
    if isinstance(place, PythonPlace):
        file = PurePath(place.file).name
        return f"{place.function} ({file}:{place.line})" if place.line else f"{place.function} ({file})"
    return place.text


def _clean(text: str) -> str:
    """A name without characters that separate frames or lines, or act on a terminal."""
    return label(text.replace(";", ":"))
