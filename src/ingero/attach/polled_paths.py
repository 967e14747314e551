"""Finds the path that a thread polls, by tracing its system calls for a moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import numpy as np

from ingero.attach.libbpf import BpfObject
from ingero.attach.objects import object_path
from ingero.foreign_text import decoded

_LONGEST_S = 1.1  # that it is watched: a loop that looks less often is not waited for
_POLL_PERIOD_S = 0.1
_ENOUGH = 2  # times the same path
_NUMBERS = 512


def polled_path(tid: int, arguments: Mapping[int, int]) -> str:
    """The path that a thread passes most often, as it names it; "" if none within a second.

    arguments: which argument is the path (0 or 1), by number of the system call.

    Raises:
        BpfError: the kernel refuses to look at system calls.
    """
    constants = {"wanted_tid": tid.to_bytes(4, "little")}
    constants |= {name: _bits(arguments, place) for place, name in enumerate(("path_is_first", "path_is_second"))}
    with BpfObject(object_path("polled_paths"), constants=constants) as loaded:
        link = loaded.program("note_path").attach()
        try:
            until_s = time.monotonic() + _LONGEST_S
            found: list[tuple[bytes, int]] = []
            while time.monotonic() < until_s and not (found and found[0][1] >= _ENOUGH):
                time.sleep(_POLL_PERIOD_S)
                found = _seen(loaded).most_common(1)
        finally:
            link.close()
    return decoded(found[0][0]) if found else ""


def _seen(loaded: BpfObject) -> Counter[bytes]:
    paths = loaded.maps["polled_paths"]
    raw = (paths.lookup(place.to_bytes(4, "little")) or b"" for place in range(paths.max_entries))
    return Counter(text for one in raw if (text := one.partition(b"\0")[0]))


def _bits(arguments: Mapping[int, int], place: int) -> bytes:
    bits = np.zeros(_NUMBERS, np.uint8)
    bits[[number for number, argument in arguments.items() if argument == place and number < _NUMBERS]] = 1
    return np.packbits(bits, bitorder="little").tobytes()
