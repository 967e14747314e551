"""Loaded maps: single elements, all of them, or shared memory."""

from __future__ import annotations

import ctypes as c
import errno
import mmap
from collections.abc import Iterator

from ingero.attach.libbpf.binding import failure, libbpf

_BATCH = 4096  # keys of a hash that are asked for at once


class Map:
    """A loaded map, by descriptor."""

    def __init__(self, name: str, fd: int, key_bytes: int, value_bytes: int, max_entries: int) -> None:
        self.name, self.fd = name, fd
        self.key_bytes, self.value_bytes, self.max_entries = key_bytes, value_bytes, max_entries

    def update(self, key: bytes, value: bytes, flags: int = 0) -> None:
        """Sets one element.

        Raises:
            BpfError: the map is full, or the flags forbid it.
        """
        if libbpf().bpf_map_update_elem(self.fd, key or None, value, flags):
            raise failure(f"map {self.name}: update")

    def lookup(self, key: bytes) -> bytes | None:
        """One element, or None."""
        value = c.create_string_buffer(self.value_bytes)
        if libbpf().bpf_map_lookup_elem(self.fd, key, value):
            return None
        return value.raw

    def pop(self) -> bytes | None:
        """Takes the top of a stack or queue; None if it is empty."""
        value = c.create_string_buffer(self.value_bytes)
        if libbpf().bpf_map_lookup_and_delete_elem(self.fd, None, value):
            return None
        return value.raw

    def push(self, value: bytes) -> None:
        """Puts a value on a stack or queue.

        Raises:
            BpfError: it is full.
        """
        self.update(b"", value)

    def delete(self, key: bytes) -> bool:
        """Removes one element; False if there was none."""
        return not libbpf().bpf_map_delete_elem(self.fd, key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All elements; elements added or removed meanwhile may or may not be among them."""
        key: bytes | None = None
        next_key = c.create_string_buffer(self.key_bytes)
        while not libbpf().bpf_map_get_next_key(self.fd, key, next_key):
            key = next_key.raw
            value = self.lookup(key)
            if value is not None:
                yield key, value

    def batches(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a hash, many in one piece; as for `items`, of what is added or removed meanwhile."""
        keys = c.create_string_buffer(_BATCH * self.key_bytes)
        values = c.create_string_buffer(_BATCH * self.value_bytes)
        place, begin, is_last = c.c_uint32(), None, False
        while not is_last:
            count = c.c_uint32(_BATCH)
            look_up = libbpf().bpf_map_lookup_batch
            is_last = bool(look_up(self.fd, begin, c.byref(place), keys, values, c.byref(count), None))
            if is_last and c.get_errno() not in (0, errno.ENOENT):
                raise failure(f"map {self.name}: look up")
            begin = c.byref(place)
            yield keys.raw[: count.value * self.key_bytes], values.raw[: count.value * self.value_bytes]

    def memory(self) -> mmap.mmap:
        """The elements of a BPF_F_MMAPABLE array as shared memory, each rounded up to 8 bytes."""
        size = self.max_entries * (self.value_bytes + 7 & ~7)
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        return mmap.mmap(self.fd, pages, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
