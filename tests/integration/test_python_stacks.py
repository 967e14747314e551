"""Python frames of recorded calls, against what each interpreter says of itself (sys._getframe)."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingero.demo.gpusim.build import build, environment
from ingero.store.reader import open_reader
from tests.integration.interpreters import interpreters
from tests.integration.tracing import tracing

_WORKLOAD = Path(__file__).parent / "stacks" / "workload.py"
_REUSED = 300  # code objects freed at once, so that their addresses are used again


@contextmanager
def _workload(program: Path, truth: Path) -> Iterator[subprocess.Popen[str]]:
    libraries = build()
    command = [program, _WORKLOAD, libraries / "libcudart.so.12", truth, str(_REUSED)]
    variables = {**os.environ, **environment(libraries)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            yield process
        finally:
            process.kill()


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def _truth(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in (path, Path(f"{path}.child")) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", interpreters())
def test_the_line_of_every_call_is_the_one_that_was_executing(name: str, tmp_path: Path) -> None:
    with _workload(interpreters()[name], tmp_path / "truth") as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        with tracing(tmp_path, pids=[process.pid], options=["--record-all"]) as tracer:
            _go_on(process)
            assert process.stdout.readline() == "done\n"
    truth = _truth(tmp_path / "truth")
    with open_reader(tracer.database) as reader:
        found = {
            size: json.loads(frames) if frames else []
            for size, frames in reader.connection.execute(
                "SELECT e.arg0, s.frames FROM events e LEFT JOIN stack_traces s ON s.hash = e.stack_hash"
                " WHERE e.op_name = 'cudaMemset'"
            )
        }
    wrong = [one for one in truth if _python(found.get(one["number"], [])) != _expected(one)]
    print(f"{name}: {len(truth) - len(wrong)} of {len(truth)} stacks are exactly right")
    print(Counter(one["case"] for one in wrong), tracer.messages[-1]["losses"])
    assert not wrong, [(one, found.get(one["number"])) for one in wrong[-2:]]


def _python(frames: list[dict[str, Any]]) -> list[list[Any]]:
    return [[one["py_file"], one["py_line"], one["py_func"]] for one in frames if "py_file" in one]


def _expected(one: dict[str, Any]) -> list[list[Any]]:
    """As much of the truth as is recorded: 128 frames, 256 bytes of a name."""
    return [[file, line, name if len(name) <= 256 else name[:256] + "..."] for file, line, name in one["frames"][:128]]
