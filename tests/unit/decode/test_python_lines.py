"""Lines of instructions, against what the interpreter itself says of its standard library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.decode.python_lines import line_of

_TABLES = Path(__file__).parents[1] / "line_tables.py"
_FILES = 12


def test_every_line_is_the_one_that_this_interpreter_says() -> None:
    version = (sys.version_info.major, sys.version_info.minor)
    command = [sys.executable, _TABLES, str(_FILES)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    checked = 0
    for text in printed.splitlines():
        first_line, table, lines, _ = json.loads(text)
        for offset, line in lines:
            assert line_of(version, bytes.fromhex(table), first_line, offset) == line
            checked += 1
    assert checked > 1_000


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 11), (3, 15)])
@given(table=st.binary(max_size=60), first_line=st.integers(0, 1 << 31), offset=st.integers(-2, 200))
@settings(max_examples=int(os.environ.get("INGERO_FUZZ", "100")), deadline=None, derandomize=True)
def test_a_damaged_table_gives_some_line_or_none(
    version: tuple[int, int], table: bytes, first_line: int, offset: int
) -> None:
    line = line_of(version, table, first_line, offset)
    assert line is None or isinstance(line, int)
