"""NVML's utilization of the seconds that an account is about: an upper bound of what the GPU did for a process.

What the host sees is work queued or running; the GPU may have run dry in between. NVML says in which share of its
sample periods a kernel ran, whoever launched it: with several processes on a GPU it bounds from above only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.process_gpus import samples_of
from ingero.store.arrays.spans import length_ns
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS, format_percent

_MIN_SAMPLES = 3  # of which the deviation tells something; the error grows as they become fewer
_WHOLE_RATIO = 0.8  # of the seconds must have a sample
_ROUNDED = 0.01  # NVML's percentages are whole numbers
_SIGMAS = 2  # a sample may be of the last sixth of its second only (nvmlUtilization_t)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """In which share of the time a kernel ran, by NVML, and its error; is_shared: of any of several processes.

    is_alone: the driver saw one process on the GPU, all the time; False where it did not say.
    """

    share: float
    error: float
    is_shared: bool
    is_alone: bool = False

    def contradicts(self, busy: float) -> bool:
        """Whether the GPU was busy for less time than the host has seen work queued or running, beyond any error."""
        return busy > self.share + self.error

    @property
    def kernels(self) -> str:
        """What NVML says."""
        whose = "a kernel of any process" if self.is_shared else "a kernel"
        return f"NVML: {whose} ran {format_percent(self.share)} of the same seconds"

    def words(self, busy: float) -> str:
        """The same beside the share of time in which work was queued or running."""
        return f"{self.kernels}, in the rest the GPU was idle or copied" if self.contradicts(busy) else self.kernels

    def bounded(self, busy: float) -> float:
        """The share of time in which the GPU was busy at most: where the two contradict each other, the smaller."""
        return self.share if self.contradicts(busy) else busy


def utilization_of(evidence: Evidence, process: Process, ordinal: int, windows: Iterable[Window]) -> Utilization | None:
    """Of the GPU that an ordinal of a process means, in these windows; None where NVML says too little of them."""
    if not evidence.reader.is_recorded("raw_gpu_samples"):
        return None
    windows = tuple(windows)
    told = [one for one in samples_of(evidence, process, ordinal, windows) if one.gpu_percent is not None]
    seconds = length_ns(windows) / SECOND_NS
    if len(told) < max(_MIN_SAMPLES, _WHOLE_RATIO * seconds - 1):
        return None
    shares = [(one.gpu_percent or 0) / 100 for one in told]
    error = _ROUNDED + 1 / seconds + _SIGMAS * statistics.stdev(shares) / len(shares) ** 0.5
    return Utilization(
        share=statistics.fmean(shares),
        error=error,
        is_shared=any(len(one.processes) > 1 for one in told),
        is_alone=all(len(one.processes) == 1 for one in told),
    )


def busy_words(busy: float, utilization: Utilization | None) -> str:
    """How long the GPU was busy, as both say it; where they contradict each other the larger idle, and why."""
    if utilization is None:
        return f"GPU busy {format_percent(busy)} of wall time"
    if not utilization.contradicts(busy):
        return f"GPU busy {format_percent(busy)} of wall time; {utilization.words(busy)}"
    queued = f"work was queued or running {format_percent(busy)} of wall time"
    return f"{queued}, but the GPU is less busy; {utilization.words(busy)}"
