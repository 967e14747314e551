"""The arm64 guest: a root of arm64 packages with our own objects and sources, in which `arm64_guest.py` runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.kernels import machine
from tests.kernels.archives import CACHE, ROOT, run, unpack
from tests.kernels.guests import BOOKWORM_ARM64
from tests.kernels.machine import Kernel

_PACKAGES = ("bash", "busybox-static", "coreutils", "python3-minimal", "python3-numpy", "libbpf1", "mount", "libc-bin")
_TARGET = Path(__file__).with_name("arm64_target.c")
_PLACE = "opt/ingero"


def boot(kernel: Kernel, tree: Path, work: Path, limit_s: int) -> str:
    """Runs the checks in the guest; what its console said."""
    root = _root()
    _install(tree, root / _PLACE)
    # numpy's: chosen by dpkg when it configures, which nobody does here
    libraries = ":".join(f"/usr/lib/aarch64-linux-gnu/{name}" for name in ("blas", "lapack"))
    variables = f"PYTHONPATH=src:. LD_LIBRARY_PATH={libraries}"
    command = f"cd /{_PLACE} && {variables} timeout {limit_s} python3 tests/kernels/arm64_guest.py"
    return machine.boot(kernel, f"{command} > /share/arm64.log 2>&1", work, limit_s=limit_s, root=root)


def _root() -> Path:
    """The unpacked packages; those that dpkg would configure need none of it here."""
    root = CACHE / "arm64-root"
    if not (root / "usr/bin/python3").exists():
        BOOKWORM_ARM64.update()
        for package in BOOKWORM_ARM64.download_all(_PACKAGES):
            unpack(package, root)
        for name in ("proc", "sys", "dev", "run", "tmp"):
            (root / name).mkdir(exist_ok=True)
    return root


def _install(tree: Path, place: Path) -> None:
    """Sources, arm64 objects, and a library and a program that the checks probe."""
    shutil.rmtree(place, ignore_errors=True)
    for name in ("src", "tests"):
        shutil.copytree(tree / name, place / name)
    subprocess.run([sys.executable, ROOT / "tools/build_bpf.py", "aarch64"], check=True, stdout=subprocess.DEVNULL)
    objects = "src/ingero/bpf/objects/aarch64"
    shutil.copytree(ROOT / objects, place / objects, dirs_exist_ok=True)
    common = ("aarch64-linux-gnu-gcc", "-O1", "-mbranch-protection=pac-ret")
    library = place / "libcuda.so.1"
    run([*common, "-shared", "-fPIC", "-DLIBRARY", "-Wl,-soname,libcuda.so.1", "-o", library, _TARGET])
    run([*common, "-o", place / "target", _TARGET, library, "-Wl,-rpath,$ORIGIN"])
