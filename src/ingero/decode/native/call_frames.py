"""Says, for one instruction of a function, where its caller's registers are: runs the function's call frame program.

Source: DWARF 5, section 6.4; Linux Standard Base 5.0, core, 10.6 (.eh_frame); DWARF for the Arm 64-bit architecture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ingero.decode.native.cursor import Cursor, DamagedError

_MAX_REGISTER = 128  # beyond what any machine we know numbers
_MAX_REMEMBERED = 64
_MASK = (1 << 64) - 1


class Rule(Enum):
    """How a caller's register is found."""

    AT_OFFSET = 1  # in memory at CFA + value
    IS_OFFSET = 2  # CFA + value itself
    REGISTER = 3  # in register `value`
    AT_EXPRESSION = 4  # in memory where the expression says
    IS_EXPRESSION = 5  # what the expression says
    UNDEFINED = 6  # not to be found: of the return address this ends the stack


Place = tuple[Rule, int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What functions share (CIE). is_signal: its frames were entered by a signal, so their pc is exact."""

    code_align: int
    data_align: int
    return_register: int
    pointer_encoding: int
    has_extra: bool
    is_signal: bool
    program: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function, or a part of one (FDE): addresses [start, end), and its program, at `program_vaddr`."""

    start: int
    end: int
    common: Common
    program: bytes
    program_vaddr: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The caller's registers as seen from one instruction.

    cfa_register, cfa_offset: the canonical frame address, unless `cfa_expression` computes it.
    is_return_signed: the return address carries a pointer authentication code.
    """

    cfa_register: int
    cfa_offset: int
    cfa_expression: bytes
    places: tuple[tuple[int, Place], ...]
    return_register: int
    is_signal: bool
    is_return_signed: bool


@dataclass(slots=True)
class _State:
    cfa_register: int = -1
    cfa_offset: int = 0
    cfa_expression: bytes = b""
    places: dict[int, Place] = field(default_factory=dict)
    is_return_signed: bool = False

    def copy(self) -> _State:
        return _State(self.cfa_register, self.cfa_offset, self.cfa_expression, dict(self.places), self.is_return_signed)


def parse_common(entry: Cursor) -> Common:
    """A CIE, the cursor behind its id."""
    version = entry.byte()
    if version not in (1, 3, 4):
        raise DamagedError(f"it is of version {version}")
    augmentation = entry.text()
    if version == 4:
        entry.take(2)  # sizes of an address and of a segment selector
    code_align, data_align = entry.uleb(), entry.sleb()
    return_register = entry.byte() if version == 1 else entry.uleb()
    encoding = 0
    has_extra = augmentation.startswith("z")
    if has_extra:
        program_at = entry.uleb() + entry.at
        for letter in augmentation[1:]:
            if letter == "R":
                encoding = entry.byte()
            elif letter == "P":
                entry.pointer(entry.byte())
            elif letter == "L":
                entry.byte()
            elif letter not in "SB":
                break  # unknown, but its length is known
        entry.at = program_at
    elif augmentation:
        raise DamagedError(f"it has the augmentation {augmentation!r}")
    return Common(
        code_align=code_align,
        data_align=data_align,
        return_register=_register(return_register),
        pointer_encoding=encoding,
        has_extra=has_extra,
        is_signal="S" in augmentation,
        program=entry.take(entry.end - entry.at),
    )


def parse_function(entry: Cursor, common: Common) -> Function:
    """An FDE, the cursor behind its pointer to the CIE."""
    start = entry.pointer(common.pointer_encoding)
    size = entry.pointer(common.pointer_encoding & 0x0F)
    if start is None or size is None:
        raise DamagedError("a function has no address")
    if common.has_extra:
        entry.take(entry.uleb())
    program_vaddr = entry.vaddr + entry.at
    program = entry.take(entry.end - entry.at)
    return Function(start=start, end=start + size, common=common, program=program, program_vaddr=program_vaddr)


def row_at(function: Function, pc: int) -> Row:
    """What holds when the instruction at `pc`, in [start, end), is about to run.

    Raises:
        DamagedError: the program cannot be run.
    """
    common = function.common
    initial = _State()
    _Machine(common, initial, initial).run(Cursor(common.program), 0, None)
    state = initial.copy()
    machine = _Machine(common, state, initial)
    machine.run(Cursor(function.program, function.program_vaddr), function.start, pc)
    state = machine.state
    return Row(
        cfa_register=state.cfa_register,
        cfa_offset=state.cfa_offset,
        cfa_expression=state.cfa_expression,
        places=tuple(state.places.items()),
        return_register=common.return_register,
        is_signal=common.is_signal,
        is_return_signed=state.is_return_signed,
    )


class _Machine:
    """Runs call frame instructions until one belongs to a later instruction of the function."""

    def __init__(self, common: Common, state: _State, initial: _State) -> None:
        self._common, self.state, self._initial = common, state, initial
        self._remembered: list[_State] = []

    def run(self, program: Cursor, location: int, pc: int | None) -> None:
        while program.at < program.end:
            code = program.byte()
            high, low = code & 0xC0, code & 0x3F
            if high == 0x40:
                location += low * self._common.code_align
            elif high == 0x80:
                self._set(low, Rule.AT_OFFSET, program.uleb() * self._common.data_align)
            elif high == 0xC0:
                self._restore(low)
            elif code == 0x01:
                location = program.pointer(self._common.pointer_encoding) or 0
            elif code in _ADVANCE:
                location += program.unsigned(_ADVANCE[code]) * self._common.code_align
            elif code in _CFA:
                self._define_cfa(code, program)
            else:
                self._other(code, program)
            if pc is not None and location > pc:
                return

    def _set(self, register: int, rule: Rule, value: int = 0, expression: bytes = b"") -> None:
        self.state.places[_register(register)] = (rule, value, expression)

    def _restore(self, register: int) -> None:
        place = self._initial.places.get(register)
        if place is None:
            self.state.places.pop(register, None)
        else:
            self.state.places[register] = place

    def _define_cfa(self, code: int, program: Cursor) -> None:
        state = self.state
        if code in (0x0C, 0x0D, 0x12):  # def_cfa, def_cfa_register, def_cfa_sf
            state.cfa_register = _register(program.uleb())
        if code in (0x0C, 0x0E):  # def_cfa, def_cfa_offset
            state.cfa_offset = program.uleb()
        elif code in (0x12, 0x13):  # def_cfa_sf, def_cfa_offset_sf
            state.cfa_offset = program.sleb() * self._common.data_align
        state.cfa_expression = b""
        if code == 0x0F:  # def_cfa_expression
            state.cfa_expression = program.take(program.uleb())
            if not state.cfa_expression:
                raise DamagedError("an expression is empty")

    def _other(self, code: int, program: Cursor) -> None:
        if code == 0x00:  # nop
            return
        if code in _OFFSETS:
            self._set_offset(code, program)
        elif code == 0x06:  # restore_extended
            self._restore(program.uleb())
        elif code == 0x07:  # undefined
            self._set(program.uleb(), Rule.UNDEFINED)
        elif code == 0x08:  # same_value
            self.state.places.pop(program.uleb(), None)
        elif code == 0x09:  # register
            self._set(program.uleb(), Rule.REGISTER, _register(program.uleb()))
        elif code in (0x10, 0x16):  # expression, val_expression
            rule = Rule.AT_EXPRESSION if code == 0x10 else Rule.IS_EXPRESSION
            self._set(program.uleb(), rule, 0, program.take(program.uleb()))
        elif code == 0x2E:  # GNU_args_size
            program.uleb()
        else:
            self._whole_state(code)

    def _set_offset(self, code: int, program: Cursor) -> None:
        rule, sign, is_signed = _OFFSETS[code]
        register = program.uleb()
        offset = program.sleb() if is_signed else program.uleb()
        self._set(register, rule, sign * offset * self._common.data_align)

    def _whole_state(self, code: int) -> None:
        if code == 0x0A:  # remember_state
            if len(self._remembered) >= _MAX_REMEMBERED:
                raise DamagedError("it remembers too many states")
            self._remembered.append(self.state.copy())
        elif code == 0x0B:  # restore_state
            if not self._remembered:
                raise DamagedError("it restores a state that it has not remembered")
            self.state = self._remembered.pop()
        elif code == 0x2D:  # AARCH64_negate_ra_state
            self.state.is_return_signed = not self.state.is_return_signed
        else:
            raise DamagedError(f"it has the instruction {code:#x}")


_ADVANCE = {0x02: 1, 0x03: 2, 0x04: 4}  # advance_loc1, 2, 4: bytes of the operand
_OFFSETS = {  # of a place: its rule, the sign of the offset, whether the operand has a sign
    0x05: (Rule.AT_OFFSET, 1, False),  # offset_extended
    0x11: (Rule.AT_OFFSET, 1, True),  # offset_extended_sf
    0x14: (Rule.IS_OFFSET, 1, False),  # val_offset
    0x15: (Rule.IS_OFFSET, 1, True),  # val_offset_sf
    0x2F: (Rule.AT_OFFSET, -1, False),  # GNU_negative_offset_extended
}
_CFA = frozenset((0x0C, 0x0D, 0x0E, 0x0F, 0x12, 0x13))


def _register(number: int) -> int:
    if number >= _MAX_REGISTER:
        raise DamagedError(f"it names register {number}")
    return number
