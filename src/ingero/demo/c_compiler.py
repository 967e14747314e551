"""Which C compiler builds the simulated GPU and the programs that run on it: gcc, or clang where there is no gcc."""

from __future__ import annotations

import shutil

NAMES = ("gcc", "clang")  # clang is there anyway where the BPF programs were compiled


def c_compiler() -> str:
    """The first of these that is on PATH; gcc if none is, for the message that it is missing."""
    return next(filter(shutil.which, NAMES), NAMES[0])


def why_no_compiler() -> str:
    """What is missing to build with; "" if nothing."""
    if not any(map(shutil.which, NAMES)):
        return f"no {' or '.join(NAMES)}"
    return "" if shutil.which("nm") else "no nm"
