"""Which C compiler builds the simulated GPU and the programs that run on it: gcc, or clang where there is no gcc."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass

NAMES = ("gcc", "clang")  # clang is there anyway where the BPF programs were compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A C compiler with the flags that it always gets, the machine that it compiles for, and a program like nm."""

    command: tuple[str, ...]
    nm: str
    machine: str


def c_compiler() -> str:
    """The first of NAMES that is on PATH; gcc if none is, so that the error names it as missing."""
    return next(filter(shutil.which, NAMES), NAMES[0])


def host_toolchain() -> Toolchain:
    """What compiles for this host."""
    return Toolchain(command=(c_compiler(),), nm="nm", machine=platform.machine())


def why_no_compiler() -> str:
    """Why nothing can be compiled on this host; "" if it can."""
    if not any(map(shutil.which, NAMES)):
        return f"no {' or '.join(NAMES)}"
    return "" if shutil.which("nm") else "no nm"
