"""Default location of the database: in the home of the user who invoked the command."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATABASE_VARIABLE = "INGERO_DB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner that new files get."""

    uid: int
    gid: int
    home: Path


def give(file: int | Path, uid: int, gid: int) -> None:
    """Change a file's owner. Nothing is called if it is right already: a sandbox may forbid the call itself.

    Raises:
        OSError: it cannot be given away.
    """
    status = os.fstat(file) if isinstance(file, int) else file.lstat()
    if (status.st_uid, status.st_gid) == (uid, gid):
        return
    if isinstance(file, int):
        os.fchown(file, uid, gid)
    else:
        os.chown(file, uid, gid, follow_symlinks=False)


def make_folders(folder: Path, mode: int, owner: tuple[int, int] | None) -> None:
    """Make a folder and those above it that are missing; another process may be making them, too.

    owner: uid and gid that each new one gets; None: those of this process.

    Raises:
        OSError: one cannot be made or given away, or something else has its name.
    """
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        try:
            missing.mkdir(mode)
        except FileExistsError:
            if not missing.is_dir():
                raise
        else:
            if owner is not None:
                give(missing, *owner)


def invoking_user(environ: Mapping[str, str], *, uid: int) -> Owner:
    """The user behind this process: the one who called sudo, else user `uid`.

    Only a process of root was started by sudo; for others SUDO_UID and SUDO_USER are just variables.
    """
    entry = _sudo_entry(environ) if uid == 0 else None
    if entry is None:
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:  # a container may run under a uid without an entry
            return Owner(uid=uid, gid=uid, home=Path(environ.get("HOME", "/")))
    return Owner(uid=entry.pw_uid, gid=entry.pw_gid, home=Path(entry.pw_dir))


def _sudo_entry(environ: Mapping[str, str]) -> pwd.struct_passwd | None:
    try:
        if environ.get("SUDO_UID", "").isdigit():
            return pwd.getpwuid(int(environ["SUDO_UID"]))
        if environ.get("SUDO_USER"):
            return pwd.getpwnam(environ["SUDO_USER"])
    except KeyError:
        return None
    return None


def database_path(explicit: str | Path | None, environ: Mapping[str, str], *, uid: int) -> Path:
    """The database: the one named, else `INGERO_DB`, else `~/.ingero/ingero.db` of the invoking user."""
    named = explicit or environ.get(DATABASE_VARIABLE)
    if named:
        return _at_home(Path(named)).absolute()
    return invoking_user(environ, uid=uid).home / ".ingero" / "ingero.db"


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # there is no such user: the name stands as it is, as in a shell
        return path
