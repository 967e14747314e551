"""discover.instructions: where in a function's first bytes a probe goes."""

from __future__ import annotations

import pytest

from ingero.discover.instructions import FirstInstruction, ProbePoint, probe_offset

X86 = "EM_X86_64"
ENDBR64 = "f30f1efa"


def point(code: str, machine: str = X86) -> ProbePoint:
    return probe_offset(bytes.fromhex(code).ljust(16, b"\xcc"), machine)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("55", FirstInstruction.PUSH),
        ("4154", FirstInstruction.PUSH),
        ("90", FirstInstruction.NOP),
        ("6690", FirstInstruction.NOP),
        ("0f1f440000", FirstInstruction.NOP),
        ("e910000000", FirstInstruction.JUMP),
        ("eb10", FirstInstruction.JUMP),
        ("0f8410000000", FirstInstruction.JUMP),
        ("4883ec08", FirstInstruction.OTHER),
        ("415a", FirstInstruction.OTHER),
    ],
)
def test_the_first_instruction_decides_the_cost(code: str, kind: FirstInstruction) -> None:
    assert point(code) == ProbePoint(0, kind)


@pytest.mark.parametrize(
    ("behind", "kind"),
    [("55", FirstInstruction.PUSH), ("4157", FirstInstruction.PUSH), ("e910000000", FirstInstruction.JUMP)],
)
def test_endbr64_is_skipped_before_a_cheap_instruction(behind: str, kind: FirstInstruction) -> None:
    assert point(ENDBR64 + behind) == ProbePoint(4, kind)


def test_endbr64_is_kept_where_skipping_it_gains_nothing() -> None:
    assert point(ENDBR64 + "4883ec08") == ProbePoint(0, FirstInstruction.OTHER)


def test_on_arm64_the_probe_stays_at_the_symbol() -> None:
    assert point("3f2303d5fd7bbfa9", "EM_AARCH64") == ProbePoint(0, FirstInstruction.NOT_CLASSIFIED)


def test_a_function_at_the_end_of_a_file_is_no_error() -> None:
    assert probe_offset(b"", X86).instruction is FirstInstruction.OTHER
    assert probe_offset(bytes.fromhex(ENDBR64), X86) == ProbePoint(0, FirstInstruction.OTHER)
