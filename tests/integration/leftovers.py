"""Finds kernel objects of an agent that are still there after its end."""

from __future__ import annotations

import ctypes
import platform
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SYS_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
# commands of bpf(2), uapi/linux/bpf.h: the next id after one
_NEXT = {"prog": 11, "map": 12, "link": 31}
_UPROBE_EVENTS = Path("/sys/kernel/tracing/uprobe_events")


@dataclass(frozen=True, kw_only=True)
class Held:
    """Ids of what an agent holds by its open files, by kind: prog, map, link. Other agents' are not among them."""

    pid: int
    ids: dict[str, frozenset[int]]

    def still_there(self) -> dict[str, set[int]]:
        """Of these, what the kernel still has; perf-event probes of the old interface with them."""
        left = {kind: set(self.ids[kind] & set(kernel_ids(kind))) for kind in _NEXT}
        return {kind: ids for kind, ids in left.items() if ids}


def held_by(pid: int) -> Held:
    """The kernel objects that a running agent holds."""
    found: dict[str, set[int]] = {kind: set() for kind in _NEXT}
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = file.read_text()
        except OSError:  # closed meanwhile
            continue
        for kind in _NEXT:
            found[kind] |= {int(number) for number in re.findall(rf"^{kind}_id:\s*(\d+)", text, re.MULTILINE)}
    return Held(pid=pid, ids={kind: frozenset(ids) for kind, ids in found.items()})


def kernel_ids(kind: str) -> Iterator[int]:
    """Ids of every object of a kind that the kernel has."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = 0
    while True:
        attributes = ctypes.create_string_buffer(struct.pack("<III", at, 0, 0) + bytes(116), 128)
        if libc.syscall(_SYS_BPF, _NEXT[kind], attributes, 128) != 0:
            return
        at = struct.unpack_from("<I", attributes, 4)[0]
        yield at


def uprobe_events() -> set[str]:
    """Probes of the old interface; ours use none, so that a killed agent leaves none."""
    return set(_UPROBE_EVENTS.read_text().splitlines()) if _UPROBE_EVENTS.exists() else set()


def open_files(pid: int) -> int:
    """The number of open files of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
