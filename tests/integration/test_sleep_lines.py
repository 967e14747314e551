"""The line at which a thread went to sleep is kept with the interval: each that is kept must be the true one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.store.call_stacks import StackBook
from ingero.store.reader import open_reader
from tests.integration import sleeping
from tests.integration.targets import wait_for_end
from tests.integration.tracing import tracing

_SOURCE = Path(sleeping.__file__)
_SECONDS = 6
_FIRST_NS = 1_500_000_000  # until every thread that sleeps has the memory that looking at it takes
_SIGMAS = 5


class Sleep:
    """One noted sleep, and the interval off the CPU in its middle. seen: the line that was kept of it, 0: none."""

    def __init__(self, thread: int, line: int, seen: int) -> None:
        self.thread, self.line, self.seen = thread, line, seen


@pytest.fixture(scope="module")
def sleeps(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Sleep]]:
    """By function of the program, the sleeps of its thread."""
    folder = tmp_path_factory.mktemp("sleeps")
    noted = folder / "noted"
    command = [sys.executable, str(_SOURCE), str(noted), str(_SECONDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program, tracing(folder, pids=[program.pid]) as tracer:
        assert program.stdin
        program.stdin.write(b"\n")
        program.stdin.close()
        wait_for_end(tracer)
    found: dict[int, list[Sleep]] = defaultdict(list)
    truth = [json.loads(line) for line in noted.read_text().splitlines()]
    with open_reader(tracer.database) as reader:
        window = reader.time_range()
        assert window
        rows, book = reader.offcpu_rows(window), StackBook(reader)
        book.read(rows["stack_hash"].tolist())
        first = min(begin for _, _, begin, _ in truth) + _FIRST_NS
        of_thread = {thread: _by_middle(rows[rows["tid"] == thread]) for thread in {thread for thread, *_ in truth}}
        for thread, line, begin, end in truth:
            if begin >= first:
                middle, hashes = of_thread[thread]
                inside = slice(np.searchsorted(middle, begin, "right"), np.searchsorted(middle, end, "left"))
                found[thread] += [Sleep(thread, line, _outer_line(book, int(one))) for one in hashes[inside]]
    return found


def _by_middle(rows: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The middle of each interval, in order, and the stack that is kept of it."""
    middle = rows["start_ns"] + rows["duration_ns"] // 2
    order = np.argsort(middle)
    return middle[order], rows["stack_hash"][order]


def _outer_line(book: StackBook, stack_hash: int) -> int:
    """The line that called `noted`."""
    stack = book.of(stack_hash)
    if stack is None:
        return 0
    frames = stack.python
    at = next((index for index, place in enumerate(frames) if place.function.endswith("noted")), None)
    return -1 if at is None else frames[at + 1].line


def _of(sleeps: dict[int, list[Sleep]], function: str) -> list[Sleep]:
    lines = _SOURCE.read_text().splitlines()
    first = next(number for number, text in enumerate(lines, 1) if text.startswith(f"def {function}("))
    last = next(number for number, text in enumerate(lines, 1) if number > first and text.startswith("def "))
    return next(mine for mine in sleeps.values() if first < mine[0].line < last)


def test_no_sleep_has_the_line_of_another(sleeps: dict[int, list[Sleep]]) -> None:
    seen = [one for mine in sleeps.values() for one in mine if one.seen]
    wrong = Counter((one.line, one.seen) for one in seen if one.seen != one.line)
    print(f"\n{len(seen)} sleeps with a line, {wrong.total()} wrong")
    assert len(seen) > 400
    assert not wrong


@pytest.mark.parametrize("function", ["launching", "working"])
def test_every_sleep_of_a_main_thread_has_its_line(sleeps: dict[int, list[Sleep]], function: str) -> None:
    mine = _of(sleeps, function)
    lines = {one.line for one in mine}
    for line in lines:
        at = [one for one in mine if one.line == line]
        share = sum(one.seen != 0 for one in at) / len(at)
        print(f"\n{function}:{line}: {len(at)} sleeps, {share:.1%} with a line")
        assert share > 0.95


def test_of_too_many_sleeps_those_looked_at_are_chosen_by_chance(sleeps: dict[int, list[Sleep]]) -> None:
    mine = _of(sleeps, "flooding")
    counts, looked = Counter(one.line for one in mine), Counter(one.line for one in mine if one.seen)
    print(f"\n{dict(counts)} sleeps, {dict(looked)} looked at")
    assert looked.total() < 0.5 * counts.total()
    share = looked.total() / counts.total()
    for line, count in counts.items():
        assert abs(looked[line] - share * count) < _SIGMAS * math.sqrt(share * count)
