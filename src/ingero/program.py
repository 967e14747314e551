"""The name under which this program was started, for commands that users paste.

`ingero` alone is found where the shell found it, and by sudo only in its own list of folders (`secure_path`), in which
no virtual environment, no ~/.local/bin and on some systems not even /usr/local/bin is.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ingero.foreign_text import shell_word

NAME = "ingero"
_MODULE = "ingero.cli.main"
_SUDO_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # what secure_path has everywhere


def command(*words: str | Path, as_root: bool = False) -> str:
    """A command of this program for a shell: `ingero explain --db 'a b.db'`, `sudo /venv/bin/ingero trace`."""
    first = ("sudo",) if as_root else ()
    return " ".join((*first, *_program(sys.argv[0], as_root=as_root), *map(shell_word, words)))


def again_as_root(arguments: Sequence[str]) -> str:
    """The given command, run as root. arguments: as in sys.argv."""
    return " ".join(("sudo", *_program(arguments[0], as_root=True), *map(shell_word, arguments[1:])))


def _program(started: str, *, as_root: bool) -> tuple[str, ...]:
    """The words that start the program. started: sys.argv[0], a path if it was started by one."""
    if started.endswith(f"{_MODULE.replace('.', '/')}.py"):
        return (shell_word(sys.executable), "-m", _MODULE)
    if Path(started).name != NAME or "/" not in started or _finds(started, as_root=as_root):
        return (NAME,)  # also of a program that uses this one as a library
    return (shell_word(Path(started).absolute()),)


def _finds(started: str, *, as_root: bool) -> bool:
    found = shutil.which(NAME, path=_SUDO_PATH if as_root else None)
    try:
        return found is not None and Path(found).samefile(started)
    except OSError:
        return False
