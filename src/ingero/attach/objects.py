"""Where the compiled BPF objects are."""

from __future__ import annotations

import platform
from importlib.resources import files
from pathlib import Path

from ingero.errors import IngeroError


class ObjectMissingError(IngeroError):
    """A BPF object was not built for this machine."""


def object_path(name: str) -> Path:
    """The file of BPF object `name` for this machine's processor.

    Raises:
        ObjectMissingError: it is not there.
    """
    path = Path(str(files("ingero"))) / "bpf" / "objects" / platform.machine() / f"{name}.bpf.o"
    if not path.exists():
        raise ObjectMissingError(f"the BPF object {name} for {platform.machine()} is not built", hint="make build")
    return path
