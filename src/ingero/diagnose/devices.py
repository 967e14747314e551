"""Which GPU a process works on, and what its driver said about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ingero.diagnose.evidence import Evidence
from ingero.store.machine import GpuUse
from ingero.store.records import Process, Window
from ingero.store.spans import Spans
from ingero.units import SECOND_NS


def samples_of(evidence: Evidence, process: Process, ordinal: int, windows: Iterable[Window]) -> list[GpuUse]:
    """The samples of the GPU that an ordinal of a process means, in these windows; none where that is not known.

    A machine with one GPU needs no telling.
    """
    spans = Spans(windows)
    near = [one for window in spans.near(SECOND_NS) for one in evidence.reader.gpu_samples(window)]
    times = np.array([one.time_ns for one in near], np.int64)
    found = [one for one, is_there in zip(near, spans.hold(times, times + 1).tolist(), strict=True) if is_there]
    uuid = _uuid_of(evidence, process, ordinal, found)
    return [one for one in found if one.uuid == uuid]


def gpu_name(evidence: Evidence, process: Process, ordinal: int) -> tuple[str, str]:
    """What tells the GPU that an ordinal of a process means from others, and its name in texts.

    The driver's number where it is known: every rank that sees a single GPU calls it device 0.
    """
    uuid = _uuid_of(evidence, process, ordinal, evidence.gpu_samples)
    index = next((one.gpu_index for one in evidence.gpu_samples if one.uuid == uuid), None)
    if uuid and index is not None:
        return uuid, f"GPU {index}"
    return uuid or str(ordinal), f"device {ordinal}" if ordinal >= 0 else "the device"


def _uuid_of(evidence: Evidence, process: Process, ordinal: int, samples: Sequence[GpuUse]) -> str | None:
    is_told = evidence.reader.is_recorded("raw_process_gpus")
    told = evidence.reader.process_gpus().get((process.process, max(ordinal, 0))) if is_told else None
    uuids = {one.uuid for one in samples}
    return told or (next(iter(uuids)) if len(uuids) == 1 else None)


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
