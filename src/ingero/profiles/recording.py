"""Writes profiles as one recording, a process for each profile."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ingero import __version__
from ingero.profiles.model import UNKNOWN, Notes, Profile, ProfileError
from ingero.profiles.place import Place
from ingero.profiles.progress import Blocked, blocked_of, marks_of
from ingero.profiles.rows import rows_of
from ingero.profiles.steps import step_rows
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.tables import Column, Table
from ingero.store.writing.writer import Writer

NOT_SHOWN = "a profile shows calls and GPU work, not why a thread did not run"
# The sources of evidence about threads, processes and the host that a profile lacks.
_NOT_SHOWN = (
    *(
        "offcpu",
        "culprits",
        "wakers",
        "thread_state_seconds",
        "stack_samples",
        "scheduling",
        "cpu_seconds",
        "HOST",
        "IO",
        "TCP",
    ),
    *("NET", "GPU", "gpu_samples", "NCCL", "in_flight", "allocations"),
)
IMPORTED_NODE = "imported"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # it is part of the ids of calls
_MARGIN_NS = 1000  # so that the first and the last time lie inside the recording
_BATCH_ROWS = 20_000  # rows; the writer's queue takes five times as many
_MAX_NAMES = 64  # of files, in the session's options
_DROPPED, _LACKS = "profile_records_dropped", "profile_lacks"
_COMMUNICATOR_NOTE = "from a profiler's file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The number of rows written to each table, and their time range."""

    rows: Counter[str]
    begin_ns: int
    end_ns: int


def write_recording(path: Path, profiles: Sequence[Profile], notes: Notes, *, files: Sequence[str]) -> Written:
    """Writes a new recording. files: the names of what was imported.

    Raises:
        StoreError: it cannot be written. ProfileError: rows could not be stored.
    """
    begin_ns, end_ns = min(profile.begin_ns for profile in profiles), max(profile.end_ns for profile in profiles)
    profiles = sorted(profiles, key=_rank_and_begin)
    facts = _session(profiles, files, begin_ns)
    with Writer(path, session=facts, node=_node(profiles), clock=lambda: end_ns + _MARGIN_NS) as writer:
        sink = _Sink(writer)
        _gpus(profiles, sink)
        communicators = _Communicators(sink)
        for number, profile in enumerate(profiles):
            _process(profile, number, writer, sink, communicators)
        _drops(notes, begin_ns, sink)
        writer.stop_reason = "imported"
        writer.flush()
        lost = writer.drops()
    if lost:
        raise ProfileError(f"{sum(lost.values()):,} rows could not be stored: {next(iter(lost))}")
    return Written(rows=sink.counts, begin_ns=begin_ns, end_ns=end_ns)


def _rank_and_begin(profile: Profile) -> tuple[int, int]:
    return -1 if profile.rank is None else profile.rank, profile.begin_ns


class _Sink:
    """Appends rows and waits before the writer's queue is full, because no row may be dropped here."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting = 0
        self.counts: Counter[str] = Counter()

    def put(self, table: Table, count: int, /, **columns: Column) -> None:
        """Writes rows from columns; `session` is filled in."""
        if "session" in table.columns:
            columns["session"] = self._writer.session
        rows = table.rows(count, **columns)
        for begin in range(0, count, _BATCH_ROWS):
            part = rows[begin : begin + _BATCH_ROWS]
            self._writer.append(table, part)
            self._waiting += len(part)
            if self._waiting >= _BATCH_ROWS:
                self._writer.flush()
                self._waiting = 0
        self.counts[table.name] += count


def _session(profiles: Sequence[Profile], files: Sequence[str], begin_ns: int) -> SessionFacts:
    origin = profiles[0].origin
    used = {device for profile in profiles for device in set(profile.activities["device"].tolist())}
    names = {gpu.name for profile in profiles for gpu in profile.gpus if gpu.ordinal in {*used, UNKNOWN}} - {""}
    tools = sorted({profile.origin.tool for profile in profiles})
    digest = hashlib.sha1("\n".join([*files, str(begin_ns)]).encode()).hexdigest()
    return SessionFacts(
        uuid=f"import-{digest[:12]}",
        started_ns=begin_ns - _MARGIN_NS,
        os_release=origin.os_release,
        cpu_count=origin.cpu_count,
        gpu_model=", ".join(sorted(names)),
        gpu_driver=origin.gpu_driver,
        cuda_ver=origin.cuda_ver,
        ingero_ver=__version__,
        options={"import": ", ".join(tools), "files": ", ".join(files[:_MAX_NAMES])},
        not_traced=dict.fromkeys(_NOT_SHOWN, NOT_SHOWN),
    )


def _node(profiles: Sequence[Profile]) -> str:
    hosts = {profile.origin.host for profile in profiles}
    host = hosts.pop() if len(hosts) == 1 else ""
    return host if _NODE.fullmatch(host) else IMPORTED_NODE


def _process(profile: Profile, number: int, writer: Writer, sink: _Sink, communicators: _Communicators) -> None:
    start_ns = profile.begin_ns - number  # two ranks may have one pid, in containers of their own
    process = writer.process_id(profile.pid, start_ns)
    sink.put(
        tables.PROCESSES,
        1,
        process=process,
        pid=profile.pid,
        start_ns=start_ns,
        name=profile.name,
        cmdline=profile.origin.file,
        rank=profile.rank,
        world_size=profile.world_size,
        first_seen_ns=profile.begin_ns,
        last_seen_ns=profile.end_ns,
    )
    place = Place(process=process, text=writer.intern, communicators=communicators.add(profile, process))
    blocked = blocked_of(profile)
    for table, count, columns in chain(rows_of(profile, place, blocked), step_rows(profile, place, blocked)):
        sink.put(table, count, **columns)
    _marks(profile, blocked, process, writer.intern, sink)
    for gpu in profile.gpus:
        if gpu.uuid and gpu.ordinal != UNKNOWN:
            sink.put(tables.PROCESS_GPUS, 1, process=process, ordinal=gpu.ordinal, uuid=gpu.uuid)


def _marks(profile: Profile, blocked: Blocked, process: int, text: Callable[[str], int], sink: _Sink) -> None:
    marks = marks_of(profile, blocked)
    sink.put(
        tables.PROGRESS_MARKS,
        len(marks),
        process=process,
        device=[mark.device for mark in marks],
        stream=[mark.stream for mark in marks],
        kind=[text(mark.kind) for mark in marks],
        position=[mark.position for mark in marks],
        time_ns=[mark.time_ns for mark in marks],
    )


class _Communicators:
    """Numbers process groups through the whole recording."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink
        self._next = 1

    def add(self, profile: Profile, process: int) -> list[int]:
        """Stores the groups of one process; returns their numbers."""
        counts = Counter(profile.activities["group"].tolist())
        numbers = []
        for index, group in enumerate(profile.groups):
            is_member = profile.rank is not None and profile.rank in group.ranks
            key = f"{group.name}\n{group.ranks or group.size}"
            self._sink.put(
                tables.COMMUNICATORS,
                1,
                process=process,
                number=self._next,
                comm_id_hash=int.from_bytes(hashlib.sha1(key.encode()).digest()[:7], "big"),
                rank=group.ranks.index(profile.rank) if is_member and profile.rank is not None else None,
                nranks=group.size,
                created_ns=profile.begin_ns,
                collectives=counts[index],
                note=f"{_COMMUNICATOR_NOTE}: process group {group.name}",
            )
            numbers.append(self._next)
            self._next += 1
        return numbers


def _gpus(profiles: Sequence[Profile], sink: _Sink) -> None:
    known = {gpu.uuid: gpu for profile in profiles for gpu in profile.gpus if gpu.uuid}
    for gpu in known.values():
        facts: dict[str, Column] = {"name": gpu.name, "pci_bus_id": gpu.pci_bus_id, "memory_bytes": gpu.memory_bytes}
        sink.put(tables.GPUS, 1, uuid=gpu.uuid, gpu_index=gpu.index, **facts)


def _drops(notes: Notes, begin_ns: int, sink: _Sink) -> None:
    for reason, count in notes.dropped.items():
        if count:
            reason_text = f"records of the profile {reason}"
            sink.put(tables.DROPS, 1, start_ns=begin_ns, counter=_DROPPED, reason=reason_text, count=count)
    for text in notes.lacks:
        sink.put(tables.DROPS, 1, start_ns=begin_ns, counter=_LACKS, reason=text, count=1)
