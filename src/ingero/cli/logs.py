"""Routes log messages: warnings to standard error, all messages with --debug, and to a file with --log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.errors import IngeroError
from ingero.foreign_text import visible
from ingero.store.opening.locations import Owner, give

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Visible(logging.Formatter):
    """Escapes control characters, so that foreign names in messages cannot act on a terminal or forge lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # of logging
        """The message line without a traceback."""
        return visible(super().formatMessage(record))


class LogFileError(IngeroError):
    """The log file cannot be written."""


@contextmanager
def logging_to(path: Path | None, *, debug: bool, owner: Owner) -> Iterator[None]:
    """Logs within the block. The file is appended to; a new one belongs to `owner` alone.

    Raises:
        LogFileError: the file cannot be opened.
    """
    root = logging.getLogger("ingero")
    console = logging.StreamHandler()
    console.setLevel(logging.DEBUG if debug else logging.WARNING)
    handlers: list[logging.Handler] = [console]
    if path is not None:
        handlers.append(_file_handler(path, owner))
    for handler in handlers:
        handler.setFormatter(_Visible(_FORMAT))
        root.addHandler(handler)
    before = root.level
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        yield
    finally:
        root.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _file_handler(path: Path, owner: Owner) -> logging.Handler:
    try:
        is_new = not path.exists()
        # Following a link would let a user have root write to any file.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        if is_new and os.geteuid() == 0:
            give(descriptor, owner.uid, owner.gid)
        return logging.StreamHandler(os.fdopen(descriptor, "a", encoding="utf-8"))
    except OSError as error:
        raise LogFileError(
            f"cannot write the log {path}: {error.strerror}", hint="name another with --log F"
        ) from error
