"""What a profile itself says, read without the importer: marked steps, and when which GPU was busy.

The answers that `bench.profiles` compares with: nothing here is shared with `ingero.profiles` or `ingero.diagnose`.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
_MARK = "ProfilerStep"
_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One process. step_ms: from one mark to the next, the last one as long as it is marked.

    busy_ratio: any activity of the GPU with most of them, from its first to its last.
    """

    rank: int | None
    step_ms: tuple[float, ...]
    busy_ratio: float


def truths(path: Path) -> list[Truth]:
    """The truth of each process of a file, by rank or GPU."""
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            members = (archive.extractfile(member) for member in archive if ".json" in member.name)
            found = [_of_trace(_json(member.read())) for member in members if member]
        return sorted(found, key=lambda one: -1 if one.rank is None else one.rank)
    if ".json" in path.name:
        return [_of_trace(_json(path.read_bytes()))]
    return list(_of_nsight(path))


def _json(data: bytes) -> Any:
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return json.load(io.StringIO(text.decode(errors="replace")), strict=False)


def _of_trace(trace: Any) -> Truth:
    work: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    marks = []
    for event in trace["traceEvents"]:
        if event.get("ph") != "X":
            continue
        span = (float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0)))
        if event.get("cat") in _WORK:
            work[event["args"].get("device", 0)].append(span)
        elif str(event.get("name", "")).startswith(_MARK) and event.get("cat") in ("user_annotation", "Operator"):
            marks.append(span)
    marks.sort()
    begins = [begin for begin, _ in marks]
    ends = begins[1:] + [end for _, end in marks[-1:]]
    rank = (trace.get("distributedInfo") or {}).get("rank")
    steps = tuple((end - begin) / 1e3 for begin, end in zip(begins, ends, strict=True))
    return Truth(rank=rank, step_ms=steps, busy_ratio=_busiest(work))


def _of_nsight(path: Path) -> Iterator[Truth]:
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(lzma.decompress(path.read_bytes()))
        file.flush()
        db = sqlite3.connect(file.name)
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        work: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        for table in (f"CUPTI_ACTIVITY_KIND_{name}" for name in _TABLES):
            for device, begin, end in (
                db.execute(f"SELECT deviceId, start, end FROM {table}") if table in tables else ()
            ):
                work[device].append((begin, end))
        db.close()
    for device in sorted(work):
        yield Truth(rank=None, step_ms=(), busy_ratio=_busiest({device: work[device]}))


def _busiest(work: dict[Any, list[tuple[float, float]]]) -> float:
    """Share of time with an activity on the GPU with most of them."""
    if not work:
        return 0.0
    device, _ = Counter({device: len(spans) for device, spans in work.items()}).most_common(1)[0]
    spans = sorted(work[device])
    busy, reached = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return busy / max(reached - spans[0][0], 1e-9)
