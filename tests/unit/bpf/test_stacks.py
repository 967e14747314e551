"""The stack that nested functions of the BPF programs take, within what kernels before 6.13 allow."""

from __future__ import annotations

import platform
import struct
from importlib.resources import files
from pathlib import Path

import pytest

from ingero.attach.objects import object_path
from ingero.attach.probes import PROGRAMS, ProbeMode
from tests.unit.bpf_stacks import (
    MAX_FRAMES,
    MAX_STACK_BYTES,
    Chain,
    chain_bytes,
    chains_from,
    programs_of,
    stack_bytes,
)

SOURCES = Path(str(files("ingero"))) / "bpf"


def is_up_to_date(path: Path) -> bool:
    """Objects of another machine are only built when they are asked for."""
    sources = [SOURCES / path.with_suffix(".c").name, *SOURCES.glob("*.h")]
    return path.stat().st_mtime >= max(one.stat().st_mtime for one in sources)


OBJECTS = sorted(filter(is_up_to_date, SOURCES.glob("objects/*/*.bpf.o")))
# uprobe.session came with 6.13; where that kernel still counts the whole chain, return probes of two programs are used
SINCE_6_13 = set(PROGRAMS[ProbeMode.SESSION])
STORE, COPY, ADD, LOAD, CALL = 0x7B, 0xBF, 0x07, 0x79, 0x85
R10 = 10


def told(path: Path, chain: Chain) -> str:
    """Such as `x86_64/samples.bpf.o: 352 bytes = sample_running 32 + ...`."""
    functions = " + ".join(f"{function.name} {function.stack_bytes}" for function in chain)
    return f"{path.parent.name}/{path.name}: {chain_bytes(chain)} bytes = {functions}"


def chains_before_6_13(path: Path) -> list[Chain]:
    return [chain for one in programs_of(path) if one.name not in SINCE_6_13 for chain in chains_from(one)]


def code(*instructions: tuple[int, int, int, int, int]) -> bytes:
    """Of (operation, written register, read register, offset, constant)."""
    return b"".join(
        struct.pack("<BBhi", operation, to | read << 4, offset, constant)
        for operation, to, read, offset, constant in instructions
    )


def test_every_object_of_this_machine_is_looked_at() -> None:
    built = {path.name for path in OBJECTS if path.parent.name == platform.machine()}
    assert built == {path.with_suffix(".o").name for path in SOURCES.glob("*.bpf.c")}


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_no_chain_of_calls_takes_more_stack_than_kernels_before_6_13_allow(path: Path) -> None:
    deepest = max(chains_before_6_13(path), key=chain_bytes, default=())
    assert chain_bytes(deepest) <= MAX_STACK_BYTES, told(path, deepest)


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_no_chain_of_calls_has_more_functions_than_kernels_allow(path: Path) -> None:
    longest = max((chain for one in programs_of(path) for chain in chains_from(one)), key=len, default=())
    assert len(longest) <= MAX_FRAMES, told(path, longest)


def test_what_is_given_to_bpf_loop_is_part_of_the_chain() -> None:
    chains = chains_before_6_13(object_path("samples"))
    names = [[function.name for function in chain] for chain in chains]
    assert ["sample_running", "sample_thread", "walk_frame", "send_code"] in names


@pytest.mark.parametrize(
    ("instructions", "taken"),
    [
        pytest.param([], 32, id="nothing"),
        pytest.param([(STORE, R10, 1, -32, 0)], 32, id="a full granule"),
        pytest.param([(STORE, R10, 1, -40, 0)], 64, id="a granule and a word"),
        pytest.param([(LOAD, 1, R10, -232, 0)], 256, id="a load"),
        pytest.param([(STORE, 1, R10, -232, 0)], 32, id="memory elsewhere, where a pointer to the stack is put"),
        pytest.param([(COPY, 2, R10, 0, 0), (ADD, 2, 0, 0, -104)], 128, id="an address given away"),
        pytest.param([(COPY, 6, R10, 0, 0), (ADD, 6, 0, 0, -96), (STORE, 6, 1, -8, 0)], 128, id="by another register"),
        pytest.param([(COPY, 2, R10, 0, 0), (COPY, 2, 1, 0, 0), (ADD, 2, 0, 0, -104)], 32, id="no address any more"),
        pytest.param([(COPY, 2, R10, 0, 0), (CALL, 0, 0, 0, 1), (ADD, 2, 0, 0, -104)], 32, id="lost in a call"),
    ],
)
def test_a_function_takes_as_much_as_its_lowest_access_lies_below_r10(
    instructions: list[tuple[int, int, int, int, int]], taken: int
) -> None:
    assert stack_bytes(code(*instructions)) == taken
