"""Decodes one event of a Chrome or Kineto trace, and repairs it where it is not valid JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

Number = int | float | str | None

# Kineto writes the bandwidth of a copy that took 0 us, and other quotients, as C prints them.
_NOT_JSON = re.compile(r'("(?:[^"\\]|\\.)*")|-?\b(?:inf|infinity|nan|-?nan\(ind\))\b', re.IGNORECASE | re.DOTALL)
_MAX_NS = 1 << 61  # the year 2043; with the base of a file it fits into 64 bits
_MAX_INT = 1 << 62


class Event(msgspec.Struct, gc=False):
    """An event. ts, dur: us as written, because a float does not hold all of their digits."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Number = None
    tid: Number = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a call."""

    correlation: Number = None
    external_id: Number = msgspec.field(default=None, name="External id")


class GpuArgs(msgspec.Struct, gc=False):
    """Arguments of a GPU activity."""

    device: Number = None
    stream: Number = None
    correlation: Number = None
    external_id: Number = msgspec.field(default=None, name="External id")
    size: Number = msgspec.field(default=None, name="bytes")
    sync_kind: str | None = msgspec.field(default=None, name="cuda_sync_kind")
    wait_on_stream: Number = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    group_name: Number = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Number = msgspec.field(default=None, name="Group size")
    correlation_id: Number = None  # of XProf, as are the next
    memcpy_details: str = ""
    step_num: Number = None


class NameArgs(msgspec.Struct, gc=False):
    """Arguments of a metadata event, and of an operator."""

    name: str | None = None
    call_stack: str | None = msgspec.field(default=None, name="Call stack")


_EVENT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
CALL_ARGS: msgspec.json.Decoder[CallArgs] = msgspec.json.Decoder(CallArgs)
GPU_ARGS: msgspec.json.Decoder[GpuArgs] = msgspec.json.Decoder(GpuArgs)
NAME_ARGS: msgspec.json.Decoder[NameArgs] = msgspec.json.Decoder(NameArgs)


def decode_event(data: bytes) -> Event | None:
    """The event in these bytes; None if there is none."""
    try:
        return _EVENT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        repaired = repair(data)
    try:
        return None if repaired is None else _EVENT.decode(repaired)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def repair(data: bytes) -> bytes | None:
    """Valid JSON of an event with inf, nan, control characters or bytes that are not UTF-8; None if it is hopeless."""
    text = _NOT_JSON.sub(lambda found: found[1] or "null", data.decode("utf-8", "replace"))
    try:
        return json.dumps(json.loads(text, strict=False)).encode()
    except (ValueError, RecursionError):
        return None


def time_ns(raw: msgspec.Raw) -> int | None:
    """A time or duration in ns; None where it is missing, negative, not finite or beyond all clocks."""
    text = bytes(raw).strip(b'"')
    whole, _, part = text.partition(b".")
    try:
        value = int(whole) * 1000 + (int((part + b"000")[:3]) if part else 0)
    except ValueError:
        return _float_ns(text)
    return value if 0 <= value < _MAX_NS and not whole.startswith(b"-") else None


def _float_ns(text: bytes) -> int | None:
    try:
        value = float(text) * 1000
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and 0 <= value < _MAX_NS else None


def integer(value: Number, default: int) -> int:
    """A number of the file as a 64-bit integer; `default` where it is not a number."""
    try:
        found = int(value) if value is not None else default
    except (ValueError, OverflowError):
        return default
    return found if -_MAX_INT < found < _MAX_INT else default


def properties_of(data: bytes) -> dict[str, Any]:
    """The file's properties; empty where they cannot be read."""
    data = data.removeprefix(b"\xef\xbb\xbf")  # the byte order mark that some tools write
    for text in (data, repair(data)):
        try:
            found = msgspec.json.decode(text) if text is not None else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}
