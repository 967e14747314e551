"""Reads a token from a file, so that it is in no command line; only its owner may be able to read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ingero.errors import IngeroError
from ingero.foreign_text import shell_word

_MAX_BYTES = 4096


class TokenFileError(IngeroError):
    """The file holds no token that can be used."""


def read_token(path: Path) -> str:
    """The first line of the file.

    Raises:
        TokenFileError: it cannot be read, others can read it, or it holds no token.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TokenFileError(
            f"{path}: {error.strerror}", hint="name a file with the token in its first line"
        ) from error
    if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise TokenFileError(f"others may read or write {path}", hint=f"chmod 600 {shell_word(path)}")
    token = raw.split(b"\n", 1)[0].strip()
    if not token or len(raw) > _MAX_BYTES or not token.isascii() or not token.decode().isprintable():
        raise TokenFileError(
            f"{path} holds no token: printable ASCII in its first line",
            hint=f"openssl rand -hex 32 >{shell_word(path)}",
        )
    return token.decode()
