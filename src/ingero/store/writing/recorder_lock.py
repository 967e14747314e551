"""One recorder per database: an advisory lock on a file beside it. Readers never look at it."""

from __future__ import annotations

import os
from pathlib import Path

from ingero.store.errors import ForeignLockError, RecorderRunningError, writing_error
from ingero.store.opening.lock_file import HeldError, LockFile, NotALockError


class RecorderLock(LockFile):
    """Holds `<database>.lock` from construction to `release`; the kernel releases it when the process dies.

    Not taken on the database file itself: closing a descriptor of it would drop SQLite's own locks (POSIX locks belong
    to the process, not to the descriptor).

    Raises:
        RecorderRunningError: another process, or another recorder in this one, holds it.
        ForeignLockError: a file of somebody else has this name.
        NotWritableError: the lock file cannot be made.
    """

    def __init__(self, database: Path) -> None:
        path = database.with_name(f"{database.name}.lock")
        try:
            super().__init__(path, str(os.getpid()))
        except HeldError as error:
            raise RecorderRunningError(database, error.owner) from error
        except NotALockError:
            raise ForeignLockError(database, path) from None
        except OSError as error:
            raise writing_error(database, error) from error
