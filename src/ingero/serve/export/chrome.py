"""Writes a timeline in the Trace Event Format: JSON that chrome://tracing and Perfetto open.

Source: "Trace Event Format" (Chromium project), phases X, i, C, M, s and f. Times: microseconds since the first event.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ingero.foreign_text import label
from ingero.serve.export.model import Address, Args, Counter, Flow, Slice, Track, TrackKind, Value

_OWN_IDS = 1 << 30  # processes and threads that are none get numbers beyond any of the kernel's
_COLORS = {"CRITICAL": "terrible", "HIGH": "bad", "MEDIUM": "yellow", "LOW": "olive"}

_encode = msgspec.json.Encoder().encode


class ChromeWriter:
    """Encodes items into events of one JSON object; `write` gets the bytes."""

    def __init__(self, write: Callable[[bytes], object], begin_ns: int) -> None:
        self._write = write
        self._begin_ns = begin_ns
        self._places: dict[int, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self.packets = 0
        clock = _encode({"begin_unix_ns": str(begin_ns)})
        self._write(b'{"displayTimeUnit":"ns","otherData":' + clock + b',"traceEvents":[\n')

    def track(self, track: Track) -> None:
        """Name a track. One that is no process or thread is shown as one."""
        self._names[track.number] = name = label(track.name)
        if track.kind in (TrackKind.GROUP, TrackKind.PROCESS):
            pid = track.pid or _OWN_IDS + track.number
            self._places[track.number] = (pid, 0)
            self._meta("process_name", pid, 0, name=name)
            self._meta("process_sort_index", pid, 0, sort_index=track.order)
            return
        pid, _ = self._places[track.parent]
        tid = track.tid or _OWN_IDS + track.number
        self._places[track.number] = (pid, tid)
        if track.kind is not TrackKind.COUNTER:
            self._meta("thread_name", pid, tid, name=name)
            self._meta("thread_sort_index", pid, tid, sort_index=track.order)

    def slice(self, item: Slice) -> None:
        """Write a complete event, or an instant."""
        pid, tid = self._places[item.track]
        event: dict[str, object] = {
            "ph": "X" if item.duration_ns or item.arrow_out else "i",
            "name": label(item.name),
            "cat": item.category,
            "pid": pid,
            "tid": tid,
            "ts": self._us(item.start_ns),
        }
        if event["ph"] == "X":
            event["dur"] = item.duration_ns / 1000
        else:
            event["s"] = "t"  # an instant of its thread
        if item.args:
            event["args"] = _args(item.args)
        if item.severity in _COLORS:
            event["cname"] = _COLORS[item.severity]
        self._event(event)
        if item.arrow_out:
            self._arrow("s", "wake", item.arrow_out, item.track, item.start_ns)
        if item.arrow_in:
            self._arrow("f", "wake", item.arrow_in, item.track, item.start_ns)

    def counter(self, item: Counter) -> None:
        """Write a value of a counter."""
        pid, _ = self._places[item.track]
        name = self._names[item.track]
        self._event({"ph": "C", "name": name, "pid": pid, "ts": self._us(item.time_ns), "args": {"value": item.value}})

    def flow(self, item: Flow) -> None:
        """Write both ends of an arrow, each bound to the slice around it."""
        self._arrow("s", label(item.name), item.number, item.from_track, item.from_ns)
        self._arrow("f", label(item.name), item.number, item.to_track, item.to_ns)

    def finish(self) -> None:
        """Close the JSON object."""
        self._write(b"\n]}\n")

    def _arrow(self, phase: str, name: str, number: int, track: int, time_ns: int) -> None:
        pid, tid = self._places[track]
        event = {"ph": phase, "name": name, "cat": "flow", "id": number, "pid": pid, "tid": tid}
        self._event(event | {"ts": self._us(time_ns), "bp": "e"})

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._begin_ns) / 1000

    def _meta(self, kind: str, pid: int, tid: int, **args: str | int) -> None:
        self._event({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args})

    def _event(self, event: dict[str, object]) -> None:
        self._write((b",\n" if self.packets else b"") + _encode(event))
        self.packets += 1


def _args(args: Args) -> dict[str, object]:
    """Arguments as JSON: addresses as text, because readers keep 53 bits of a number; no stacks, which would repeat."""
    return {label(name): _value(value) for name, value in args if name != "stack"}


def _value(value: Value) -> object:
    if isinstance(value, Address):
        return f"{value & (1 << 64) - 1:#x}"
    return label(value) if isinstance(value, str) else value
