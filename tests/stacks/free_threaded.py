"""A free-threaded CPython, built from Debian's source: no package of it exists there."""

from __future__ import annotations

import os
import subprocess

from tests.stacks.debian import CACHE, source

_FOLDER = CACHE / "free-threaded"
PROGRAM = _FOLDER / "installed" / "bin" / "python3.13t"


def fetch() -> None:
    """Builds it, once: some minutes."""
    if PROGRAM.exists():
        return
    archive = source("trixie", "python3.13", _FOLDER)
    subprocess.run(["tar", "-xf", archive, "-C", _FOLDER], check=True)
    tree = next(_FOLDER.glob("Python-*"))
    options = ["--disable-gil", "--disable-test-modules", "--without-ensurepip", f"--prefix={PROGRAM.parents[1]}"]
    for command in (
        ["./configure", "--quiet", *options, "CFLAGS=-O1 -g0"],
        ["make", "--quiet", f"-j{os.cpu_count()}"],
        ["make", "--quiet", "install"],
    ):
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
