"""TCP connections of processes, and the retransmits on them.

A connection is identified by its two ports: rows about bytes moved have no addresses. Two connections with the same
pair of ports at the same time need two pairs of hosts, or network namespaces.
"""

from __future__ import annotations

from collections.abc import Collection

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.host_event_index import HostEventIndex
from ingero.ops import Source
from ingero.store.host_events import HostEvent
from ingero.store.records import Window

_ARROW = " > "


class Connections:
    """TCP connections of some processes, from the calls on their sockets: the first one, then one per second."""

    def __init__(self, evidence: Evidence, window: Window, pids: Collection[int]) -> None:
        self._pids = frozenset(pids)
        self._owner_by_ports: dict[tuple[int, int], int] = {}
        for event in evidence.host_events(evidence.window, Source.NET):
            if event.ports and event.pid in self._pids:
                self._owner_by_ports.setdefault(event.ports, event.pid)
        self.retransmits = [event for event in evidence.host_events(window, Source.TCP) if self._owner_pid(event)]
        self._by_owner = HostEventIndex(self.retransmits, self._owner_pid)

    def retransmitted(self, pid: int, begin_ns: int, end_ns: int) -> list[HostEvent]:
        """Retransmits on the connections of a process meanwhile, by either end."""
        return self._by_owner.touching(pid, begin_ns, end_ns)

    def peer_of(self, event: HostEvent) -> str:
        """The remote end of a retransmit's connection: "10.0.0.7:6379"."""
        ports = event.ports or (0, 0)
        source, _, destination = event.addresses.partition(_ARROW)
        is_ours = event.pid in self._pids or event.ports in self._owner_by_ports
        address, port = (destination, ports[1]) if is_ours else (source, ports[0])
        return f"{address}:{port}" if destination else f"port {port}"

    def _owner_pid(self, event: HostEvent) -> int:
        """The pid of the process at either end; 0: none of these processes."""
        if event.pid in self._pids or event.ports is None:
            return event.pid if event.pid in self._pids else 0
        source_port, destination_port = event.ports
        return self._owner_by_ports.get(event.ports) or self._owner_by_ports.get((destination_port, source_port), 0)
