"""`copy`: copies a recording, which may be written meanwhile, with its log into a single file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw

from ingero.store.errors import EmptyDatabaseError, ForeignDatabaseError, OtherBuildError, reading_error, writing_error
from ingero.store.last_second import LIVE_NS
from ingero.store.opening.distrust import confine, distrust, require_safe_sqlite
from ingero.store.opening.opening import connect, kind_of_file, refuse_other_files
from ingero.store.opening.own_schema import require_own_schema
from ingero.store.opening.side_files import refuse_side_files
from ingero.store.writing.migrations import Kind, check_version
from ingero.store.writing.recording import add_indexes
from ingero.store.writing.whole_file import whole_file

_PAGES_AT_ONCE = 2_000  # 8 MB, between two looks at the progress
_COPIED, _KILLED = "copied while it was recorded", "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A copied recording. end_ns: its end, Unix ns; None if of an older version. was_live: it is ongoing."""

    end_ns: int | None
    was_live: bool


def copy_recording(
    path: Path,
    output: Path,
    *,
    progress: Callable[[float], None] = lambda _share: None,
    clock: Callable[[], int] = time.time_ns,
) -> Copied:
    """Copy one state of a recording, log and all, into a single file, which is whole or not there. The other is read.

    The recorder writes on meanwhile. Recordings of Ingero 0.x are copied as they are. progress: 0 to 1.

    Raises:
        StoreError: the file is no recording, damaged or hostile, or the copy cannot be written.
        NewFileError: `output` is there already, or its folder takes no file.
    """
    require_safe_sqlite()
    refuse_other_files(path)
    refuse_side_files(path)
    with whole_file(output) as partial:
        kind = _copy_pages(path, partial, progress)
        db = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            distrust(db)
            confine(db, is_reading=False)
            list(db.execute("PRAGMA journal_mode = delete"))  # as a page of the source says, it has a log
            return _end_sessions(db, path, clock()) if kind is Kind.RECORDING else Copied(end_ns=None, was_live=False)
        except UnicodeDecodeError as error:
            raise reading_error(path, error) from error
        except apsw.Error as error:
            raise writing_error(partial, error) from error
        finally:
            db.close()


def _copy_pages(path: Path, partial: Path, progress: Callable[[float], None]) -> Kind:
    try:
        kind = kind_of_file(path)
        if kind is Kind.EMPTY:
            raise EmptyDatabaseError(path)
        if kind is Kind.FOREIGN:
            raise ForeignDatabaseError(path)
        source = connect(path)
    except (apsw.Error, UnicodeDecodeError) as error:
        raise reading_error(path, error) from error
    target = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        source.execute("BEGIN; SELECT count(*) FROM sqlite_schema").fetchall()  # one state, whatever is written
        list(target.execute("PRAGMA synchronous = off"))  # it reaches the disk as a whole, at the end
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(_PAGES_AT_ONCE)
                progress(1 - backup.remaining / max(backup.page_count, 1))
    except (apsw.FullError, apsw.IOError) as error:
        raise writing_error(partial, error) from error
    except (apsw.Error, UnicodeDecodeError) as error:
        raise reading_error(path, error) from error
    finally:
        target.close()
        source.close()
    return kind


def _end_sessions(db: apsw.Connection, path: Path, now_ns: int) -> Copied:
    """End ongoing sessions in a copy, which no recorder writes to.

    Raises:
        HostileDatabaseError: it is no plain recording.
    """
    check_version(db, path)
    ((end_ns, open_until_ns),) = db.execute(
        "SELECT max(last_seen_ns), max(last_seen_ns) FILTER (WHERE stopped_ns IS NULL) FROM raw_sessions"
    )
    was_live = isinstance(open_until_ns, int) and now_ns - open_until_ns < LIVE_NS
    copied = Copied(end_ns=int(end_ns) if isinstance(end_ns, int) else None, was_live=was_live)
    try:
        require_own_schema(db, path)
    except OtherBuildError:
        return copied  # which is read as far as it goes, and never written
    if open_until_ns is not None:
        db.execute(
            "UPDATE raw_sessions SET stopped_ns = last_seen_ns, stop_reason = ? WHERE stopped_ns IS NULL",
            (_COPIED if was_live else _KILLED,),
        )
        add_indexes(db)
    return copied
