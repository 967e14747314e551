"""The live fault knobs of the simulated GPUs: a shared file that the C libraries read at each use."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import struct
from pathlib import Path
from types import TracebackType

from ingero.errors import IngeroError

_HEADER = (Path(__file__).parent / "common" / "knobs.h").read_text(encoding="utf-8")
_DECLARED: list[tuple[str, str, str]] = re.findall(r"KNOB\((double|uint64_t), (\w+), ([\d.]+)\)", _HEADER)


def _constant(name: str) -> int:
    found = re.search(rf"#define {name} (0x[0-9a-f]+|\d+)", _HEADER)
    assert found is not None, f"{name} is not in common/knobs.h"
    return int(found[1], 0)


MAX_DEVICES = _constant("GPUSIM_MAX_DEVICES")
_BLOCK_BYTES = _constant("GPUSIM_KNOBS_BYTES")
_MAGIC = _constant("GPUSIM_KNOBS_MAGIC")
_FILE_BYTES = MAX_DEVICES * _BLOCK_BYTES

DEFAULTS: dict[str, float] = {name: float(text) if kind == "double" else int(text) for kind, name, text in _DECLARED}
"""Every knob with the value it has when nobody changed it; `common/knobs.h` says what each one does."""


class KnobsError(IngeroError, AttributeError):
    """A knob that does not exist, a value it cannot take, or a device outside the range."""


class Knobs:
    """Open (and create, with defaults) a knob file; each knob is an attribute.

    >>> with Knobs(path) as knobs:
    ...     knobs.kernel_scale = 2.5

    Without `device` a knob is set on every device and read from device 0. A change takes effect at the next call
    that any process makes, without a restart. Names and defaults: `DEFAULTS`.

    Raises:
        KnobsError: no such knob, a negative value, or `device` is not in 0..MAX_DEVICES-1.
    """

    def __init__(self, path: Path | str, device: int | None = None) -> None:
        if device is not None and not 0 <= device < MAX_DEVICES:
            raise KnobsError(f"device {device} has no knobs", hint=f"use a device number from 0 to {MAX_DEVICES - 1}")
        self.__dict__.update(_memory=_open(Path(path)), _device=device)

    def __getattr__(self, name: str) -> float:
        code, offset = _slot(name)
        value: float = struct.unpack_from(code, self.__dict__["_memory"], offset + self._first() * _BLOCK_BYTES)[0]
        return value

    def __setattr__(self, name: str, value: float) -> None:
        code, offset = _slot(name)
        if value < 0:
            raise KnobsError(f"knob {name} = {value}: a knob is not negative")
        stored = float(value) if code == "@d" else int(value)
        for block in range(MAX_DEVICES) if self.__dict__["_device"] is None else [self._first()]:
            struct.pack_into(code, self.__dict__["_memory"], offset + block * _BLOCK_BYTES, stored)

    def _first(self) -> int:
        device: int | None = self.__dict__["_device"]
        return device or 0

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *DEFAULTS])

    def reset(self) -> None:
        """Give every knob its default again."""
        for name, value in DEFAULTS.items():
            setattr(self, name, value)

    def close(self) -> None:
        """Release the file; the knobs keep their values."""
        self.__dict__["_memory"].close()

    def __enter__(self) -> Knobs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(path: Path) -> mmap.mmap:
    """Map the file; the flock keeps a library that opens it at the same time from seeing half of the defaults."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_size < _FILE_BYTES:
            os.ftruncate(descriptor, _FILE_BYTES)
        memory = mmap.mmap(descriptor, _FILE_BYTES)
        for first in range(0, _FILE_BYTES, _BLOCK_BYTES):
            if struct.unpack_from("@Q", memory, first)[0] != _MAGIC:
                for name, value in DEFAULTS.items():
                    code, offset = _slot(name)
                    struct.pack_into(code, memory, first + offset, value)
                struct.pack_into("@Q", memory, first, _MAGIC)
        return memory
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone does not: the mapping keeps a duplicate open
        os.close(descriptor)


def _slot(name: str) -> tuple[str, int]:
    """Native format (one 8-byte store, so that no reader sees half a value) and offset in a device's block."""
    for index, (kind, declared, _) in enumerate(_DECLARED, start=1):  # the magic is word 0
        if declared == name:
            return "@d" if kind == "double" else "@Q", index * 8
    raise KnobsError(f"there is no knob {name!r}", hint="knobs: " + " ".join(DEFAULTS))
