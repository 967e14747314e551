"""Errors of databases, each with a hint."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import apsw

from ingero import __version__
from ingero.errors import TRACEBACK_VARIABLE, IngeroError
from ingero.foreign_text import shell_word
from ingero.program import command
from ingero.store.records import Window
from ingero.units import format_bytes, format_moment, format_ns

_MAX_NODES = 20  # named in a hint


class StoreError(IngeroError):
    """Base of every error of a database."""


class NoDatabaseError(StoreError):
    """The file does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"no database at {path}",
            hint=f"record one with `{command('trace', as_root=True)}`, or name another file with --db FILE",
        )


class NotADatabaseError(StoreError):
    """The file is no database, or damaged."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"{path} is not a readable database: {detail}",
            hint=f"check the file name; a damaged database can often be saved with "
            f"`sqlite3 {shell_word(path)} .recover | sqlite3 recovered.db`",
        )


class ForeignDatabaseError(StoreError):
    """An SQLite database that ingero did not write."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is an SQLite database, but not a recording", hint="name another file with --db FILE")


class HostileDatabaseError(StoreError):
    """A file that is no plain recording: something in it or beside it would run, block or delete."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"{path} is left alone: {detail}",
            hint="name another file with --db FILE; if you trust this one, read it with sqlite3",
        )


class UnknownNodeError(StoreError):
    """A recording has no node of that name."""

    def __init__(self, node: str, nodes: Sequence[str]) -> None:
        known = ", ".join(nodes[:_MAX_NODES]) + (" ..." if len(nodes) > _MAX_NODES else "")
        super().__init__(f"no node {node!r} in this recording", hint=f"--node with one of: {known}")


class MergedRecordingError(StoreError):
    """Recording into a file that was merged: its rows lie in ranges by file, and new ones would have none."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was merged from several recordings, and is only read",
            hint="record into another file with --db FILE, and merge both",
        )


class OldSqliteError(StoreError):
    """The SQLite below this program can be harmed by a file."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"SQLite {version} is too old to open files of others safely", hint="pip install --upgrade apsw"
        )


class EmptyDatabaseError(StoreError):
    """A file into which nothing was ever written."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is empty",
            hint=f"record into it with `{command('trace', '--db', path, as_root=True)}`, or name another: --db FILE",
        )


def make_copies() -> str:
    """The hint on how to copy a recording with its log."""
    return f"copy it again where it was recorded: `{command('copy', 'FROM.db', 'TO.db')}` takes the log along"


class EmptyRecordingError(StoreError):
    """A recording without any data yet. missing: what a missing log held, "" for nothing."""

    def __init__(self, path: Path, missing: str = "") -> None:
        if missing:
            super().__init__(f"{path} lacks {missing}", hint=make_copies())
            return
        super().__init__(f"{path} holds no recording yet", hint=command("trace", "--duration", "60s", as_root=True))


class EmptyPartError(StoreError):
    """A recording without data in the requested time."""

    def __init__(self, path: Path, window: Window) -> None:
        begin, end = (format_moment(at, of_ns=window.duration_ns) for at in (window.begin_ns, window.end_ns))
        super().__init__(
            f"nothing was recorded from {begin} to {end}", hint=f"`{command('explain', '--db', path.name)}` says when"
        )


class LargePartError(StoreError):
    """A part of a recording is larger than the requested limit."""

    def __init__(self, path: Path, window: Window, most_bytes: int) -> None:
        super().__init__(
            f"{format_ns(window.duration_ns)} of {path.name} are more than {format_bytes(most_bytes)}",
            hint="ask for a shorter time: --since or --margin, or around a time",
        )


class NewerDatabaseError(StoreError):
    """Written by a newer version. written_by: that version, which reads it; "" where the file does not say."""

    def __init__(self, path: Path, version: int, known: int, written_by: str = "") -> None:
        reader = f"ingero {written_by}" if written_by else "a later ingero"
        package = shell_word(f"ingero>={written_by}") if written_by else "ingero"
        super().__init__(
            f"{path} has database version {version}, which {reader} reads; "
            f"this is ingero {__version__}, which reads versions up to {known}",
            hint=f"pip install --upgrade {package}; to record with this one, name another file with --db FILE",
        )


class OtherBuildError(StoreError):
    """Its tables are not those of this version, though it says so: written between two releases."""

    def __init__(self, path: Path, missing: str) -> None:
        super().__init__(
            f"{path} was started by another build of ingero: it has no {missing}",
            hint="it can be read, but not recorded into: name another file with --db FILE",
        )


class InUseError(StoreError):
    """The file that a new recording is to replace is open in another program. readers: "" if not known."""

    def __init__(self, path: Path, readers: str) -> None:
        super().__init__(
            f"{path} is of an earlier build of ingero, and cannot be given another name: "
            f"{readers or 'another program'} has it open",
            hint=f"end that program (`fuser -v {shell_word(path)}` names it), or record elsewhere with --db FILE",
        )


class MissingColumnError(StoreError):
    """A recording of a build between two releases lacks what a question is about."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"this recording was written by another build of ingero: {message}",
            hint=f"read it with the ingero that wrote it; `{command('query')}` reads what it holds",
        )


class OlderIngeroError(StoreError):
    """Written by Ingero 0.x: may be read, never written."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was recorded by an older Ingero (0.x); it can be read but is never written",
            hint=f"keep it under another name (`mv {shell_word(path)} {shell_word(path.with_suffix('.old.db'))}`) "
            "or record with --db FILE",
        )


class RecorderRunningError(StoreError):
    """Another recorder writes this file."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(
            f"{path} is being recorded by another ingero{f' (pid {owner})' if owner else ''}",
            hint="stop it, or record into another file with --db FILE; reading works at any time",
        )


class ForeignLockError(StoreError):
    """A file of another program has the name of the recorder's lock."""

    def __init__(self, path: Path, lock: Path) -> None:
        super().__init__(
            f"cannot record into {path}: {lock} is not one of ingero's locks, and was left as it is",
            hint=f"`mv {shell_word(lock)} {shell_word(f'{lock}.kept')}` if nobody needs it there, or "
            "record elsewhere with --db FILE",
        )


class DirectoryError(StoreError):
    """The name of the database is that of a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is a folder, not a database", hint=f"--db {shell_word(path / 'ingero.db')}")


class NotWritableError(StoreError):
    """The file, its folder or the disk does not take writes."""

    def __init__(self, path: Path, detail: str, way_out: str = "") -> None:
        super().__init__(f"cannot write {path}: {detail}", hint=f"{way_out}record elsewhere with --db FILE")


class DiskFullError(NotWritableError):
    """No room is left on the filesystem."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, "the disk is full", f"make room (`df -h {shell_word(path.parent)}`), limit it with --max-db, or "
        )


class LockedError(NotWritableError):
    """Another program is in the middle of writing."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            "another program holds a write lock on it",
            f"`fuser -v {shell_word(path)}` names that program; end it, or ",
        )


class LogHeldError(NotWritableError):
    """A reader holds an old state, so that the log cannot be reset; file and log are at --max-db."""

    def __init__(self, path: Path, readers: str) -> None:
        who = readers or "a program in another container"
        super().__init__(
            path,
            f"it and its log have reached --max-db, because {who} is in the middle of reading it",
            f"end that program, or let it read a copy (`{command('copy', path, 'copy.db')}`), or ",
        )


class DamagedError(StoreError):
    """The file to record into is no database, or broken."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"cannot record into {path}: {detail}",
            hint=f"check the name; `mv {shell_word(path)} {shell_word(f'{path}.damaged')}` to start over, "
            "or record elsewhere with --db FILE",
        )


class NotReadableError(StoreError):
    """The file cannot be opened for reading."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"cannot read {path}: {detail}",
            hint="read it as the user who owns it; a recording cut off on read-only storage needs a copy of the file "
            "together with its -wal in a writable folder",
        )


class StrangeValuesError(StoreError):
    """Reading failed unexpectedly, and SQLite finds the file in order: it was made by hand, or this is a bug."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(
            f"{path} holds values that cannot be understood: {type(error).__name__}: {str(error)[:200]}",
            hint=f"if ingero recorded it and nobody changed it, this is a bug: {TRACEBACK_VARIABLE}=1 shows where, "
            "and we would like to know",
        )


class NotRecordedError(StoreError):
    """The file does not hold this kind of fact at all; that is not the same as zero of it."""

    def __init__(self, what: str, recorded_by: str) -> None:
        super().__init__(f"{what}: not recorded by {recorded_by}", hint="record again with this version of ingero")
        self.what = what


# What SQLite says of the file, not of a statement; a damaged page is met when it is reached.
OF_THE_FILE = (
    *(apsw.NotADBError, apsw.CorruptError, apsw.IOError, apsw.FormatError),
    *(apsw.TooBigError, apsw.NoMemError, apsw.InterruptError, UnicodeDecodeError),
)

_TOO_MUCH = {
    apsw.TooBigError: "a text in it is longer than any that ingero writes",
    apsw.NoMemError: "reading it takes more memory than a recording needs",
    apsw.InterruptError: "reading it takes more steps than a recording of its size needs",
    UnicodeDecodeError: "a text in it is not valid UTF-8",
}


def reading_detail(error: Exception) -> str:
    """SQLite's error about a file, in words."""
    return _TOO_MUCH.get(type(error), str(error))


def reading_error(path: Path, error: apsw.Error | UnicodeDecodeError) -> StoreError:
    """The error for a reader of `path` from SQLite's error."""
    if type(error) in _TOO_MUCH:
        return NotADatabaseError(path, reading_detail(error))
    if isinstance(error, (apsw.NotADBError, apsw.CorruptError)):
        return NotADatabaseError(path, str(error))
    return NotReadableError(path, str(error))


def writing_error(path: Path, error: apsw.Error | OSError) -> StoreError:
    """The error for a recorder into `path` from SQLite's or the kernel's error."""
    if isinstance(error, (apsw.NotADBError, apsw.CorruptError)):
        return DamagedError(path, str(error))
    if _is_full(path, error):
        return DiskFullError(path)
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return LockedError(path)
    if isinstance(error, apsw.ReadOnlyError) or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return NotWritableError(path, "it is read-only", f"`findmnt -T {shell_word(path.parent)}` shows why; ")
    if isinstance(error, OSError):
        return NotWritableError(
            path, f"{error.filename or path}: {error.strerror}", f"`ls -ld {shell_word(path.parent)}`; "
        )
    return NotWritableError(path, str(error))


def _is_full(path: Path, error: apsw.Error | OSError) -> bool:
    """Whether it failed for want of room; SQLite calls it an I/O error where its shared memory found none."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not isinstance(error, apsw.IOError):
        return isinstance(error, apsw.FullError)
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False
