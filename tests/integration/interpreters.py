"""The Python interpreters of this machine that tests can run: pyenv's, the distribution's, and our own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

_PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
_OLDEST = (3, 8)


@cache
def interpreters() -> dict[str, Path]:
    """name (version and where it comes from) -> program; the oldest first, at least our own."""
    programs = [*_PYENV.glob("3.*/bin/python3"), Path("/usr/bin/python3"), Path(sys.executable)]
    found = {}
    for program in programs:
        version = _version(program)
        if version and version[:2] >= _OLDEST and program.resolve() not in found.values():
            origin = "pyenv" if _PYENV in program.parents else "system" if program.parts[1] == "usr" else "own"
            found[f"{version[0]}.{version[1]}.{version[2]}-{origin}"] = program.resolve()
    return dict(sorted(found.items(), key=lambda one: _version(one[1]) or ()))


def counts_freed(program: Path) -> bool:
    """Whether the interpreter counts the code objects that it frees, as from 3.14 on."""
    return (_version(program) or ()) >= (3, 14)


def include_folder(program: Path) -> Path | None:
    """The folder of the interpreter's headers, with `internal/`; None if they are not installed."""
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    printed = subprocess.run([program, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    folder = Path(printed.strip())
    return folder if (folder / "internal").is_dir() else None


@cache
def _version(program: Path) -> tuple[int, ...] | None:
    code = "import sys; print(*sys.version_info[:3])"
    try:
        ran = subprocess.run([program, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return tuple(int(part) for part in ran.stdout.split())
