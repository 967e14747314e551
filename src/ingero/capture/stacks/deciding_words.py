"""Tells the kernel side which words of a stack determine its call chain.

The kernel side makes the next key of a stack from their values (`native_stack.h`), up to the first that is not the
copy's: chains of one place part there, and the chain that leaves gets an answer of its own. What key comes of this very
copy is computed here in the same way and said to be the last, so that no second copy is made.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.decode.native.deciding import Word
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.unwinder import ThreadCopy

MAYBE_OTHER = 1 << 63  # NATIVE_MAYBE_OTHER
_KEY = struct.Struct("<QQII")  # struct seen_key
_NATIVE_STACK = 1  # beside a stack's key in `seen_python`
_RELATIVE, _FRAME_POINTER, _INDEX = 1 << 12, 1 << 13, 0xFFF  # enum deciding_word
_SEEN_MASK = 0xFFFF
_PRIME, _MASK = 0x100000001B3, (1 << 64) - 1  # of FNV-1a, 64 bits
_WORD_BYTES = 8
_MAX_STEPS = 3  # of one copy, so that places where chains part have some of DECIDING_STEPS left


class DecidingWords:
    """Fills map `deciding`. seen: map `seen_python`. layout: `struct deciding_words`."""

    def __init__(self, deciding: Map, seen: Map, layout: np.dtype[Any]) -> None:
        self._deciding, self._seen, self._layout = deciding, seen, layout
        self._most: int = layout["word"].shape[0]

    def answer(self, pid: int, key: int, copy: ThreadCopy, words: Sequence[Word | None]) -> int:
        """Stores that these words determine the call chain of this copy, sent under `key`; returns its last key.

        0: something else decides it, so that nothing can be said of other stacks.
        """
        places = _StackWords(copy)
        known = [place for word in words if (place := places.of(word)) is not None]
        if len(known) < len(words) or len(known) > _MAX_STEPS * self._most:
            return 0
        keys, values = [key], []
        for at in range(0, max(1, len(known)), self._most):
            step = known[at : at + self._most]
            passed = places.keys(keys[-1], step)
            keys.append(passed[-1] & ~MAYBE_OTHER)
            is_last = at + self._most >= len(known)
            values.append(self._packed(keys[-1] if is_last else 0, step, passed[1:]))
        # the copy is the last key's as well; and until the first answer is there, the others are not needed
        self._seen.update(_KEY.pack(keys[-1], _NATIVE_STACK, pid, 0), b"\1")
        for at, value in reversed(list(zip(keys, values, strict=False))):
            self._deciding.update(_KEY.pack(at, 0, pid, 0), value)
        return keys[-1]

    def forget(self, pid: int, key: int) -> None:
        """Requests a new copy for this key: the old one is no longer kept."""
        self._seen.delete(_KEY.pack(key, _NATIVE_STACK, pid, 0))

    def _packed(self, last: int, step: Sequence[int], keys: Sequence[int]) -> bytes:
        value = np.zeros(1, self._layout)
        value["last"], value["count"] = last, len(step)
        value["word"][0, : len(step)] = step
        value["seen"][0, : len(step)] = [key & _SEEN_MASK for key in keys]
        return value.tobytes()


class _StackWords:
    """The words of a stack copy, counted from the stack pointer as the kernel side does."""

    def __init__(self, copy: ThreadCopy) -> None:
        machine = MACHINES[copy.machine]
        self._sp, self._fp = copy.registers[machine.sp] or 0, copy.registers[machine.fp] or 0
        self._words = copy.stack[self._sp - copy.stack_vaddr :]

    def of(self, word: Word | None) -> int | None:
        """The value of `deciding_words.word` for an address; None if there is none."""
        if word is None:
            return None
        if word.address is None:
            return _FRAME_POINTER
        index, rest = divmod(word.address - self._sp, _WORD_BYTES)
        if rest or not 0 <= index <= min(_INDEX, len(self._words) // _WORD_BYTES - 1):
            return None
        return index | (_RELATIVE if word.is_relative else 0)

    def keys(self, key: int, places: Sequence[int]) -> list[int]:
        """A key and its successors with each of these words, as in `next_key` of native_stack.h."""
        passed = [key]
        for place in places:
            at = (place & _INDEX) * _WORD_BYTES
            value = self._fp if place & _FRAME_POINTER else int.from_bytes(self._words[at : at + _WORD_BYTES], "little")
            if place & (_RELATIVE | _FRAME_POINTER):
                value -= self._sp
            key = (key ^ value & _MASK) * _PRIME & _MASK
            key ^= key >> 29
            passed.append(key)
        return passed
