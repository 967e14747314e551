"""An index of host events that finds those touching a time range."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable

from ingero.store.host_events import HostEvent


def begin_ns(event: HostEvent) -> int:
    """The begin of an event; of block I/O, the begin of its wait in the queue."""
    return event.start_ns - (event.queue_ns or 0)


def end_ns(event: HostEvent) -> int:
    """The end of an event; an event without duration ends where it begins."""
    return event.start_ns + (event.duration_ns or 0)


def overlap_ns(event: HostEvent, begin: int, end: int) -> int:
    """The part of [begin, end) that an event takes, ns."""
    return max(0, min(end_ns(event), end) - max(begin_ns(event), begin))


class HostEventIndex:
    """Events by a key, such as their thread."""

    def __init__(self, events: Iterable[HostEvent], key: Callable[[HostEvent], int]) -> None:
        self._events: dict[int, list[HostEvent]] = defaultdict(list)
        for event in events:
            self._events[key(event)].append(event)
        self._begins: dict[int, list[int]] = {}
        self._longest_ns: dict[int, int] = {}
        for name, mine in self._events.items():
            mine.sort(key=begin_ns)
            self._begins[name] = [begin_ns(event) for event in mine]
            self._longest_ns[name] = max(end_ns(event) - begin_ns(event) for event in mine)

    def touching(self, key: int, begin: int, end: int) -> list[HostEvent]:
        """The events of a key that touch [begin, end), oldest first."""
        begins = self._begins.get(key)
        if begins is None:
            return []
        first = bisect_left(begins, begin - self._longest_ns[key])
        last = bisect_left(begins, end)
        return [event for event in self._events[key][first:last] if end_ns(event) >= begin]

    def covered_ns(self, key: int, begin: int, end: int) -> int:
        """The part of [begin, end) that any event of a key takes, ns; overlaps count once."""
        covered, reached = 0, begin
        for event in self.touching(key, begin, end):
            upto = min(end_ns(event), end)
            if upto > reached:
                covered += upto - max(begin_ns(event), reached)
                reached = upto
        return covered
