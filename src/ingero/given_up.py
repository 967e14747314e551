"""The things that tracing gives up when it costs too much: code in recordings, sentence, and missing evidence.

A code is stored and compared; it is never renamed, and a changed meaning gets a code of its own. A sentence is written
by the views and may be reworded at any time. What recordings of version 1 hold instead of codes stands in
`store/older/older_values.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """One thing that tracing gives up.

    code: as stored. text: its sentence. evidence: names as rules of the diagnosis need them; none: what is left tells
    as much about every cause.
    """

    code: str
    text: str
    evidence: frozenset[str] = frozenset()


LAUNCHES_AT_DRIVER = GivenUp(
    code="runtime_launches",
    text="kernel launches are traced at the driver only: counts stay exact, the caller shown is the CUDA runtime",
)
EVENTS_AT_DRIVER = GivenUp(
    code="event_times", text="event records and stream waits are counted at the driver, without durations"
)
LAUNCHES_COUNTED = GivenUp(
    code="launch_times",
    text="driver launches are counted, without durations",
    evidence=frozenset({"launch_times"}),
)
EVENTS_OFF = GivenUp(
    code="events",
    text="event records and stream waits are not traced: a wait for an event counts as a wait for the main stream",
    evidence=frozenset({"enqueues"}),
)
MEMORY_OFF = GivenUp(
    code="allocations",
    text="allocations and frees are not traced",
    evidence=frozenset({"allocations", "allocation_times"}),
)
LAUNCHES_OFF = GivenUp(
    code="launches",
    text="kernel launches are not traced: how long the GPU worked between two syncs is unknown",
    evidence=frozenset({"enqueues", "launches", "launch_times"}),
)
COPIES_OFF = GivenUp(
    code="async_copies",
    text="asynchronous copies and memsets are not traced",
    evidence=frozenset({"enqueues", "copies"}),
)
STACKS_OFF = GivenUp(
    code="stacks", text="no stacks are taken for recorded calls", evidence=frozenset({"stack_samples"})
)
PROBES_STAY = GivenUp(
    code="probe_detaching",
    text="probes of calls that are not traced stay attached: this kernel takes 0.1 s to detach each one",
)
HALF_OF_RECORDS = GivenUp(
    code="call_records_50_percent",
    text="50% of the usual number of calls are recorded, and buffers are read every 0.5 s",
)
FIFTH_OF_RECORDS = GivenUp(
    code="call_records_20_percent",
    text="20% of the usual number of calls are recorded, and buffers are read every 1 s",
)
TWENTIETH_OF_RECORDS = GivenUp(
    code="call_records_5_percent",
    text="5% of the usual number of calls are recorded, and buffers are read every 1 s",
)

# Of recordings made while such a gap ended sync intervals otherwise, or not at all.
EVENTS_AND_INTERVALS_OFF = GivenUp(
    code="events_and_sync_intervals",
    text="event records and stream waits are not traced: a wait for an event ends no sync interval",
    evidence=frozenset({"sync_intervals"}),
)
LAUNCHES_AND_INTERVALS_OFF = GivenUp(
    code="launches_and_sync_intervals",
    text="kernel launches are not traced: sync intervals are not comparable",
    evidence=frozenset({"sync_intervals", "enqueues", "launches", "launch_times"}),
)
COPIES_AND_INTERVALS_OFF = GivenUp(
    code="async_copies_and_sync_intervals",
    text="asynchronous copies and memsets are not traced: sync intervals are not comparable",
    evidence=frozenset({"sync_intervals", "enqueues", "copies"}),
)

BY_CODE: Mapping[str, GivenUp] = MappingProxyType(
    {
        given.code: given
        for given in (
            *(LAUNCHES_AT_DRIVER, EVENTS_AT_DRIVER, LAUNCHES_COUNTED, EVENTS_OFF, MEMORY_OFF, LAUNCHES_OFF),
            *(COPIES_OFF, STACKS_OFF, PROBES_STAY, HALF_OF_RECORDS, FIFTH_OF_RECORDS, TWENTIETH_OF_RECORDS),
            *(EVENTS_AND_INTERVALS_OFF, LAUNCHES_AND_INTERVALS_OFF, COPIES_AND_INTERVALS_OFF),
        )
    }
)


def given_up(stored: str) -> tuple[GivenUp, ...]:
    """The things named by a stored text of comma-separated codes. An unknown code is its own sentence."""
    codes = (code.strip() for code in stored.split(","))
    return tuple(BY_CODE.get(code) or GivenUp(code=code, text=code) for code in codes if code)


def sentences(stored: str) -> tuple[str, ...]:
    """The sentences for a stored text of codes."""
    return tuple(given.text for given in given_up(stored))
