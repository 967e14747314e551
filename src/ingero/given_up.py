"""What tracing gives up when it costs too much: the sentence that recordings hold, and the evidence they lack then.

A sentence is how a stored step is known again: it is never worded anew, a changed meaning gets a sentence of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """evidence: names as rules of the diagnosis need them; none: what is left tells as much of every cause."""

    text: str
    evidence: frozenset[str] = frozenset()


LAUNCHES_AT_DRIVER = GivenUp(
    text="launches are traced at the driver only: counts stay exact, the caller is the runtime"
)
EVENTS_AT_DRIVER = GivenUp(text="event records and stream waits are counted at the driver, without durations")
LAUNCHES_COUNTED = GivenUp(
    text="launches of the driver are counted without durations", evidence=frozenset({"launch_times"})
)
EVENTS_OFF = GivenUp(
    text="event records and stream waits are not traced: a wait for an event counts as one for the main stream",
    evidence=frozenset({"enqueues"}),
)
MEMORY_OFF = GivenUp(
    text="allocations and frees are not traced", evidence=frozenset({"allocations", "allocation_times"})
)
LAUNCHES_OFF = GivenUp(
    text="launches are not traced: how long the GPU worked between two syncs is not known",
    evidence=frozenset({"enqueues", "launches", "launch_times"}),
)
COPIES_OFF = GivenUp(text="asynchronous copies and memsets are not traced", evidence=frozenset({"enqueues", "copies"}))
STACKS_OFF = GivenUp(text="stacks of recorded calls are not taken", evidence=frozenset({"stack_samples"}))

# Sentences of recordings whose sync intervals ended otherwise, or not at all, as long as they held.
_EARLIER = (
    GivenUp(
        text="event records and stream waits are not traced: waits for events end no sync interval",
        evidence=frozenset({"sync_intervals"}),
    ),
    GivenUp(
        text="launches are not traced: sync intervals are not comparable",
        evidence=frozenset({"sync_intervals", "enqueues", "launches", "launch_times"}),
    ),
    GivenUp(
        text="asynchronous copies and memsets are not traced: sync intervals are not comparable",
        evidence=frozenset({"sync_intervals", "enqueues", "copies"}),
    ),
)

EVIDENCE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        given.text: given.evidence
        for given in (
            LAUNCHES_AT_DRIVER,
            EVENTS_AT_DRIVER,
            LAUNCHES_COUNTED,
            EVENTS_OFF,
            MEMORY_OFF,
            LAUNCHES_OFF,
            COPIES_OFF,
            STACKS_OFF,
            *_EARLIER,
        )
    }
)
