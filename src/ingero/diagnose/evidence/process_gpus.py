"""The GPU that a process uses, by its CUDA device ordinal, and NVML's samples of that GPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.store.arrays.spans import Spans
from ingero.store.machine import GpuUse
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS

WHICH_GPU = "which GPU"  # a name in `Rule.improves_with`: the GPU of every process is proven
_MOST_NAMES = 3


def gpu_samples_of(evidence: Evidence, process: Process, ordinal: int, windows: Iterable[Window]) -> list[GpuUse]:
    """NVML's samples of the GPU behind an ordinal of a process in these windows; empty where the GPU is not known."""
    spans = Spans(windows)
    near = [sample for window in spans.near(SECOND_NS) for sample in evidence.reader.gpu_samples(window)]
    times = np.array([sample.time_ns for sample in near], np.int64)
    is_inside = spans.hold(times, times + 1).tolist()
    uuid = gpu_of_ordinal(evidence, process, ordinal)
    return [sample for sample, inside in zip(near, is_inside, strict=True) if inside and sample.uuid == uuid]


def gpu_name(evidence: Evidence, process: Process, ordinal: int) -> tuple[str, str]:
    """The key that distinguishes the GPU behind an ordinal of a process from other GPUs, and its name in texts.

    The name is the driver's index where it is known: every rank that sees a single GPU calls it device 0. An ordinal
    whose GPU is not known counts as different from the GPUs of all other processes.
    """
    uuid = gpu_of_ordinal(evidence, process, ordinal)
    index = next((one.gpu_index for one in evidence.gpu_samples if one.uuid == uuid), None)
    if uuid and index is not None:
        return uuid, f"GPU {index}"
    return uuid or f"{process.pid} device {ordinal}", f"device {ordinal}" if ordinal >= 0 else "the GPU"


def gpu_of_ordinal(evidence: Evidence, process: Process, ordinal: int) -> str | None:
    """The uuid of the GPU behind an ordinal of a process, as far as it is proven; None: not known.

    The driver's list of processes counts first; then the GPUs that the process can reach, if it is only one: of
    several, a program may hide some from itself and number the rest anew.
    """
    recorded = evidence.process_gpus
    seen = evidence.gpus_of_pids.get(process.pid, set())
    reachable = {uuid for (number, _), uuid in recorded.items() if number == process.process}
    mine = recorded.get((process.process, -1)) or recorded.get((process.process, ordinal))
    if seen:
        return mine if mine in seen else next(iter(seen)) if len(seen) == 1 else None
    if reachable:
        return next(iter(reachable)) if len(reachable) == 1 else None
    uuids = {sample.uuid for sample in evidence.gpu_samples}
    # the only GPU that the driver shows, unless it lists processes without this one, which may be on another GPU
    return next(iter(uuids)) if len(uuids) == 1 and not evidence.gpus_of_pids else None


def same_gpu(evidence: Evidence, one: tuple[int, int], other: tuple[int, int]) -> bool | None:
    """Whether two (process, ordinal) pairs mean the same GPU or MIG slice; None: not known."""
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
    """Why it is not known which process used which GPU; "" where it is known, or does not matter."""
    using = [evidence.processes[number] for number in evidence.main_streams if number in evidence.processes]
    unknown = [one for one in using if gpu_of_ordinal(evidence, one, gpu_ordinal_of(evidence, one.process)) is None]
    if not unknown or (len(using) < 2 and not evidence.gpu_samples):
        return ""
    names = ", ".join(f"{one.name} [{one.pid}]" for one in unknown[:_MOST_NAMES])
    more = f" and {len(unknown) - _MOST_NAMES} more" if len(unknown) > _MOST_NAMES else ""
    way = "the driver lists no process on it" if evidence.gpu_samples else "NVML was not there to ask"
    return f"which GPU {names}{more} used is unknown: {way}"


def gpu_ordinal_of(evidence: Evidence, process: int) -> int:
    """The CUDA device ordinal of the GPU that a process's main stream is on."""
    return evidence.main_streams[process].device
