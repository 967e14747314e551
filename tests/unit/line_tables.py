"""Prints, in any Python from 3.8: per code object of the standard library its line table and what it says by itself.

usage: line_tables.py HOW_MANY_FILES; one JSON list a line: [first line, table in hex, [[offset, line or null], ...],
instructions]. The offsets are the last of each line and the first of the next: between them nothing changes.
"""

import dis
import json
import sys
import types
from pathlib import Path


def code_objects(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def lines(code):
    """(table, [(offset, line)]) for every instruction."""
    if sys.version_info >= (3, 10):  # noqa: UP036 (it runs in older ones)
        found = [(at, line) for start, end, line in code.co_lines() for at in range(start, end, 2)]
        return code.co_linetable, found
    starts = dict(dis.findlinestarts(code))
    line, found = code.co_firstlineno, []
    for at in range(0, len(code.co_code), 2):
        line = starts.get(at, line)
        found.append((at, line))
    return code.co_lnotab, found


def changes(found):
    """The instructions before and after each change of line."""
    pairs = zip(found, found[1:])  # noqa: B905, RUF007 (it runs in Pythons that do not know it)
    return sorted(
        {one for pair in pairs if pair[0][1] != pair[1][1] for one in pair} | {found[0], found[-1]},
        key=lambda one: one[0],
    )


def is_library(path):
    """Not what was installed beside it, and not what tests it."""
    return not {"site-packages", "dist-packages", "test", "tests"} & set(path.parts)


def main(count):
    files = [path for path in Path(dis.__file__).parent.rglob("*.py") if is_library(path)]
    step = max(1, len(files) // count)
    for path in sorted(files)[::step]:
        try:
            module = compile(path.read_bytes(), str(path), "exec")
        except (SyntaxError, ValueError):  # test data that is meant to be wrong
            continue
        for code in code_objects(module):
            table, found = lines(code)
            print(json.dumps([code.co_firstlineno, table.hex(), changes(found), len(found)]))


main(int(sys.argv[1]))
