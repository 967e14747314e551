"""How busy the host was in the newest second of a recording, as bars: CPU, memory, load, swap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingero.store.reader import Reader
from ingero.store.records import Snapshot
from ingero.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBar:
    """One row: name, share (0 to 1; None: there is no whole to compare with), and the value as text."""

    name: str
    ratio: float | None
    text: str


def host_bars(reader: Reader) -> list[HostBar]:
    """The bars of the newest snapshot; empty before the first."""
    window = reader.time_range()
    snapshots = reader.snapshots(window) if window is not None else []
    if not snapshots:
        return []
    return list(_bars(snapshots[-1], reader.sessions()[-1].cpu_count))


def _bars(newest: Snapshot, cpus: int) -> Iterator[HostBar]:
    if newest.cpu_percent is not None:
        yield HostBar(name="CPU", ratio=newest.cpu_percent / 100, text=f"{newest.cpu_percent:.0f}%")
    if newest.mem_percent is not None:
        free = f", {format_bytes(newest.mem_available_bytes)} available" if newest.mem_available_bytes else ""
        yield HostBar(name="memory", ratio=newest.mem_percent / 100, text=f"{newest.mem_percent:.0f}%{free}")
    if newest.load_avg is not None:
        ratio = newest.load_avg / cpus if cpus else None
        yield HostBar(name="load", ratio=ratio, text=f"{newest.load_avg:.1f} on {cpus} CPUs (1 min)")
    yield HostBar(name="swap", ratio=None, text=f"{format_bytes(newest.swap_used_bytes or 0)} in use")
