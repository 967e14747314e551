"""One line per GPU about a window: how busy, how fast, what held it back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ingero.events import THROTTLE_REASONS
from ingero.store.machine import GpuUse
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import SECOND_NS, format_bytes, format_ns, format_percent

_SHOWN_PERCENT = 1  # of the samples: a throttle reason seen less often is not shown
_WHOLE_RATIO = 0.9  # of the seconds with a sample; with fewer the line says how many there were
_MIN_SHOWN_QUERY_RATIO = 0.002  # of the time in the driver
_ENDS = 2  # seconds at the ends of a window that need not have one


def gpu_lines(reader: Reader, window: Window) -> Iterator[str]:
    """Lines in the order of the GPUs; none where there are no samples."""
    if not reader.is_recorded("raw_gpu_samples"):
        return
    by_gpu: dict[tuple[int, str], list[GpuUse]] = defaultdict(list)
    for sample in reader.gpu_samples(window):
        by_gpu[sample.gpu_index, sample.uuid].append(sample)
    for (index, _), samples in sorted(by_gpu.items()):
        yield f"GPU {index}: " + ", ".join(_parts(samples, reader.recorded_ns(window) / SECOND_NS))
    yield from _query_time_text(by_gpu.values(), reader.recorded_ns(window))


def _query_time_text(of_gpus: Iterable[Sequence[GpuUse]], recorded_ns: int) -> Iterator[str]:
    """How long NVML queries took in the driver, if it is worth mentioning: other calls may have waited for them."""
    asked = {sample.time_ns: sample.asked_ns for samples in of_gpus for sample in samples}
    total_ns = sum(asked.values())
    if asked and total_ns >= _MIN_SHOWN_QUERY_RATIO * recorded_ns:
        share, each = format_percent(total_ns / max(recorded_ns, 1)), format_ns(total_ns // len(asked))
        yield f"NVML was sampled {len(asked)} times for this, {each} each in the driver: {share} of the time"


def _parts(samples: Sequence[GpuUse], seconds: float) -> Iterator[str]:
    busy = [sample.gpu_percent for sample in samples if sample.gpu_percent is not None]
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    most_mhz = max((sample.max_sm_clock_mhz or 0 for sample in samples), default=0)
    yield f"{sum(busy) / len(busy):.0f}% busy" if busy else "utilization not reported by its driver"
    if clocks:
        mhz = sum(clocks) / len(clocks)
        yield f"{mhz:.0f} of {most_mhz} MHz" if most_mhz else f"{mhz:.0f} MHz"
    yield from _throttling(samples)
    yield from _memory(samples)
    if len(samples) < _WHOLE_RATIO * seconds - _ENDS:
        yield f"by samples of {len(samples)} of {seconds:.0f} s"


def _throttling(samples: Sequence[GpuUse]) -> Iterator[str]:
    reasons_of_samples = [sample.throttle_reasons for sample in samples if sample.throttle_reasons is not None]
    counts = Counter(name for reasons in reasons_of_samples for bit, name in THROTTLE_REASONS.items() if reasons & bit)
    for name, count in counts.most_common():
        percent = 100 * count / len(reasons_of_samples)
        if percent >= _SHOWN_PERCENT:
            yield f"throttled by {name} {percent:.0f}% of the time"


def _memory(samples: Sequence[GpuUse]) -> Iterator[str]:
    used = max((sample.memory_used_bytes or 0 for sample in samples), default=0)
    total = max((sample.memory_total_bytes or 0 for sample in samples), default=0)
    if total:
        yield f"memory up to {format_bytes(used)} of {format_bytes(total)}"
