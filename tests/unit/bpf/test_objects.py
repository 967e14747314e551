"""What compiled BPF objects ask of a kernel by name."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

SAME_IN_EVERY_KERNEL = {"bpf_preempt_disable", "bpf_preempt_enable"}  # void (void) from 6.10 to 7.0
OBJECTS = sorted((Path(str(files("ingero"))) / "bpf" / "objects").glob("*/*.bpf.o"))


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_no_object_needs_a_function_of_the_kernel_whose_prototype_may_change(path: Path) -> None:
    """bpf_session_is_return took no argument in 6.13 and takes one in 7.0: there no program of the object loaded."""
    with path.open("rb") as file:
        elf: Any = ELFFile(file)
        symbols = elf.get_section_by_name(".symtab").iter_symbols()
        needed = {symbol.name for symbol in symbols if symbol.name and symbol["st_shndx"] == "SHN_UNDEF"}
    assert needed <= SAME_IN_EVERY_KERNEL
