"""Host events by the process they happened to: what touched a time range, and how much of it they took together."""

from __future__ import annotations

from ingero.diagnose.evidence.host_event_index import HostEventIndex
from ingero.ops import HostOp, Source
from ingero.store.host_events import HostEvent


def event(start_ns: int, duration_ns: int, *, tid: int = 1, queue_ns: int = 0) -> HostEvent:
    """Something that took time."""
    return HostEvent(
        start_ns=start_ns,
        duration_ns=duration_ns,
        source=Source.HOST,
        op=HostOp.DIRECT_RECLAIM,
        name="direct_reclaim",
        process=1,
        pid=1,
        tid=tid,
        comm="python",
        cgroup_id=0,
        queue_ns=queue_ns,
    )


def timeline(*events: HostEvent) -> HostEventIndex:
    """By thread."""
    return HostEventIndex(events, lambda one: one.tid)


def test_a_long_event_that_began_early_touches() -> None:
    found = timeline(event(0, 1000), event(10, 5), event(2000, 1)).touching(1, 500, 600)
    assert [one.start_ns for one in found] == [0]


def test_the_wait_in_a_queue_belongs_to_a_request() -> None:
    assert timeline(event(100, 10, queue_ns=50)).covered_ns(1, 0, 200) == 60


def test_what_overlaps_counts_once() -> None:
    assert timeline(event(0, 100), event(50, 100), event(60, 10)).covered_ns(1, 0, 1000) == 150


def test_events_of_other_threads_do_not_touch() -> None:
    assert timeline(event(0, 100, tid=2)).touching(1, 0, 1000) == []
