"""Answers the copies of stacks: tells the kernel side which words of a stack decide its chain of calls.

The kernel side makes the next key of a stack from their values (`native_stack.h`). The key that comes of this very copy
is computed here in the same way and said to be the last, so that no second copy needs an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ingero.attach.libbpf import Map
from ingero.decode.native.deciding import Word
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.unwinder import ThreadCopy

MAYBE_OTHER = 1 << 63  # NATIVE_MAYBE_OTHER
_KEY = struct.Struct("<QQII")  # struct seen_key
_RELATIVE, _FRAME_POINTER, _INDEX = 1 << 12, 1 << 13, 0xFFF  # enum deciding_word
_PRIME, _MASK = 0x100000001B3, (1 << 64) - 1
_WORD_BYTES = 8
_STEPS = 3  # one fewer than DECIDING_STEPS: the last one says that there are no more


class DecidingWords:
    """Fills map `deciding`. words: how many a `struct deciding_words` holds."""

    def __init__(self, deciding: Map, words: int) -> None:
        self._map, self._most = deciding, words
        self._value = struct.Struct(f"<I{words}H")
        self._last: set[tuple[int, int]] = set()

    def answer(self, pid: int, key: int, copy: ThreadCopy, words: Sequence[Word | None]) -> None:
        """The chain of calls of this copy, sent under `key`, is decided by these words; of others nothing is said."""
        places = _Places(copy)
        known = [place for word in words if (place := places.of(word)) is not None]
        if (pid, key) in self._last or len(known) < len(words) or len(known) > _STEPS * self._most:
            return
        steps = [known[at : at + self._most] for at in range(0, len(known), self._most)]
        keys = [key]
        for step in steps:
            keys.append(places.next_key(keys[-1], step))
        self._last.add((pid, keys[-1]))
        # the last one first: until the first one is there, nobody asks for the others
        for at, step in reversed(list(zip(keys, [*steps, []], strict=True))):
            value = self._value.pack(len(step), *step, *[0] * (self._most - len(step)))
            self._map.update(_KEY.pack(at, 0, pid, 0), value)


class _Places:
    """Words of a copy as the kernel side counts them: from the stack pointer on."""

    def __init__(self, copy: ThreadCopy) -> None:
        machine = MACHINES[copy.machine]
        self._sp, self._fp = copy.registers[machine.sp] or 0, copy.registers[machine.fp] or 0
        self._words = copy.stack[self._sp - copy.stack_vaddr :]

    def of(self, word: Word | None) -> int | None:
        """A value of `deciding_words.word`; None if it cannot be one."""
        if word is None:
            return None
        if word.address is None:
            return _FRAME_POINTER
        index, rest = divmod(word.address - self._sp, _WORD_BYTES)
        if rest or not 0 <= index <= min(_INDEX, len(self._words) // _WORD_BYTES - 1):
            return None
        return index | (_RELATIVE if word.is_relative else 0)

    def next_key(self, key: int, places: Sequence[int]) -> int:
        """As `next_key` of native_stack.h."""
        for place in places:
            at = (place & _INDEX) * _WORD_BYTES
            value = self._fp if place & _FRAME_POINTER else int.from_bytes(self._words[at : at + _WORD_BYTES], "little")
            if place & (_RELATIVE | _FRAME_POINTER):
                value -= self._sp
            key = (key ^ value & _MASK) * _PRIME & _MASK
            key ^= key >> 29
        return key & ~MAYBE_OTHER
