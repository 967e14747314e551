"""Traces of JAX's and TensorFlow's profiler (XProf): events without a category, recognized by their process and thread.

Source: openxla/xprof, convert/xplane_to_trace_events.cc and utils/xplane_schema.cc. A GPU is a process `/device:GPU:0`
whose threads are streams (`Stream #13(Compute)`) and sums of them (`XLA Ops`, `Steps`); the program is the process
`/host:CPU`. Names of processes and threads come before all events.
"""

from __future__ import annotations

import enum
import re

from ingero.events import HostMemory
from ingero.profiles.model import ActivityKind

TOOL = "XProf"
_DIGITS = 15  # of a size: a PB
_GPU = re.compile(r"/device:GPU:(\d{1,4})\b")
_STREAM = re.compile(r"[Ss]tream ?[#:]?(\d{1,9})\b")
_HOST = "/host:CPU"
_FUNCTION = re.compile(r"\$(.{1,4000}\.py):(\d{1,9}) (.+)", re.DOTALL)  # of the Python tracer; $builtins have no line
_KINDS = (("Memcpy", ActivityKind.MEMCPY), ("Memset", ActivityKind.MEMSET))
# MemcpyH2D and what other tools call it
_DIRECTIONS = {"H2D": "HtoD", "D2H": "DtoH", "D2D": "DtoD", "P2P": "PtoP"}


class EventType(enum.Enum):
    """The type of an event without a category."""

    ACTIVITY = enum.auto()
    HOST = enum.auto()
    NOTHING = enum.auto()


def event_type_of(process: str, thread: str) -> tuple[EventType, int, int]:
    """The type of an event by the names of its process and thread, with the numbers of GPU and stream (or -1)."""
    gpu, stream = _GPU.search(process), _STREAM.match(thread)
    if gpu and stream:
        return EventType.ACTIVITY, int(gpu[1]), int(stream[1])
    return (EventType.HOST if process.startswith(_HOST) else EventType.NOTHING), -1, -1


def kind_of(name: str) -> ActivityKind:
    """The kind of a GPU activity, by its name."""
    return next((kind for begin, kind in _KINDS if name.startswith(begin)), ActivityKind.KERNEL)


def copy_name(name: str) -> str:
    """A copy's name as other tools write it."""
    return next((name.replace(short, long) for short, long in _DIRECTIONS.items() if short in name), name)


def frame_name(name: str) -> str | None:
    """A Python function as PyTorch's profiler writes it; None for another event."""
    found = _FUNCTION.fullmatch(name)
    return f"{found[1]}({found[2]}): {found[3]}" if found else None


def details_of(text: str) -> tuple[int, int]:
    """Bytes and host memory (events.HostMemory) of a copy: kind_src:pageable kind_dst:device size:4 dest:0 async:1."""
    details = dict(part.split(":", 1) for part in text[:1000].split() if ":" in part)
    size, memory = details.get("size", ""), {details.get("kind_src"), details.get("kind_dst")}
    is_number = size.isascii() and size.isdigit() and len(size) < _DIGITS
    found = HostMemory.PAGEABLE if "pageable" in memory else HostMemory.UNKNOWN
    return int(size) if is_number else 0, int(HostMemory.PINNED if "pinned" in memory else found)
