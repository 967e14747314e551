"""Finds copies of traced libraries on disk, so that probes are in place before the first process starts."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ingero.discover.library_files import STUB_FOLDER, may_be_traced
from ingero.discover.rooted import open_regular

_LDCONFIG_CACHE = Path("etc/ld.so.cache")
_MAX_CACHE_BYTES = 16 << 20  # a usual one has 0.1 MB
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20sII20x")  # magic, number of entries, bytes of strings
_CACHE_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, osversion, hwcap
_SYSTEM_FOLDERS = (
    "usr/lib/*-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
    "usr/local/cuda*/lib64",
    "usr/local/cuda*/targets/*/lib",
    "usr/local/cuda*/compat",
    "usr/local/nvidia/lib64",
    "usr/lib/*-linux-gnu/nvidia",  # Jetson Linux from 36 on
    "usr/lib/*-linux-gnu/nvidia/current",  # Debian
    "usr/lib/*-linux-gnu/tegra",
    "usr/lib/wsl/lib",
    "usr/lib/wsl/drivers/nv*",  # which the one above loads
    "usr/lib/ollama/*",
    "usr/local/lib/ollama/*",
    "opt/cuda/lib64",
    "opt/cuda/targets/*/lib",
    "opt/nvidia/hpc_sdk/*/*/cuda/*/lib64",
    "opt/nvidia/hpc_sdk/*/*/comm_libs/*/nccl/lib",
    "run/opengl-driver/lib",
    "home/kubernetes/bin/nvidia/lib64",
)
_PYTHON_PREFIXES = (
    "usr",
    "usr/local",
    "opt/venv",
    "opt/conda",
    "opt/conda/envs/*",
    "opt/*conda*",
    "opt/*conda*/envs/*",
)
_HOMES = ("root", "home/*")
_HOME_PREFIXES = ("*conda*", "*conda*/envs/*", ".pyenv/versions/*", ".local")
_IN_PREFIX = (
    "lib",  # conda
    "targets/*/lib",  # conda, what the former links to
    "lib/python3*/site-packages/nvidia/*/lib",
    "lib/python3*/site-packages/torch/lib",
    "lib/python3*/dist-packages/nvidia/*/lib",
    "lib/python3*/dist-packages/torch/lib",
    "local/lib/python3*/dist-packages/nvidia/*/lib",
    "local/lib/python3*/dist-packages/torch/lib",
)
_PROC = Path("/proc")


def library_copies_on_disk(
    *,
    root: Path = Path("/"),
    prefixes: Iterable[Path] = (),
    environs: Iterable[Mapping[str, str]] = (),
    homes: Sequence[Path] | None = None,
    has_well_known: bool = True,
) -> tuple[Path, ...]:
    """The files of traced libraries in well-known places, symbolic links resolved, each path once; no stubs.

    root: where the places are looked for; in another process's (/proc/PID/root) links are left out, because from here
        they would lead into our own.
    prefixes: more Python prefixes (virtual or conda environments), such as the one a traced process runs from.
    environs: environments of processes: their LD_LIBRARY_PATH, VIRTUAL_ENV and CONDA_PREFIX are searched, too.
    homes: the home folders to search; None: all.
    has_well_known: False: only what `prefixes` and `environs` name is searched.
    """
    folders = [*_prefix_folders(prefixes), *_environ_folders(environs)]
    cached: list[Path] = []
    if has_well_known:
        folders += _well_known_folders(root, homes)
        cached += _cached_by_ldconfig(root / _LDCONFIG_CACHE, root)
    named = [*cached, *_libraries_in(folders)]
    final = _unless_link if _is_inside(root, _PROC) else _resolved
    found = dict.fromkeys(path for path in map(final, named) if path is not None)
    return tuple(path for path in found if may_be_traced(path.name) and path.parent.name != STUB_FOLDER)


def python_prefix(executable: Path) -> Path:
    """The Python prefix an interpreter belongs to: PREFIX of PREFIX/bin/python."""
    return executable.parent.parent


def _well_known_folders(root: Path, homes: Sequence[Path] | None) -> Iterator[Path]:
    for pattern in _SYSTEM_FOLDERS:
        yield from root.glob(pattern)
    places = homes if homes is not None else [home for pattern in _HOMES for home in root.glob(pattern)]
    prefixes = [prefix for pattern in _PYTHON_PREFIXES for prefix in root.glob(pattern)]
    yield from _prefix_folders(
        [*prefixes, *(prefix for home in places for pattern in _HOME_PREFIXES for prefix in home.glob(pattern))]
    )


def _prefix_folders(prefixes: Iterable[Path]) -> Iterator[Path]:
    for prefix in prefixes:
        for pattern in _IN_PREFIX:
            yield from prefix.glob(pattern)


def _environ_folders(environs: Iterable[Mapping[str, str]]) -> Iterator[Path]:
    for environ in environs:
        yield from (Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry.startswith("/"))
        prefixes = (environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
        yield from _prefix_folders(Path(prefix) for prefix in prefixes if prefix.startswith("/"))


def _libraries_in(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in dict.fromkeys(folders):
        yield from (folder / name for name in _names(folder) if may_be_traced(name))


def _entries(folder: Path) -> list[Path]:
    return [folder / name for name in _names(folder)]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  # of thousands of names few become paths
    except OSError:  # not a folder, or not ours to read
        return []


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):  # a dangling link or a loop of links
        return None


def _unless_link(path: Path) -> Path | None:
    return path if path.is_file() and not path.is_symlink() else None


def _is_inside(path: Path, folder: Path) -> bool:
    return folder in path.parents


def _cached_by_ldconfig(cache: Path, root: Path) -> Iterator[Path]:
    """The paths in the dynamic loader's cache; none if it is missing or of another format.

    Source: glibc sysdeps/generic/dl-cache.h (struct cache_file_new).
    """
    try:
        file = open_regular(cache)
    except OSError:
        return
    with os.fdopen(file, "rb") as opened:
        raw = opened.read(_MAX_CACHE_BYTES)
    start = raw.find(_CACHE_MAGIC)  # an older cache may come first in the same file
    if start < 0 or len(raw) < start + _CACHE_HEADER.size:
        return
    _, count, _ = _CACHE_HEADER.unpack_from(raw, start)
    entries_at = start + _CACHE_HEADER.size
    if entries_at + count * _CACHE_ENTRY.size > len(raw):
        return
    for index in range(count):
        _, _, path_at, _, _ = _CACHE_ENTRY.unpack_from(raw, entries_at + index * _CACHE_ENTRY.size)
        end = raw.find(b"\0", start + path_at)
        path = os.fsdecode(raw[start + path_at : end])
        if may_be_traced(path.rpartition("/")[2]):
            yield root / path.lstrip("/")
