"""NVML's GPU utilization in the seconds of a time breakdown: an upper bound of the GPU's work for a process.

The host sees work queued or running, while the GPU may have run dry in between. NVML reports the share of its sample
periods in which a kernel of any process ran: with several processes on a GPU it is an upper bound only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.process_gpus import gpu_samples_of
from ingero.store.arrays.spans import length_ns
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS, format_percent

_MIN_SAMPLES = 3  # before their deviation means anything; the error grows as they become fewer
_MIN_SAMPLED_RATIO = 0.8  # of the seconds must have a sample
_ROUNDING_ERROR = 0.01  # NVML's percentages are whole numbers
_SIGMAS = 2  # a sample may cover the last sixth of its second only (nvmlUtilization_t)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """NVML's share of time in which a kernel ran, 0 to 1, and its error. is_shared: several processes use the GPU.

    noise: the part of the error that is not due to the first and last second.
    is_alone: the driver saw a single process on the GPU all the time; False where it did not say.
    """

    share: float
    error: float
    is_shared: bool
    is_alone: bool = False
    noise: float = 0.0

    def contradicts(self, busy: float) -> bool:
        """Whether the GPU was busy for less than this share with work queued or running, beyond the error."""
        return busy > self.share + self.error

    def of_shorter(self, times: float) -> Utilization:
        """The same kernels as a share of a time that is so many times shorter."""
        return replace(self, share=min(self.share * times, 1.0), error=self.error * times, noise=self.noise * times)

    @property
    def kernels(self) -> str:
        """NVML's share as text."""
        whose = "a kernel of any process" if self.is_shared else "a kernel"
        return f"NVML: {whose} ran {format_percent(self.share)} of the same seconds"

    def words(self, busy: float) -> str:
        """NVML's share as text, beside the share of time in which work was queued or running."""
        return f"{self.kernels}, in the rest the GPU was idle or copied" if self.contradicts(busy) else self.kernels

    def bounded(self, busy: float) -> float:
        """The upper bound of GPU busy: where the two shares contradict each other, the smaller one."""
        return self.share if self.contradicts(busy) else busy


def utilization_of(evidence: Evidence, process: Process, ordinal: int, windows: Iterable[Window]) -> Utilization | None:
    """The utilization of the GPU behind an ordinal of a process in these windows; None with too few samples."""
    if not evidence.reader.is_recorded("raw_gpu_samples"):
        return None
    windows = tuple(windows)
    samples = [one for one in gpu_samples_of(evidence, process, ordinal, windows) if one.gpu_percent is not None]
    seconds = length_ns(windows) / SECOND_NS
    if len(samples) < max(_MIN_SAMPLES, _MIN_SAMPLED_RATIO * seconds - 1):
        return None
    shares = [(sample.gpu_percent or 0) / 100 for sample in samples]
    noise = _ROUNDING_ERROR + _SIGMAS * statistics.stdev(shares) / len(shares) ** 0.5
    return Utilization(
        share=statistics.fmean(shares),
        error=noise + 1 / seconds,
        noise=noise,
        is_shared=any(len(sample.processes) > 1 for sample in samples),
        is_alone=all(len(sample.processes) == 1 for sample in samples),
    )


def busy_words(busy: float, utilization: Utilization | None) -> str:
    """GPU busy as text, by host and NVML; where the two contradict each other, that the GPU is less busy, and why."""
    if utilization is None:
        return f"GPU busy {format_percent(busy)} of wall time"
    if not utilization.contradicts(busy):
        return f"GPU busy {format_percent(busy)} of wall time; {utilization.words(busy)}"
    queued = f"work was queued or running {format_percent(busy)} of wall time"
    return f"{queued}, but the GPU is less busy; {utilization.words(busy)}"
