"""`merge`: merges recordings of several nodes, ours and those of Ingero 0.8 to 0.17, into one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import apsw

from ingero.store.errors import EmptyPartError, LargePartError, StrangeValuesError, reading_error, writing_error
from ingero.store.merge.part import Part
from ingero.store.merge.plan import Plan, PlannedSession, plan
from ingero.store.merge.rows import copy_rows
from ingero.store.merge.source import opened
from ingero.store.merge.target import new_recording
from ingero.store.opening.distrust import require_safe_sqlite
from ingero.store.records import ClockPair, NodeClock

# The file being read, and how much of all is done, 0 to 1.
Progress = Callable[[str, float], None]

_STEPS = 500_000  # steps of SQLite's machine between two progress reports: some 20 ms
_INDEXING = 0.85  # of the time that copying takes; the rest makes the indexes
_STRANGE = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The result of a merge. rows: by table. repeated: sessions in more than one file. notes: what to know."""

    nodes: tuple[str, ...]
    rows: Mapping[str, int]
    repeated: int
    notes: tuple[str, ...]


def merge(
    paths: Sequence[Path],
    output: Path,
    *,
    force_node: str = "",
    clocks: Mapping[Path, NodeClock] | None = None,
    progress: Progress = lambda _name, _share: None,
) -> Merged:
    """Merge recordings into a new one. They are only read; `output` is complete or not there at all.

    force_node: the node of recordings without one; "": each is named after its file. clocks: the nodes' clock offsets
    when their files were fetched.

    Raises:
        StoreError: a file is no recording, damaged or hostile.
        NewFileError: `output` is there already or cannot be written.
    """
    require_safe_sqlite()
    with new_recording(output) as partial:
        planned, lacks = _planned(paths, force_node)
        _keep_clocks(partial, planned, {file: (clocks or {}).get(path) for file, path in enumerate(paths)})
        rows: Counter[str] = Counter()
        total_bytes = max(sum(paths[file].stat().st_size for file in planned.files if planned.is_needed(file)), 1)
        for file in planned.files:
            if planned.is_needed(file):
                rows += _copied(paths[file], partial, planned, file, total_bytes, progress)
        progress("indexes", _INDEXING)
    progress("done", 1.0)
    return Merged(nodes=planned.nodes, rows=rows, repeated=planned.repeated, notes=(*planned.notes, *lacks))


def _keep_clocks(partial: Path, planned: Plan, clocks: Mapping[int, NodeClock | None]) -> None:
    rows = [
        (session.number, clock.at_ns, clock.offset_ns, clock.bound_ns, clock.reference)
        for file, clock in clocks.items()
        for session in planned.sessions[file]
        if clock and session.number
    ]
    columns = "session, at_ns, offset_ns, bound_ns, reference"
    _add(partial, f"INSERT INTO raw_node_clocks({columns}) VALUES (?, ?, ?, ?, ?)", rows)


def _add(partial: Path, sql: str, rows: Iterable[tuple[int | str, ...]]) -> None:
    db = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        with db:
            db.executemany(sql, rows)
    finally:
        db.close()


def extract_part(
    path: Path,
    output: Path,
    part: Part,
    *,
    now: ClockPair | None = None,
    progress: Progress = lambda _name, _share: None,
) -> Merged:
    """Write a part of one recording into a new one, to be merged: it has no index, and no secrets.

    now: the present, stored beside the clock pairs of the same boot: the host that fetches the part compares clocks
    now, and can detect by it whether one was set since.

    Raises:
        StoreError: the file is no recording, damaged or hostile.
        EmptyPartError: nothing was recorded then.
        LargePartError: it becomes larger than it may be.
        NewFileError: `output` is there already or cannot be written.
    """
    require_safe_sqlite()
    with new_recording(output, has_indexes=False) as partial:
        planned, _ = _planned([path], "")
        sessions = [_in_part(session, part) for session in planned.sessions[0]]
        if not any(session.number for session in sessions):
            raise EmptyPartError(path, part.window)
        rows = _copied(path, partial, replace(planned, sessions={0: tuple(sessions)}), 0, 1, progress, part)
        if now:
            mine = [session.number for session in sessions if session.number and session.source.boot_id == now.boot_id]
            pairs = ((number, now.mono_ns, now.unix_ns, now.suspended_ns) for number in mine)
            columns = "session, mono_ns, unix_ns, suspended_ns"
            _add(partial, f"INSERT OR IGNORE INTO raw_clock_pairs({columns}) VALUES (?, ?, ?, ?)", pairs)
    progress("done", 1.0)
    return Merged(nodes=planned.nodes, rows=rows, repeated=0, notes=planned.notes)


def _in_part(session: PlannedSession, part: Part) -> PlannedSession:
    return session if part.has(session.source) else replace(session, number=0)


def _planned(paths: Sequence[Path], force_node: str) -> tuple[Plan, list[str]]:
    """The plan of a merge, and what the files lack."""
    sessions, lacks = [], []
    for file, path in enumerate(paths):
        with opened(path) as source:
            try:
                sessions += source.sessions(file, force_node)
                lacks += [f"{path} lacks {missing}"] if (missing := source.missing_end()) else []
            except (apsw.Error, UnicodeDecodeError) as error:
                raise reading_error(path, error) from error
            except (TypeError, ValueError) as error:
                raise StrangeValuesError(path, error) from error
    return plan(sessions, len(paths)), lacks


def _copied(
    path: Path,
    partial: Path,
    planned: Plan,
    file: int,
    total_bytes: int,
    progress: Progress,
    part: Part | None = None,
) -> Counter[str]:
    with opened(path, output=partial) as source:

        def look() -> bool:
            size_bytes = partial.stat().st_size
            progress(path.name, min(_INDEXING, _INDEXING * size_bytes / total_bytes))
            if part and size_bytes > part.most_bytes:
                raise LargePartError(path, part.window, part.most_bytes)
            return False

        source.db.set_progress_handler(look, _STEPS, id=look)
        try:
            with source.db:  # one state of a file that is being written
                taken = copy_rows(source, planned.sessions[file], id_add=planned.id_adds[file], part=part)
                rows = Counter(dict(taken))
        except _STRANGE as error:
            raise StrangeValuesError(path, error) from error
        except (apsw.FullError, apsw.IOError) as error:
            raise writing_error(partial, error) from error
        except (apsw.Error, UnicodeDecodeError) as error:
            raise reading_error(path, error) from error
    if part:
        look()
    return rows
