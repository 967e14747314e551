"""Samples of each second as counters: the host, pressure, GPUs, the threads of a process, calls in flight."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.serve.export.model import Counter, Track, Unit
from ingero.serve.export.tracks import Tracks
from ingero.store.records import Snapshot
from ingero.store.streaming.streams import Streams
from ingero.units import SECOND_NS

_LEVELS: tuple[tuple[str, str, Unit], ...] = (
    ("cpu_percent", "CPU", Unit.PERCENT),
    ("mem_percent", "memory", Unit.PERCENT),
    ("mem_available_bytes", "memory available", Unit.BYTES),
    ("swap_used_bytes", "swap used", Unit.BYTES),
    ("load_avg", "load (1 min)", Unit.COUNT),
    ("agent_rss_bytes", "ingero: memory", Unit.BYTES),
)
_GPU: tuple[tuple[str, str, Unit], ...] = (
    ("gpu_percent", "busy", Unit.PERCENT),
    ("memory_percent", "memory accessed", Unit.PERCENT),
    ("memory_used_bytes", "memory in use", Unit.BYTES),
    ("sm_clock_mhz", "SM clock (MHz)", Unit.COUNT),
    ("power_mw", "power (mW)", Unit.COUNT),
    ("temperature_c", "temperature (C)", Unit.COUNT),
)
_SHARES: tuple[tuple[str, str], ...] = (
    ("psi_cpu_some_ns", "pressure: CPU, some tasks"),
    ("psi_memory_some_ns", "pressure: memory, some tasks"),
    ("psi_memory_full_ns", "pressure: memory, all tasks"),
    ("psi_io_some_ns", "pressure: I/O, some tasks"),
    ("psi_io_full_ns", "pressure: I/O, all tasks"),
    ("agent_cpu_ns", "ingero: CPU"),
)
ON_CPU, WAITING = "threads on a CPU", "threads waiting for a CPU"
IN_FLIGHT_CALLS = "calls in flight for over a second"


def machine_counters(streams: Streams, tracks: Tracks) -> Iterator[Counter]:
    """Counters of the host. Pressure is the share of time since the previous sample in which tasks were stalled."""
    before: dict[int, int] = {}
    for row in streams.snapshots():
        node = tracks.node(row.session)
        for column, name, unit in _LEVELS:
            value = getattr(row, column)
            if value is not None:
                yield Counter(tracks.counter(node, name, unit).number, row.time_ns, value)
        if row.session in before and row.elapsed_ns:
            yield from _shares(row, before[row.session], row.elapsed_ns, node, tracks)
        before[row.session] = row.time_ns


def _shares(row: Snapshot, before_ns: int, elapsed_ns: int, node: Track, tracks: Tracks) -> Iterator[Counter]:
    """Counters of shares, from the previous sample on, because they are of the time since then."""
    for column, name in _SHARES:
        value = getattr(row, column)
        if value is not None:
            track = tracks.counter(node, name, Unit.PERCENT)
            yield Counter(track.number, before_ns, 100 * value / elapsed_ns)


def gpu_counters(streams: Streams, tracks: Tracks) -> Iterator[Counter]:
    """Counters of each GPU."""
    for row in streams.gpus():
        node = tracks.node(row.session)
        for column, name, unit in _GPU:
            value = getattr(row, column)
            if value is not None:
                track = tracks.counter(node, f"GPU {row.gpu_index}: {name}", unit)
                yield Counter(track.number, row.time_ns, value)


def thread_counters(streams: Streams, tracks: Tracks) -> Iterator[Counter]:
    """Threads of each process on a CPU, and waiting for one, averaged over each second."""
    pids = {process.process: process.pid for process in streams.reader.processes(only_traced=False)}
    for row in streams.threads():
        process = tracks.process(row.session, row.process, pids.get(row.process, 0))
        length_ns = row.period_s * SECOND_NS
        for name, spent_ns in ((ON_CPU, row.run_ns), (WAITING, row.runq_ns)):
            yield Counter(tracks.counter(process, name, Unit.COUNT).number, row.start_ns, spent_ns / length_ns)


def in_flight_counters(streams: Streams, tracks: Tracks) -> Iterator[Counter]:
    """Calls of a process in flight at each sample; 0 from a second after the last sample with any."""
    last: dict[int, int] = {}
    for row in streams.in_flight():
        track = tracks.counter(tracks.process(row.session, row.process, row.pid), IN_FLIGHT_CALLS, Unit.COUNT).number
        if row.time_ns - last.get(track, row.time_ns) > 2 * SECOND_NS:
            yield Counter(track, last[track] + SECOND_NS, 0)
        last[track] = row.time_ns
        yield Counter(track, row.time_ns, row.calls)
    for track, time_ns in last.items():
        yield Counter(track, time_ns + SECOND_NS, 0)
