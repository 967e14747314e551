"""Evaluates the DWARF expressions that call frame information uses (PLT stubs, signal frames, realigned stacks).

Source: DWARF 5, section 2.5. Branches and calls are not used by any compiler for call frames and are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from ingero.decode.native.cursor import Cursor, DamagedError

_MASK = (1 << 64) - 1
_MAX_DEPTH = 64


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shift_left(value: int, by: int) -> int:
    return value << by if by < 64 else 0


def _shift_right(value: int, by: int) -> int:
    return value >> by if by < 64 else 0


_BINARY: dict[int, Callable[[int, int], int]] = {
    0x1A: operator.and_,
    0x1C: operator.sub,
    0x1E: operator.mul,
    0x21: operator.or_,
    0x22: operator.add,
    0x24: _shift_left,
    0x25: _shift_right,
    0x26: lambda value, by: _signed(value) >> min(by, 63),
    0x27: operator.xor,
    0x29: operator.eq,
    0x2A: lambda one, other: _signed(one) >= _signed(other),
    0x2B: lambda one, other: _signed(one) > _signed(other),
    0x2C: lambda one, other: _signed(one) <= _signed(other),
    0x2D: lambda one, other: _signed(one) < _signed(other),
    0x2E: operator.ne,
}
_CONSTANTS = {0x08: (1, False), 0x09: (1, True), 0x0A: (2, False), 0x0B: (2, True), 0x0C: (4, False), 0x0D: (4, True)}
_CONSTANTS |= {0x0E: (8, False), 0x0F: (8, True)}


def evaluate(
    expression: bytes, registers: Sequence[int | None], read: Callable[[int], int], initial: int | None = None
) -> int:
    """The value of an expression, 64 bits unsigned.

    registers: by DWARF number, None where unknown. read: the word at an address. initial: what the stack begins with.

    Raises:
        DamagedError: the expression cannot be evaluated.
        Whatever `read` raises.
    """
    stack = [] if initial is None else [initial]
    cursor = Cursor(expression)
    try:
        while cursor.at < cursor.end:
            _step(cursor, stack, registers, read)
            if len(stack) > _MAX_DEPTH:
                raise DamagedError("an expression needs too deep a stack")
        return stack[-1]
    except IndexError:
        raise DamagedError("an expression takes more than there is") from None


def _step(cursor: Cursor, stack: list[int], registers: Sequence[int | None], read: Callable[[int], int]) -> None:
    code = cursor.byte()
    if 0x30 <= code <= 0x4F:  # lit0..lit31
        stack.append(code - 0x30)
    elif 0x70 <= code <= 0x8F:  # breg0..breg31
        stack.append(_known(registers, code - 0x70) + cursor.sleb() & _MASK)
    elif code == 0x92:  # bregx
        register = cursor.uleb()
        stack.append(_known(registers, register) + cursor.sleb() & _MASK)
    elif code in _BINARY:
        top = stack.pop()
        stack.append(int(_BINARY[code](stack.pop(), top)) & _MASK)
    elif code in _CONSTANTS:
        size, is_signed = _CONSTANTS[code]
        stack.append(int.from_bytes(cursor.take(size), "little", signed=is_signed) & _MASK)
    elif code == 0x10:  # constu
        stack.append(cursor.uleb())
    elif code == 0x11:  # consts
        stack.append(cursor.sleb() & _MASK)
    elif code == 0x06:  # deref
        stack.append(read(stack.pop()))
    elif code == 0x23:  # plus_uconst
        stack.append(stack.pop() + cursor.uleb() & _MASK)
    else:
        _rearrange(code, stack)


def _rearrange(code: int, stack: list[int]) -> None:
    if code == 0x12:  # dup
        stack.append(stack[-1])
    elif code == 0x13:  # drop
        stack.pop()
    elif code == 0x14:  # over
        stack.append(stack[-2])
    elif code == 0x16:  # swap
        stack[-1], stack[-2] = stack[-2], stack[-1]
    elif code == 0x1F:  # neg
        stack.append(-stack.pop() & _MASK)
    elif code == 0x20:  # not
        stack.append(~stack.pop() & _MASK)
    else:
        raise DamagedError(f"an expression has the operation {code:#x}")


def _known(registers: Sequence[int | None], number: int) -> int:
    value = registers[number] if number < len(registers) else None
    if value is None:
        raise DamagedError(f"an expression needs register {number}, which is not known")
    return value
