"""A call that never returns is shown with the line that waits in it, read from outside while it hangs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingero.demo.gpusim.knobs import Knobs
from ingero.serve.text.breakdown import breakdown_text
from ingero.store.reader import open_reader
from tests.integration.interpreters import interpreters
from tests.integration.targets import Simulation, rows, simulation, until
from tests.integration.tracing import tracing

_PROGRAM = Path(__file__).parent / "stacks" / "hangs.py"
_THREADS = 2
_STACKS = (
    "SELECT f.tid, s.frames, s.note FROM raw_in_flight f JOIN raw_stacks s ON s.hash = f.stack_hash "
    "WHERE f.source = 1 GROUP BY f.tid"
)
_PARKED = (
    "SELECT DISTINCT s.process FROM raw_stack_samples s JOIN raw_stacks t ON t.hash = s.stack_hash "
    "WHERE t.frames LIKE '%hangs.py%\"park\"%'"
)
Hung = tuple[dict[int, tuple[str, list[Any]]], list[tuple[Any, ...]], list[str]]


@contextmanager
def _hanging(simulated: Simulation, program: Path) -> Iterator[subprocess.Popen[str]]:
    command = [program, _PROGRAM, simulated.libraries / "libcudart.so.12"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=simulated.environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _go(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Lets it hang; where each of its threads says it is."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return [json.loads(process.stdout.readline()) for _ in range(_THREADS)]


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Hung:
    """By thread: which interpreter's, and its frames as it says them; what was recorded of all of them, and is told."""
    folder = tmp_path_factory.mktemp("hung")
    simulated = simulation(folder)
    truth = {}
    with ExitStack() as stack, Knobs(simulated.knobs) as knobs:
        knobs.hang = 1
        processes = {name: stack.enter_context(_hanging(simulated, path)) for name, path in interpreters().items()}
        pids = [process.pid for process in processes.values()]
        with tracing(folder, pids=pids) as tracer:
            for name, process in processes.items():
                truth.update({one["tid"]: (name, one["frames"]) for one in _go(process)})
            until(lambda: len(rows(tracer.database, _STACKS)) == len(truth), "every stack is stored")
            until(lambda: len(rows(tracer.database, _PARKED)) == len(pids), "every sleeping thread was looked at")
    with open_reader(tracer.database) as reader:
        window = reader.window(None, 0)
        assert window
        lines = list(breakdown_text(reader, window, whole_stacks=True))
        return truth, list(reader.connection.execute(_STACKS)), lines


def test_the_line_of_a_hung_call_is_the_one_that_waits(
    hung: Hung,
) -> None:
    truth, recorded, _ = hung
    found = {tid: json.loads(frames) for tid, frames, _ in recorded}
    wrong = {tid: (name, found[tid]) for tid, (name, frames) in truth.items() if _python(found[tid]) != frames}
    print(f"{len(truth) - len(wrong)} of {len(truth)} hung threads, {len(truth) // _THREADS} interpreters")
    assert not wrong


def test_the_native_frames_of_a_hung_call_begin_where_it_is_parked(
    hung: Hung,
) -> None:
    for _, frames, note in hung[1]:
        native = [one for one in json.loads(frames) if "symbol" in one]
        assert native[0]["file"].startswith("libc")
        assert any(one["file"].startswith("libffi") or "_ctypes" in one["file"] for one in native), native
        assert "read while the call was in flight" in note


def test_the_other_threads_of_a_hung_process_are_told_of_when_asked_for(hung: Hung) -> None:
    others = "\n".join(hung[2]).split("Meanwhile: ")[1:]
    assert len([text for text in others if "hangs.py" in text and " in park()" in text]) == len(interpreters())


def _python(frames: list[dict[str, Any]]) -> list[list[Any]]:
    return [[one["py_file"], one["py_line"], one["py_func"]] for one in frames if "py_file" in one]
