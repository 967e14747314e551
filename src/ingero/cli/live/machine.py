"""The live view of the host: CPU, memory, pressure, GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.cli.live.lines import Glyphs, Line, Span, bar, clean
from ingero.cli.live.sections import Section, flow_section, lines_section, table_section
from ingero.cli.live.state import LiveState
from ingero.discover.gpus import Gpu, GpuSample
from ingero.discover.system import SystemSample
from ingero.units import format_bytes

_BUSY, _FULL = 0.7, 0.9  # of CPU or memory: yellow, red
_STALLED_PERCENT = 10  # of the last 10 s: enough to be felt
_HOT_C = 83  # the lowest temperature at which data center GPUs begin to slow down
_BAR = 5


def system(state: LiveState, width: int, glyphs: Glyphs) -> Section:
    """CPU, memory, load, swap and pressure."""
    sample = state.system
    items: list[Line] = [(("not sampled yet", "dim"),)] if sample is None else list(_system_items(sample, glyphs))
    return flow_section("system", 0, (("CPU     ", "title"),), items, width, preferred_rows=2)


def _system_items(sample: SystemSample, glyphs: Glyphs) -> Iterator[Line]:
    cpu = sample.cpu_percent
    yield _gauge(cpu / 100, glyphs) if cpu is not None else (("-", "dim"),)
    yield (("mem ", ""), *_gauge(sample.mem_percent / 100, glyphs))
    yield tuple(_pressure(sample))
    yield ((f"load {sample.load_avg[0]:.1f}", ""),)
    swapped = sample.swap_used_bytes
    yield ((f"swap {format_bytes(swapped) if swapped else 0}", "warn" if swapped else ""),)


def _pressure(sample: SystemSample) -> Iterator[Span]:
    if not sample.pressure:
        yield ("PSI not in this kernel", "dim")
        return
    yield ("PSI", "")
    for name, pressure in sample.pressure.items():
        share = pressure.some_avg10_percent
        yield (f" {'mem' if name == 'memory' else name} {share:.0f}", "warn" if share >= _STALLED_PERCENT else "")
    yield ("%", "")


def _gauge(ratio: float, glyphs: Glyphs) -> Line:
    style = "bad" if ratio >= _FULL else "warn" if ratio >= _BUSY else "good"
    return (*bar(ratio, _BAR, style, glyphs), (f" {100 * ratio:.0f}%", style if style != "good" else ""))


def gpus(state: LiveState, width: int, glyphs: Glyphs) -> Section:
    """One line per GPU."""
    gpu = state.gpu
    head: list[Line] = []
    if gpu.no_answer_s is not None:
        was = " (these are its last values)" if gpu.samples else ""
        head = [(("GPU     ", "title"), (f"NVML: no answer for {gpu.no_answer_s:.0f} s{was}", "bad"))]
    elif not gpu.gpus:
        head = [(("GPU     ", "title"), (clean(gpu.reason), "dim"))]
    samples = {sample.uuid: sample for sample in gpu.samples}
    rows = [*head, *(_gpu_line(device, samples.get(device.uuid), width, glyphs) for device in gpu.gpus)]
    if len(rows) == 1:
        return lines_section("GPUs", 0, rows)

    def more(shown: int) -> Line:
        rest = gpu.gpus[shown + 1 - len(head) :]
        found = [samples[device.uuid] for device in rest if device.uuid in samples]
        busy = [sample.busy_percent for sample in found if sample.busy_percent is not None]
        spread = f": busy {min(busy)}-{max(busy)}%" if busy else ""
        slowed = sum(bool(sample.slowdowns) for sample in found)
        return ((f"+ {len(rest)} more GPUs{spread}", "dim"), (f", {slowed} slowed" if slowed else "", "warn"))

    first, *others = rows
    return table_section("GPUs", 0, first, others, more, preferred_rows=4)


def _gpu_line(gpu: Gpu, sample: GpuSample | None, width: int, glyphs: Glyphs) -> Line:
    label: Line = ((f"GPU {gpu.index:<4}", "title"),)
    if sample is None:
        return (*label, ("does not answer: fallen off the bus?", "bad"))
    spans: list[Span] = [*label]
    if sample.busy_percent is not None:
        spans += [*bar(sample.busy_percent / 100, _BAR, "good", glyphs), (f" {sample.busy_percent:>3}%", "")]
    if sample.memory_used_bytes is not None:
        size = f"{format_bytes(sample.memory_used_bytes)} of {format_bytes(gpu.memory_bytes)}"
        spans.append((f"  {size:<20}", ""))
    if sample.temperature_c is not None:
        spans.append((f" {sample.temperature_c:>3} C", "warn" if sample.temperature_c >= _HOT_C else ""))
    if sample.sm_clock_mhz is not None:
        spans.append((f" {sample.sm_clock_mhz:>5} MHz", ""))
    if sample.slowdowns:
        spans.append((f"  slowed: {', '.join(sample.slowdowns)}", "warn"))
    if sample.power_w is not None:
        spans.append((f" {sample.power_w:>4.0f} W", ""))
    if width > 120:
        spans.append((f"  {clean(gpu.name)}", "dim"))
    return tuple(spans)
