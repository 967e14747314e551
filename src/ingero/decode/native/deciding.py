"""Which words of a stack decide the chain of calls on it: another stack with the same words has the same chain.

The place of each return address follows from the frame before it: from the stack pointer, or from a register that an
earlier frame has saved on the stack. So the return addresses and those saved registers decide everything, as long as
only they are used; what needs more (an expression, another register of the first frame) is said to be undecided.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingero.decode.native.call_frames import Row, Rule
from ingero.decode.native.machines import Machine


@dataclass(frozen=True, slots=True)
class Word:
    """The word at an address; None: the frame pointer as it is. is_relative: it is an address on the same stack."""

    address: int | None
    is_relative: bool


_FRAME_POINTER = Word(None, is_relative=True)


class Deciding:
    """The words that a walk has used so far, in order; None where it has used something else."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.words: list[Word | None] = []
        # by register: the word that it was saved in; None: something else. A register that is not here is as it was
        # in the first frame; the stack pointer follows from what was used before
        self._saved: dict[int, Word | None] = {}

    def base(self, row: Row) -> None:
        """The walk takes the place of a frame from the current registers."""
        if row.cfa_expression:
            self._use(None)
        elif row.cfa_register != self._machine.sp:
            self._use(self._origin(row.cfa_register))

    def caller(self, row: Row, cfa: int) -> None:
        """The walk goes to the caller of the frame at `cfa`."""
        saved = dict(self._saved)
        address: Word | None = self._origin(row.return_register)
        for register, (rule, value, _expression) in row.places:
            word = Word(cfa + value, is_relative=True) if rule is Rule.AT_OFFSET else None
            if register != row.return_register:
                saved[register] = word
            elif word:
                address = Word(cfa + value, is_relative=False)
            elif rule is Rule.UNDEFINED:  # there is no caller
                return
            else:
                address = None
        self._use(address)
        self._saved = saved

    def _origin(self, register: int) -> Word | None:
        if register in self._saved:
            return self._saved[register]
        return _FRAME_POINTER if register == self._machine.fp else None

    def _use(self, word: Word | None) -> None:
        if word is None or word not in self.words:
            self.words.append(word)
