"""Names what a release's wheel has too much or too little of: `check_wheel.py WHEEL ...`.

The build hooks ask it of each wheel that they make for other hosts.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MACHINES = ("x86_64", "aarch64")
MAX_BYTES = {"ingero": 2_100_000, "ingero_gpusim": 1_000_000}
_SOURCES = frozenset({".c", ".h", ".cpp"})
_READ = "ingero/demo/gpusim/common/knobs.h"  # by knobs.py
_GPUSIM = {
    *("lib/libcuda.so.1", "lib/libcudart.so.11.0", "lib/libcudart.so.12", "lib/libcudart.so.13"),
    *("lib/libnccl.so.2", "lib/libnvidia-ml.so.1"),
    *("programs/hog", "programs/libminiaten.so", "programs/libminiblas.so", "sources.sha256", "__init__.py"),
}


def refuse_faults(wheel: Path) -> None:
    """End the program with what is wrong with a wheel."""
    if found := list(faults(wheel)):
        wheel.unlink()
        sys.exit("\n".join(f"{wheel.name}: {fault}" for fault in found))


def faults(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel, by its name's package and machine."""
    package = wheel.name.partition("-")[0]
    with zipfile.ZipFile(wheel) as archive:
        files = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    size = wheel.stat().st_size
    if size > MAX_BYTES[package]:
        yield f"it has {size:,} bytes; {MAX_BYTES[package]:,} at most"
    if sources := [name for name in files if PurePosixPath(name).suffix in _SOURCES and name != _READ]:
        yield f"it has C sources: {', '.join(sorted(sources)[:5])}"
    yield from (_of_gpusim if package == "ingero_gpusim" else _of_ingero)(wheel, files)


def _of_ingero(wheel: Path, files: dict[str, int]) -> Iterator[str]:
    own = next(machine for machine in MACHINES if wheel.name.endswith(f"_{machine}.whl"))
    folders = {PurePosixPath(name).parts[3] for name in files if name.startswith("ingero/bpf/objects/")}
    if folders != {own}:
        yield f"it has BPF objects of {', '.join(sorted(folders)) or 'no machine'}"
    if names := [name for name in files if name.startswith("ingero/demo/gpusim/names/")]:
        yield f"it has what only building the simulated GPU needs: {names[0]}"


def _of_gpusim(wheel: Path, files: dict[str, int]) -> Iterator[str]:
    del wheel
    there = {name.removeprefix("ingero_gpusim/"): mode for name, mode in files.items() if ".dist-info/" not in name}
    if there.keys() != _GPUSIM:
        yield f"unlike what it should have: {', '.join(sorted(there.keys() ^ _GPUSIM))}"
    if not there.get("programs/hog", 0o111) & 0o111:
        yield "programs/hog cannot be executed"


def main() -> None:
    """Command line."""
    found = [f"{path}: {fault}" for path in map(Path, sys.argv[1:]) for fault in faults(path)]
    sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
