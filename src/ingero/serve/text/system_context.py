"""The host while it was recorded, in a few lines: CPU, memory, load, and GPU utilization."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.serve.text.gpu_lines import gpu_lines
from ingero.store.machine import grown_ratio
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_bytes, format_percent

_SHOWN_STALLED = 0.01  # of the time; less is normal on every host


def system_lines(reader: Reader, window: Window, *, has_incident: bool) -> Iterator[str]:
    """One line per subject; none where nothing was sampled."""
    snapshots = reader.snapshots(window)
    cpu = [snapshot.cpu_percent for snapshot in snapshots if snapshot.cpu_percent is not None]
    if cpu:
        memory = max(snapshot.mem_percent or 0 for snapshot in snapshots)
        load = max(snapshot.load_avg or 0 for snapshot in snapshots)
        mean = sum(cpu) / len(cpu)
        yield f"host: CPU {mean:.0f}% (peak {max(cpu):.0f}%), memory {memory:.0f}%, load {load:.1f}"
    swap = max((snapshot.swap_used_bytes or 0 for snapshot in snapshots), default=0)
    if swap:
        yield f"swap in use: {format_bytes(swap)}"
    stalled = grown_ratio(snapshots, "psi_cpu_some_ns")
    if stalled and stalled > _SHOWN_STALLED:
        yield f"some task was stalled waiting for a CPU {format_percent(stalled)} of the time (PSI)"
    gpus = list(gpu_lines(reader, window))
    yield from gpus
    if gpus and has_incident:
        yield "This is utilization as the driver reports it; what the GPUs waited for is above."
