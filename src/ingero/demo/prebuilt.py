"""The package ingero-gpusim: the simulated GPU and the programs of the demo, compiled for one machine."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path

from ingero import __version__

PACKAGE = "ingero-gpusim"
INSTALL = "pip install 'ingero[demo]'"
LIBRARIES, PROGRAMS = "lib", "programs"  # its folders
KEY = "sources.sha256"  # its file with the digest of what was compiled
SOURCES = Path(__file__).parent
_COMPILED = frozenset({".c", ".h", ".cpp", ".txt"})
_FLAGS = ("gpusim/build.py", "gpusim/stubs.py", "workloads/native.py")  # which decide what the compiler makes of them


def folder() -> Path | None:
    """Where its files are; None: it is not installed, or `why_not` says that it does not fit."""
    installed = _installed()
    return None if installed is None or _misfit(*installed) else installed[1]


def program(source: Path) -> Path | None:
    """The program or library that was made of a C file of the demo; None: it is to be compiled here."""
    if not source.is_relative_to(SOURCES) or (files := folder()) is None:
        return None
    names = (source.stem, f"lib{source.stem}.so")
    return next((path for name in names if (path := files / PROGRAMS / name).exists()), None)


def why_not() -> str:
    """Why nothing prebuilt can be taken; "" where it can."""
    installed = _installed()
    return f"{PACKAGE} is not installed" if installed is None else _misfit(*installed)


def has_sources() -> bool:
    """Whether the C sources are here: in a checkout, and where ingero was built from sources; not in its wheels."""
    return (SOURCES / "gpusim" / "names").is_dir()


@functools.cache
def digest() -> str:
    """The digest of all that is compiled; "" where the sources are not."""
    if not has_sources():
        return ""
    summed = hashlib.sha256()
    paths = sorted(path for path in SOURCES.rglob("*") if path.suffix in _COMPILED)
    for path in (*paths, *(SOURCES / name for name in _FLAGS)):
        summed.update(f"{path.relative_to(SOURCES)}\0".encode())
        summed.update(path.read_bytes())
    return summed.hexdigest()


def _installed() -> tuple[str, Path] | None:
    """Its version and its folder."""
    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    return found.version, Path(str(found.locate_file(PACKAGE.replace("-", "_"))))


def _misfit(version: str, files: Path) -> str:
    if version != __version__:
        return f"{PACKAGE} is {version}, ingero is {__version__}"
    try:
        made_of = (files / KEY).read_text(encoding="ascii").strip()
    except OSError as error:
        return f"{PACKAGE} is damaged: {files / KEY}: {error.strerror}"
    return f"{PACKAGE} is of other sources than those here" if digest() not in ("", made_of) else ""
