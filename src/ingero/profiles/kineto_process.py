"""Makes profiles of the events of a Kineto file: one for each process that used a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ingero.profiles import xprof
from ingero.profiles.assembly import Parts, assign, profile_of
from ingero.profiles.clocks import UNDATED_NS, undated
from ingero.profiles.columns import cleaned
from ingero.profiles.kineto_event import integer
from ingero.profiles.model import Gpu, Notes, Origin, Profile

if TYPE_CHECKING:
    from ingero.profiles.kineto import KinetoReader

OF_OTHERS = "left out, ranges of processes without GPU calls"
MAX_GPUS = 1024
_MAX_RANK = 1 << 24
_THREAD = re.compile(r"thread \d+ \((.+)\)", re.DOTALL)


def processes_of(reader: KinetoReader, file: str, notes: Notes) -> list[Profile]:
    """A profile for each process with calls; activities without a call go to the process with most calls."""
    parts = Parts(
        calls=reader.calls.rows(),
        activities=reader.activities.rows(),
        ranges=reader.ranges.rows(),
        frames=reader.frames.rows(),
        call_stacks=reader.call_stacks.rows(),
    )
    if parts.is_empty:
        return []
    shift, has_unix_times = _shift_ns(reader.properties, parts.first_ns)
    parts.shift(shift)
    if not has_unix_times:
        notes.lacks.append(undated(file))
    pids = assign(parts)
    notes.remarks[OF_OTHERS] += int((~np.isin(parts.ranges["pid"], pids)).sum())
    reader.groups.add_configured(_mapping(reader.properties.get("distributedInfo")).get("pg_config"))
    tool = xprof.TOOL if reader.is_xprof else "PyTorch profiler"
    facts = _facts(reader, _origin(tool, reader.properties, file, has_unix_times))
    facts["is_pytorch"] = not reader.is_xprof
    if len(pids) > 1:
        facts["rank"] = None  # it is the rank of only one process
    return [profile_of(parts.of_process(pid), notes, **facts, **_names(reader, pid)) for pid in pids]


def _facts(reader: KinetoReader, origin: Origin) -> dict[str, Any]:
    """Facts that all processes of the file share."""
    rank, world_size = _rank(reader.properties)
    groups, gpus = reader.groups.all(), _gpus(reader.properties)
    known = {"origin": origin, "rank": rank, "world_size": world_size, "groups": groups, "gpus": gpus}
    return known | {"texts": reader.texts.all()}


def _names(reader: KinetoReader, pid: int) -> dict[str, Any]:
    threads = {tid: _thread_name(name) for (owner, tid), name in reader.thread_names.items() if owner == pid}
    return {"pid": pid, "name": reader.process_names.get(pid) or "python", "threads": threads}


def _shift_ns(properties: dict[str, Any], first: int) -> tuple[int, bool]:
    """The ns to add to the file's times, and whether the result is unix time."""
    if first >= UNDATED_NS:
        return 0, True
    base = integer(properties.get("baseTimeNanoseconds"), 0)
    is_usable = 0 < base < 3 * UNDATED_NS and base + first >= UNDATED_NS  # until 2065
    return (base, True) if is_usable else (UNDATED_NS, False)


def _thread_name(name: str) -> str:
    """The name of a thread, without what Kineto writes around it: thread 1262 (pt_autograd_0)."""
    found = _THREAD.fullmatch(name)
    return found[1] if found else name


def _origin(tool: str, properties: dict[str, Any], file: str, has_unix_times: bool) -> Origin:
    return Origin(
        tool=tool,
        file=file,
        host=_text(properties.get("host_name")),
        gpu_driver=_version(properties.get("cuda_driver_version") or properties.get("hip_driver_version")),
        cuda_ver=_version(properties.get("cuda_runtime_version") or properties.get("hip_runtime_version")),
        has_unix_times=has_unix_times,
    )


def _version(value: object) -> str:
    """A version of CUDA as text: 12040 is 12.4."""
    number = integer(value if isinstance(value, int | str) else None, 0)
    return f"{number // 1000}.{number % 1000 // 10}" if 1000 <= number < 1_000_000 else ""


def _rank(properties: dict[str, Any]) -> tuple[int | None, int | None]:
    distributed = _mapping(properties.get("distributedInfo"))
    rank, size = (integer(distributed.get(name), -1) for name in ("rank", "world_size"))
    return (rank if 0 <= rank < _MAX_RANK else None), (size if 0 < size <= _MAX_RANK else None)


def _gpus(properties: dict[str, Any]) -> tuple[Gpu, ...]:
    devices = properties.get("deviceProperties")
    found = []
    for entry in devices[:MAX_GPUS] if isinstance(devices, list) else ():
        known = _mapping(entry)
        ordinal = integer(known.get("id"), -1)
        if 0 <= ordinal < MAX_GPUS:
            memory = max(0, integer(known.get("totalGlobalMem"), 0))
            found.append(Gpu(ordinal, _text(known.get("name")), memory, index=ordinal))
    return tuple(found)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return cleaned(value) if isinstance(value, str) else ""
