"""Which GPU a process works on, and what its driver said about it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.store.arrays.spans import Spans
from ingero.store.machine import GpuUse
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS

WHICH_GPU = "which GPU"  # as what a rule wants: that the GPU of every process is proven
_MOST_NAMES = 3


def samples_of(evidence: Evidence, process: Process, ordinal: int, windows: Iterable[Window]) -> list[GpuUse]:
    """The samples of the GPU that an ordinal of a process means, in these windows; none where that is not known."""
    spans = Spans(windows)
    near = [one for window in spans.near(SECOND_NS) for one in evidence.reader.gpu_samples(window)]
    times = np.array([one.time_ns for one in near], np.int64)
    found = [one for one, is_there in zip(near, spans.hold(times, times + 1).tolist(), strict=True) if is_there]
    uuid = gpu_of_ordinal(evidence, process, ordinal)
    return [one for one in found if one.uuid == uuid]


def gpu_name(evidence: Evidence, process: Process, ordinal: int) -> tuple[str, str]:
    """What tells the GPU that an ordinal of a process means from others, and its name in texts.

    The driver's number where it is known: every rank that sees a single GPU calls it device 0. An ordinal whose GPU is
    not known is told from those of all other processes.
    """
    uuid = gpu_of_ordinal(evidence, process, ordinal)
    index = next((one.gpu_index for one in evidence.gpu_samples if one.uuid == uuid), None)
    if uuid and index is not None:
        return uuid, f"GPU {index}"
    return uuid or f"{process.pid} device {ordinal}", f"device {ordinal}" if ordinal >= 0 else "the GPU"


def gpu_of_ordinal(evidence: Evidence, process: Process, ordinal: int) -> str | None:
    """The uuid of the GPU that an ordinal of a process means, as far as that is proven; None: not known.

    The driver's list of processes counts first; then what a process can reach, if that is a single GPU: of several, a
    program may hide some from itself and number the rest anew.
    """
    told = evidence.process_gpus
    seen = evidence.gpus_of_pids.get(process.pid, set())
    reachable = {uuid for (number, _), uuid in told.items() if number == process.process}
    mine = told.get((process.process, -1)) or told.get((process.process, ordinal))
    if seen:
        return mine if mine in seen else next(iter(seen)) if len(seen) == 1 else None
    if reachable:
        return next(iter(reachable)) if len(reachable) == 1 else None
    uuids = {one.uuid for one in evidence.gpu_samples}
    # the only GPU that the driver shows; but where it lists processes and not this one, it may be on another
    return next(iter(uuids)) if len(uuids) == 1 and not evidence.gpus_of_pids else None


def same_gpu(evidence: Evidence, one: tuple[int, int], other: tuple[int, int]) -> bool | None:
    """Whether two (process, ordinal) mean the same GPU, or slice of one; None: that is not known."""
    first, second = (
        gpu_of_ordinal(evidence, evidence.processes[process], ordinal) for process, ordinal in (one, other)
    )
    if first is None or second is None:
        return None
    sliced, slices = evidence.gpu_slices
    if first != second or first not in sliced:
        return first == second
    mine, theirs = slices.get((one[0], first)), slices.get((other[0], first))
    return None if mine is None or theirs is None else mine == theirs


def unknown_gpus(evidence: Evidence) -> str:
    """Why it is not known which process used which GPU; empty where it is, or nothing hangs on it."""
    using = [evidence.processes[number] for number in evidence.main_streams if number in evidence.processes]
    unknown = [one for one in using if gpu_of_ordinal(evidence, one, device_of(evidence, one.process)) is None]
    if not unknown or (len(using) < 2 and not evidence.gpu_samples):
        return ""
    names = ", ".join(f"{one.name} [{one.pid}]" for one in unknown[:_MOST_NAMES])
    more = f" and {len(unknown) - _MOST_NAMES} more" if len(unknown) > _MOST_NAMES else ""
    way = "the driver lists no process on it" if evidence.gpu_samples else "NVML was not there to ask"
    return f"which GPU {names}{more} used is unknown: {way}"


def device_of(evidence: Evidence, process: int) -> int:
    """The ordinal of the GPU that a process's main stream is on, as the process counts."""
    return evidence.main_streams[process].device
