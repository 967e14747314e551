"""A file to be merged, untrusted and attached read-only, with today's tables over it, whatever its version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from ingero.store.errors import (
    EmptyDatabaseError,
    EmptyRecordingError,
    ForeignDatabaseError,
    HostileDatabaseError,
    reading_error,
)
from ingero.store.merge.nodes import SourceSession, name_of_file
from ingero.store.merge.target import SETTINGS
from ingero.store.older import earlier_names, legacy
from ingero.store.older.older_values import columns_of
from ingero.store.opening.distrust import StepLimit, confine, distrust
from ingero.store.opening.log_missing import missing_end
from ingero.store.opening.opening import kind_of_file, refuse_other_files, source_uri, stored_bytes
from ingero.store.opening.own_schema import own_columns, require_tables
from ingero.store.opening.side_files import refuse_side_files
from ingero.store.writing.migrations import Kind, check_version

_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
_BUSY_MS = 2_000
_MAX_SESSIONS = 100_000  # a hostile file may claim any number


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One open file. tables: today's tables that it has. older_version: its version of Ingero 0.x, else ""."""

    path: Path
    db: apsw.Connection
    tables: frozenset[str]
    older_version: str
    has_exact_totals: bool

    def sessions(self, file: int, force_node: str) -> list[SourceSession]:
        """The file's sessions. force_node: the node of sessions without one; "": they are named after the file."""
        unnamed = force_node or name_of_file(self.path.stem)
        rows = self.db.execute(
            "SELECT session, uuid, node, machine_id, boot_id, started_ns, last_seen_ns, cgroup_base, seq_base, kernel "
            f"FROM raw_sessions ORDER BY session LIMIT {_MAX_SESSIONS + 1}"
        )
        found = [
            SourceSession(
                file=file,
                session=int(number),
                uuid=uuid or _uuid_of_older(node, started_ns, kernel),
                node=node or unnamed,
                machine_id=machine_id,
                boot_id=boot_id,
                started_ns=started_ns,
                last_seen_ns=last_seen_ns,
                cgroup_base=cgroup_base,
                seq_base=seq_base,
                # each node of an older file counted its events on its own
                id_space=int(number) if self.older_version else seq_base,
            )
            for number, uuid, node, machine_id, boot_id, started_ns, last_seen_ns, cgroup_base, seq_base, kernel in rows
        ]
        if not found:
            raise EmptyRecordingError(self.path, self.missing_end())
        if len(found) > _MAX_SESSIONS:
            raise HostileDatabaseError(self.path, f"it holds more than {_MAX_SESSIONS:,} sessions")
        return found

    def missing_end(self) -> str:
        """What a log missing beside the file held, "" for nothing."""
        return "" if self.older_version else missing_end(self.path, self.db)


@contextmanager
def opened(path: Path, *, output: Path | None = None) -> Iterator[Source]:
    """A file to read from; output: attached as `out`, the only thing that can be written.

    Raises:
        StoreError: it is not a recording of ours or of Ingero 0.8 to 0.17, damaged, or more than that.
    """
    refuse_other_files(path)
    refuse_side_files(path)
    db = apsw.Connection(":memory:", flags=_FLAGS)
    try:
        distrust(db)
        db.limit(apsw.SQLITE_LIMIT_ATTACHED, 2)
        db.set_busy_timeout(_BUSY_MS)
        StepLimit(db, stored_bytes(path))
        try:
            source = _attached(path, db)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise reading_error(path, error) from error
        if output is not None:
            db.execute("ATTACH ? AS out", (f"{output.absolute().as_uri()}?mode=rw",))
            for setting in SETTINGS:
                list(db.execute(f"PRAGMA out.{setting}"))
        confine(db, is_reading=False)
        yield source
    finally:
        db.close()


def _attached(path: Path, db: apsw.Connection) -> Source:
    kind = kind_of_file(path)
    if kind is Kind.EMPTY:
        raise EmptyDatabaseError(path)
    if kind is Kind.FOREIGN:
        raise ForeignDatabaseError(path)
    uri = source_uri(path)
    if kind is Kind.OLDER_INGERO:
        is_exact = legacy.attach(db, uri, path)
        version = legacy.version_of(db) or "0"
        return Source(path=path, db=db, tables=legacy.RECORDED, older_version=version, has_exact_totals=is_exact)
    db.execute("ATTACH ? AS old", (uri,))
    written_by = check_version(db, path, schema="old")
    require_tables(db, path, schema="old")
    return Source(path=path, db=db, tables=_make_views(db, written_by), older_version="", has_exact_totals=True)


def _make_views(db: apsw.Connection, version: int) -> frozenset[str]:
    """Create temporary views with all columns of today's tables, as today's recorder fills them.

    Those that an earlier build lacks have their defaults.
    """
    made = []
    for name, wanted in own_columns().items():
        stored, found = earlier_names.find(db, name, wanted, schema="old")
        if stored:
            found |= columns_of(version, name, found.keys())
            columns = (f"{found.get(c) or default or 'NULL'} AS {c}" for c, default in wanted.items())
            db.execute(f"CREATE TEMP VIEW {name} AS SELECT {', '.join(columns)} FROM old.{stored}")
            made.append(name)
    return frozenset(made)


def _uuid_of_older(node: str, started_ns: int, kernel: str) -> str:
    """Ingero 0.x gave its sessions none: the same from each copy of a session."""
    return f"older-{hashlib.sha256(f'{node} {started_ns} {kernel}'.encode()).hexdigest()[:24]}"
