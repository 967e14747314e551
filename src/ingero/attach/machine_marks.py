"""Marks that every process of the host can see from any container: BPF maps, found by name.

The kernel takes a mark away with the process that left it. Leaving one needs CAP_BPF, seeing those of others
CAP_SYS_ADMIN. Source: bpf(2), commands BPF_MAP_GET_NEXT_ID and BPF_OBJ_GET_INFO_BY_FD (uapi/linux/bpf.h).
"""

from __future__ import annotations

import ctypes as c
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ingero.attach.libbpf import library_call

_ARRAY = 2  # enum bpf_map_type
_KEY = struct.pack("<I", 0)
_TEXT_BYTES = 16 << 10
_INFO = struct.Struct("<6I16s")  # struct bpf_map_info up to its name: type, id, sizes of key and value, entries, flags


class MachineMark:
    """A text under a name of at most 15 characters, visible host-wide from construction to `close`.

    Raises:
        OSError: the kernel refuses it.
        LibbpfMissingError: libbpf is not installed.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._fd = library_call("bpf_map_create", _ARRAY, name.encode(), len(_KEY), _TEXT_BYTES, 1, None)
        value = text.encode()[: _TEXT_BYTES - 1].ljust(_TEXT_BYTES, b"\0")
        library_call("bpf_map_update_elem", self._fd, _KEY, value, 0)
        self._id = _id_and_name(self._fd)[0]

    def earlier(self) -> str | None:
        """The text of the first mark of this name that was left before this one; None if this is the first.

        Of two that are left at once, only the later one finds the other. Empty: it has a name and no text yet.

        Raises:
            OSError: this process may not look at the machine's maps.
        """
        for number in _ids():
            if number >= self._id:
                return None
            with _open_map(number) as fd:
                if fd is not None and _id_and_name(fd)[1] == self.name:
                    return _text(fd)
        return None

    def close(self) -> None:
        """Removes the mark."""
        os.close(self._fd)


def _ids() -> Iterator[int]:
    """The ids of all BPF maps of the host, ascending: the order of creation."""
    number = c.c_uint32(0)
    while True:
        try:
            library_call("bpf_map_get_next_id", number.value, c.byref(number))
        except FileNotFoundError:
            return
        yield number.value


@contextmanager
def _open_map(number: int) -> Iterator[int | None]:
    """The descriptor of a map by id; None if it is gone."""
    try:
        fd = library_call("bpf_map_get_fd_by_id", number)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _id_and_name(fd: int) -> tuple[int, str]:
    info, size = c.create_string_buffer(_INFO.size), c.c_uint32(_INFO.size)
    library_call("bpf_obj_get_info_by_fd", fd, info, c.byref(size))
    _, number, _, _, _, _, name = _INFO.unpack(info.raw)
    return number, name.rstrip(b"\0").decode(errors="replace")


def _text(fd: int) -> str:
    value = c.create_string_buffer(_TEXT_BYTES)
    library_call("bpf_map_lookup_elem", fd, _KEY, value)
    return value.value.decode(errors="replace")
