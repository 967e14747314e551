"""Which connections processes used, and what was sent again on them.

A connection is told by its two ports: rows about bytes moved have no addresses. Two connections with the same pair of
ports at the same time need two pairs of hosts, or of network namespaces.
"""

from __future__ import annotations

from collections.abc import Collection

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.host_event_index import Timeline
from ingero.ops import Source
from ingero.store.host_events import HostEvent
from ingero.store.records import Window

_ARROW = " > "


class Connections:
    """Connections of some processes: by the calls on their sockets, recorded at the first and then once a second."""

    def __init__(self, evidence: Evidence, window: Window, pids: Collection[int]) -> None:
        self._pids = frozenset(pids)
        self._owner: dict[tuple[int, int], int] = {}
        for event in evidence.host_events(evidence.window, Source.NET):
            if event.ports and event.pid in self._pids:
                self._owner.setdefault(event.ports, event.pid)
        self.retransmits = [one for one in evidence.host_events(window, Source.TCP) if self._owner_of(one)]
        self._of_process = Timeline(self.retransmits, self._owner_of)

    def retransmitted(self, pid: int, begin_ns: int, end_ns: int) -> list[HostEvent]:
        """What was sent again on the connections of a process meanwhile, by either end."""
        return self._of_process.touching(pid, begin_ns, end_ns)

    def peer_of(self, event: HostEvent) -> str:
        """The other end of the connection that a process of ours has: "10.0.0.7:6379"."""
        ports = event.ports or (0, 0)
        source, _, destination = event.addresses.partition(_ARROW)
        is_ours = event.pid in self._pids or event.ports in self._owner
        address, port = (destination, ports[1]) if is_ours else (source, ports[0])
        return f"{address}:{port}" if destination else f"port {port}"

    def _owner_of(self, event: HostEvent) -> int:
        """The process of ours at either end; 0: none."""
        if event.pid in self._pids or event.ports is None:
            return event.pid if event.pid in self._pids else 0
        there, here = event.ports
        return self._owner.get(event.ports) or self._owner.get((here, there), 0)
