"""Host events by the process they happened to, to be asked for what touched a time range."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable

from ingero.store.host_events import HostEvent


def begin_ns(event: HostEvent) -> int:
    """Of block I/O the begin of its wait in the queue."""
    return event.start_ns - (event.queue_ns or 0)


def end_ns(event: HostEvent) -> int:
    """Its end; a moment ends where it begins."""
    return event.start_ns + (event.duration_ns or 0)


def overlap_ns(event: HostEvent, begin: int, end: int) -> int:
    """How much of [begin, end) it took."""
    return max(0, min(end_ns(event), end) - max(begin_ns(event), begin))


class Timeline:
    """Events by a key of theirs, such as the thread."""

    def __init__(self, events: Iterable[HostEvent], key: Callable[[HostEvent], int]) -> None:
        self._events: dict[int, list[HostEvent]] = defaultdict(list)
        for event in events:
            self._events[key(event)].append(event)
        self._begins: dict[int, list[int]] = {}
        self._longest_ns: dict[int, int] = {}
        for name, mine in self._events.items():
            mine.sort(key=begin_ns)
            self._begins[name] = [begin_ns(one) for one in mine]
            self._longest_ns[name] = max(end_ns(one) - begin_ns(one) for one in mine)

    def touching(self, key: int, begin: int, end: int) -> list[HostEvent]:
        """Those of one key that touch [begin, end), oldest first."""
        begins = self._begins.get(key)
        if begins is None:
            return []
        first = bisect_left(begins, begin - self._longest_ns[key])
        last = bisect_left(begins, end)
        return [one for one in self._events[key][first:last] if end_ns(one) >= begin]

    def taken_ns(self, key: int, begin: int, end: int) -> int:
        """How much of [begin, end) was taken by any of them; what overlaps counts once."""
        taken, reached = 0, begin
        for one in self.touching(key, begin, end):
            upto = min(end_ns(one), end)
            if upto > reached:
                taken += upto - max(begin_ns(one), reached)
                reached = upto
        return taken
