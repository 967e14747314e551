"""Memory and files that are not what they should be: no frame is wrong, what is missing is explained."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingero.demo.gpusim.build import build, environment
from ingero.elf import EH_FRAME_HDR, ElfImage, FileSource
from ingero.store.reader import open_reader
from tests.integration.tracing import Tracer, tracing
from tests.stacks.notes import missing
from tests.stacks.report import Report

_PROGRAM = Path(__file__).with_name("broken.py")
_RELAY = "int relay(int (*f)(void *, int, long), void *p, int v, long n) { volatile int r = f(p, v, n); return r; }\n"
_HUGE_BYTES = 3 << 30
Stack = tuple[list[dict[str, Any]], str]

needs_311 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="it breaks the memory of a Python 3.11")


@contextmanager
def _running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    libraries = build()
    command = [sys.executable, _PROGRAM, libraries / "libcudart.so.12", *arguments]
    variables = {**os.environ, **environment(libraries)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def _stacks(tracer: Tracer) -> list[Stack]:
    with open_reader(tracer.database) as reader:
        rows = reader.connection.execute(
            "SELECT s.frames, s.note FROM events e LEFT JOIN stack_traces s ON s.hash = e.stack_hash"
            " WHERE e.op_name = 'cudaMemset'"
        ).fetchall()
    return [(json.loads(frames) if frames else [], missing(note or "")) for frames, note in rows]


def _recorded(folder: Path, *arguments: object, damage: Callable[[], None] = lambda: None) -> list[Stack]:
    with _running(*arguments) as process:
        damage()
        with tracing(folder, pids=[process.pid], options=["--record-all"]) as tracer:
            _go_on(process)
            assert process.stdout
            assert process.stdout.readline() == "done\n"
    return _stacks(tracer)


def _functions(stack: Stack) -> list[str]:
    return [frame["py_func"] for frame in stack[0] if "py_func" in frame]


@needs_311
def test_frames_that_vanish_in_mid_walk_end_it_and_none_is_wrong(tmp_path: Path, report: Report) -> None:
    stacks = _recorded(tmp_path, "frames-vanish")
    seen = Counter((tuple(_functions(stack)), stack[1]) for stack in stacks)
    cut = sum(count for (functions, _), count in seen.items() if functions == ("frames_vanish",))
    report.add("bad input", "a frame's memory vanishes in mid-walk", f"{cut} of {len(stacks)} end early, 0 wrong")
    for functions, note in seen:
        assert functions in (("frames_vanish",), ("frames_vanish", "<module>")), seen
        assert (len(functions) == 2) == (not note), seen
    assert len(stacks) > 900
    assert cut, "nothing vanished: the test proves nothing"


@needs_311
def test_what_is_no_code_object_is_never_a_frame(tmp_path: Path, report: Report) -> None:
    stacks = _recorded(tmp_path, "code-is-none")
    assert {tuple(_functions(stack)) for stack in stacks} == {("code_is_none",)}
    assert all("where a code object was expected" in note for _, note in stacks)
    report.add("bad input", "a frame whose code object is none", f"{len(stacks)} of {len(stacks)} end before it")


def test_a_process_that_is_killed_in_a_call_leaves_an_agent_that_goes_on(tmp_path: Path, report: Report) -> None:
    options = ["--record-all"]
    with _running("calls") as process, tracing(tmp_path, pids=[process.pid], options=options) as tracer:
        _go_on(process)
        time.sleep(0.3)
        process.kill()
        process.wait()
        tracer.wait_for("second")
    stacks = _stacks(tracer)
    wrong = [one for one in stacks if _functions(one) not in ([], ["call", "_calls", "<module>"])]
    assert stacks
    assert not wrong, wrong[:2]
    report.add("bad input", "killed between two calls", f"{len(stacks)} recorded, 0 wrong, the agent goes on")


def _library(folder: Path) -> Path:
    source, library = folder / "relay.c", folder / "relay.so"
    source.write_text(_RELAY)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def _no_magic(library: Path) -> None:
    with library.open("r+b") as file:
        file.write(b"\0\0\0\0")


def _lying_frames(library: Path) -> None:
    """.eh_frame follows its header; neither is read by the program itself."""
    header = ElfImage(FileSource(library)).segment(EH_FRAME_HDR)
    assert header
    numbers = random.Random(5)
    with library.open("r+b") as file:
        file.seek(header.offset + header.file_bytes + 24)
        file.write(bytes(numbers.randrange(256) for _ in range(120)))


def _huge(library: Path) -> None:
    os.truncate(library, _HUGE_BYTES)


@pytest.mark.parametrize(
    ("damage", "is_whole"),
    [(_no_magic, False), (_lying_frames, False), (_huge, True)],
    ids=["no ELF any more", "lying .eh_frame", "3 GB"],
)
def test_a_damaged_library_ends_the_native_part_and_says_so(
    tmp_path: Path, report: Report, damage: Callable[[Path], None], is_whole: bool, request: pytest.FixtureRequest
) -> None:
    library = _library(tmp_path)
    (tmp_path / "whole").mkdir()
    whole = _recorded(tmp_path / "whole", "relay", library)
    found = _recorded(tmp_path, "relay", library, damage=lambda: damage(library))
    names = {tuple(_native(stack)) for stack in whole}
    assert len(names) == 1
    expected = next(iter(names))
    assert len(found) == 100
    for stack in found:
        native = tuple(_native(stack))
        assert _functions(stack) == ["by_relay", "<module>"]
        assert native[1:] == expected[1 : len(native)]
        assert native[:1] in ((), expected[:1]) or native[0].startswith("relay.so+0x")
        assert bool(stack[1]) != is_whole, stack[1]
    report.add("bad input", f"a library: {request.node.callspec.id}", f"0 of 100 wrong; {found[0][1] or 'complete'}")


def _native(stack: Stack) -> list[str]:
    return [frame["symbol"] for frame in stack[0] if "symbol" in frame]
