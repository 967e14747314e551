"""Charts over time: the wall time of a process by part, and the share of it that was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.findings import Incident, Moment
from ingero.diagnose.steps.pacing import is_untimed
from ingero.serve.html_report.markup import Markup, element, joined
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.records import Window
from ingero.units import format_ns, format_percent, format_time_of_day

Array = np.ndarray[Any, np.dtype[Any]]

PIECES = 160  # of the recording; a pixel of a phone is not much less
_TICKS = 5
_HEIGHT, _LOST_HEIGHT, _LABELS, _AXIS = 110, 46, 16, 20  # pixels


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of the wall time. css: its class; ratios: of wall time by piece; total_ns: in the whole window."""

    css: str
    name: str
    ratios: Array
    total_ns: int


def layers(gpu_stream: GpuStream, window: Window, *, is_idle_known: bool) -> list[Layer]:
    """The layers of a process's stream or steps. is_idle_known: launches were traced for most of the time.

    For steps by repetition it is unknown when within a step the host waited: both parts are spread over the step. Where
    launches had no durations, their time blocked on a full queue is unknown, too: both parts are bounds.
    """
    one = gpu_stream.sync_intervals
    if gpu_stream.is_steps:
        most, least = (" (at most)", " (at least)") if is_untimed(one).any() else ("", "")
        parts = [
            ("idle", f"host time of the step{most}", one["prev_sync_end_ns"], one["sync_end_ns"], one["idle_ns"]),
            ("busy", f"blocked for the GPU{least}", one["prev_sync_end_ns"], one["sync_end_ns"], one["busy_ns"]),
        ]
    else:
        idle, busy = (
            ("GPU idle (nothing queued)", "GPU busy (work queued or running)")
            if is_idle_known
            else ("host time, from one GPU sync to the next", "waited for the GPU: sync until ready")
        )
        parts = [
            ("idle", idle, one["prev_sync_end_ns"], one["prev_sync_end_ns"] + one["idle_ns"], one["idle_ns"]),
            ("busy", busy, one["gpu_done_ns"] - one["busy_ns"], one["gpu_done_ns"], one["busy_ns"]),
            ("late", "sync return delay (GPU done, call not returned)", one["sync_end_ns"] - one["return_delay_ns"],
             one["sync_end_ns"], one["return_delay_ns"]),
        ]  # fmt: skip
    edges = np.linspace(window.begin_ns, window.end_ns, PIECES + 1)
    width = max(window.duration_ns / PIECES, 1.0)
    found = []
    for css, name, begin, end, spent in parts:
        inside = np.diff(_spent_until(begin, end, spent, edges))
        found.append(Layer(css, name, np.clip(inside / width, 0, 1), int(spent.sum())))
    return found


def _spent_until(begin: Array, end: Array, spent: Array, edges: Array) -> Array:
    """Nanoseconds spent up to each edge, by intervals that do not overlap, evenly within each."""
    order = np.argsort(begin, kind="stable")
    begin, end, spent = begin[order], end[order], spent[order]
    before = np.concatenate(([0], np.cumsum(spent)))
    at = np.searchsorted(begin, edges, side="right")  # intervals that have begun
    last = np.maximum(at - 1, 0)
    length = np.maximum(end[last] - begin[last], 1)
    share = np.clip((edges - begin[last]) / length, 0, 1)
    found: Array = np.where(at == 0, 0.0, before[last] + share * spent[last])
    return found


def lost_ratios(incidents: Sequence[Incident], process: int, window: Window) -> Array:
    """The share of wall time that a process lost by piece: the most that an incident says of it.

    Incidents of one time divide the same lost time among causes, so that their timelines are not summed.
    """
    lost = np.zeros(PIECES)
    width = max(window.duration_ns / PIECES, 1.0)
    for incident in incidents:
        if not any(affected.process == process for affected in incident.affected):
            continue
        mine = np.zeros(PIECES)
        for moment in incident.timeline:
            first = (moment.begin_ns - window.begin_ns) / width
            last = (moment.end_ns - window.begin_ns) / width
            for piece in range(max(0, int(first)), min(PIECES, int(last) + 1)):
                mine[piece] += moment.lost_ratio * max(0.0, min(last, piece + 1) - max(first, piece))
        lost = np.maximum(lost, mine)
    return np.clip(lost, 0, 1)


def chart(found: Sequence[Layer], lost: Array, incidents: Sequence[Incident], window: Window, label: str) -> Markup:
    """The chart: stacked parts, the share of time lost below, incidents as bands."""
    area = element(
        "svg", *_areas(found), x=0, y=_LABELS, width="100%", height=_HEIGHT, viewBox=f"0 0 {PIECES} 1000",
        preserveAspectRatio="none",
    )  # fmt: skip
    below = _LABELS + _HEIGHT + 4
    drop = element(
        "svg", element("path", d=_step_path(lost, np.zeros(PIECES)), class_="lost"), x=0, y=below, width="100%",
        height=_LOST_HEIGHT, viewBox=f"0 0 {PIECES} 1000", preserveAspectRatio="none",
    )  # fmt: skip
    bottom = below + _LOST_HEIGHT
    frame = element("rect", x=0, y=_LABELS, width="100%", height=bottom - _LABELS, class_="frame")
    return element(
        "svg", area, drop, *_bands(incidents, window, bottom), frame, *_ticks(window, bottom), width="100%",
        height=bottom + _AXIS, role="img", aria_label=label, class_="chart",
    )  # fmt: skip


def legend(found: Sequence[Layer], wall_ns: int) -> Markup:
    """The legend: the color of each part, and its share of wall time."""
    rows = [
        (one.css, f"{one.name}: {format_ns(one.total_ns)}, {format_percent(one.total_ns / max(wall_ns, 1))}")
        for one in found
    ]
    rows.append(("lost", "below: share of wall time lost"))
    items = (
        element("li", element("svg", element("rect", width=12, height=12, class_=css), width=12, height=12), " ", name)
        for css, name in rows
    )
    return element("ul", items, class_="legend")


def timeline(moments: Sequence[Moment]) -> Markup:
    """Of one incident: its share of wall time, piece by piece."""
    if not moments:
        return Markup("")
    first, last = moments[0], moments[-1]
    whole = Window(begin_ns=first.begin_ns, end_ns=last.end_ns)
    peak = max(moment.lost_ratio for moment in moments)
    bars = (_bar(moment, whole) for moment in moments)
    label = f"Time lost, {format_ns(first.end_ns - first.begin_ns)} per bar; peak {format_percent(peak)}"
    frame = element("rect", x=0, y=0, width="100%", height=_LOST_HEIGHT, class_="frame")
    picture = element(
        "svg", bars, frame, *_ticks(whole, _LOST_HEIGHT), width="100%", height=_LOST_HEIGHT + _AXIS, role="img",
        aria_label=label, class_="chart",
    )  # fmt: skip
    return joined((picture, element("p", label, class_="quiet")))


def _bar(one: Moment, whole: Window) -> Markup:
    width = 100 * (one.end_ns - one.begin_ns) / max(whole.duration_ns, 1)
    height = round(_LOST_HEIGHT * one.lost_ratio, 1)
    x = _percent(one.begin_ns, whole)
    return element("rect", x=x, width=f"{width:.3f}%", y=_LOST_HEIGHT - height, height=height, class_="lost")


def _areas(found: Sequence[Layer]) -> Iterator[Markup]:
    low = np.zeros(PIECES)
    for one in found:
        high = np.minimum(low + one.ratios, 1)
        yield element("path", d=_step_path(high, low), class_=one.css)
        low = high


def _step_path(high: Array, low: Array) -> Markup:
    """The area between two lines of steps; a thousandth is 1, from the top."""
    up = " ".join(f"V{1000 - round(1000 * value)}H{at + 1}" for at, value in enumerate(high.tolist()))
    down = " ".join(f"V{1000 - round(1000 * value)}H{at}" for at, value in reversed(list(enumerate(low.tolist()))))
    return Markup(f"M0 {1000 - round(1000 * float(low[0]))} {up} {down}Z")


def _bands(incidents: Sequence[Incident], window: Window, bottom: int) -> Iterator[Markup]:
    for one in incidents:
        begin = max(one.start_ns, window.begin_ns)
        end = min(one.end_ns or window.end_ns, window.end_ns)
        if end < begin:
            continue
        x = _percent(begin, window)
        width = f"{max(100 * (end - begin) / max(window.duration_ns, 1), 0.3):.3f}%"
        title = element("title", f"incident {one.number}: {one.cause}")
        band = element("rect", title, x=x, y=_LABELS, width=width, height=bottom - _LABELS, class_="band")
        name = element("text", str(one.number), x=x, y=_LABELS - 4, class_="mark")
        yield element("a", band, name, href=f"#incident-{one.number}")


def _ticks(window: Window, bottom: int) -> Iterator[Markup]:
    for at in range(_TICKS):
        share = at / (_TICKS - 1)
        moment = window.begin_ns + round(share * window.duration_ns)
        anchor = "start" if at == 0 else "end" if at == _TICKS - 1 else "middle"
        x = f"{100 * share:.1f}%"
        yield element("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="tick")
        css = "label minor" if at % 2 else "label"
        when = format_time_of_day(moment, of_ns=window.duration_ns)
        yield element("text", when, x=x, y=bottom + 16, text_anchor=anchor, class_=css)


def _percent(at_ns: int, window: Window) -> str:
    return f"{100 * (at_ns - window.begin_ns) / max(window.duration_ns, 1):.3f}%"
