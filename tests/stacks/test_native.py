"""Native stacks of real code: numpy's and libffi's, which have no frame pointers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ingero.demo.gpusim.build import build, environment
from ingero.store.reader import open_reader
from tests.integration.tracing import tracing
from tests.stacks.notes import missing
from tests.stacks.report import Report

_PROGRAM = Path(__file__).with_name("numpy_calls.py")
_CALLS = 400
_MIN_COMPLETE = 0.99


def _recorded(folder: Path, *arguments: str) -> list[tuple[list[dict[str, object]], str]]:
    """(frames, note) of each call."""
    libraries = build()
    command = [sys.executable, _PROGRAM, libraries / "libcudart.so.12", str(_CALLS), *arguments]
    variables = {**os.environ, **environment(libraries)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        with tracing(folder, pids=[process.pid], options=["--record-all"]) as tracer:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
        process.kill()
    with open_reader(tracer.database) as reader:
        rows = reader.connection.execute(
            "SELECT s.frames, s.note FROM events e JOIN stack_traces s ON s.hash = e.stack_hash"
            " WHERE e.op_name = 'cudaMemset'"
        ).fetchall()
    return [(json.loads(frames), missing(note)) for frames, note in rows]


def _is_first(frame: dict[str, object]) -> bool:
    """Of the main thread; of another one it is the C library's clone3(), which has no name in a stripped file."""
    return frame["symbol"] == "_start" or frame["file"] == "libc.so.6"


def test_native_stacks_reach_the_first_function_of_their_thread(tmp_path: Path, report: Report) -> None:
    rows = _recorded(tmp_path, "native")
    complete = [frames for frames, note in rows if not note and frames and _is_first(frames[-1])]
    endings = Counter(note or "complete" for _, note in rows)
    depth = sorted(len(frames) for frames, _ in rows)
    said = f"{len(complete)} of {len(rows)} ({len(complete) / len(rows):.1%}), depth {depth[0]} to {depth[-1]}"
    report.add("native", "numpy, libffi and qsort calling back into Python", said, str(dict(endings)))
    assert len(rows) > _CALLS
    assert len(complete) >= _MIN_COMPLETE * len(rows), (endings, Counter(str(f[-1]["symbol"]) for f, _ in rows if f))
    marked = [note for frames, note in rows if frames not in complete]
    assert all(marked), "a stack that is not complete says why"


@pytest.mark.parametrize("part", ["call", "_nested"])
def test_the_python_frames_above_numpy_are_there(tmp_path: Path, part: str) -> None:
    rows = _recorded(tmp_path)
    assert rows
    assert not [note for _, note in rows if note]
    functions = [{frame.get("py_func") for frame in frames} for frames, _ in rows]
    assert all(part in names for names in functions)
