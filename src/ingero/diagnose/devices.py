"""Which GPU a process works on, and what its driver said about it."""

from __future__ import annotations

from collections.abc import Iterable

from ingero.diagnose.evidence import Evidence
from ingero.store.machine import GpuUse
from ingero.store.records import Process, Window


def samples_of(evidence: Evidence, process: Process, ordinal: int, windows: Iterable[Window]) -> list[GpuUse]:
    """The samples of the GPU that an ordinal of a process means, in these windows; none where that is not known.

    A machine with one GPU needs no telling.
    """
    found = [one for window in windows for one in evidence.reader.gpu_samples(window)]
    uuid = evidence.reader.process_gpus().get((process.process, max(ordinal, 0)))
    if uuid is None:
        uuids = {one.uuid for one in found}
        uuid = next(iter(uuids)) if len(uuids) == 1 else None
    return [one for one in found if one.uuid == uuid]


def same_gpu(evidence: Evidence, one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two (process, ordinal) mean the same GPU; where that was not told, whether the ordinals are equal."""
    gpus = evidence.reader.process_gpus()
    mine, theirs = (gpus.get((process, max(ordinal, 0))) for process, ordinal in (one, other))
    if mine is None or theirs is None:
        return max(one[1], 0) == max(other[1], 0)
    return mine == theirs


def device_of(evidence: Evidence, process: int) -> int:
    """The ordinal of the device that a process's main lane is on, as the process counts."""
    return evidence.main_lanes[process].device
