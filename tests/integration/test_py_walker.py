"""`--py-walker`: who reads Python frames, what lines there are then, and that it is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.libbpf import BpfError, BpfObject
from ingero.demo.gpusim.knobs import Knobs
from ingero.discover.python_walkers import PyWalker
from tests.integration.targets import rows, simulation, until
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

_SCHEMA = json.loads((Path(__file__).parents[2] / "src/ingero/cli/trace_events.schema.json").read_text())
_FRAMES = (
    "SELECT o.name, e.duration_ns, s.frames, s.note FROM raw_events e JOIN raw_stacks s ON s.hash = e.stack_hash "
    "JOIN ops o ON o.source_id = e.source AND o.op_id = e.op WHERE o.name IN ('cudaStreamSynchronize', 'cudaMemset')"
)
_PROGRAM = """
import ctypes, sys
cudart, stream = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(0)
def wait():
    cudart.cudaMemsetAsync(ctypes.c_void_p(0), 0, ctypes.c_size_t(4096), stream)
    return cudart.cudaStreamSynchronize(stream)
def short():
    return cudart.cudaMemset(ctypes.c_void_p(0), 0, ctypes.c_size_t(8))
sys.stdin.readline()
short()
print("waits", flush=True)
wait()
print("done", flush=True)
sys.stdin.readline()
"""
_OPEN = "SELECT count(*) FROM raw_in_flight f JOIN raw_stacks s ON s.hash = f.stack_hash"


def _python(frames: str) -> list[tuple[str, int]]:
    return [(one["py_func"], one["py_line"]) for one in json.loads(frames) if "py_func" in one]


@pytest.fixture(scope="module", params=["userspace", "ebpf"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any], Any]:
    """The walker; name, duration, frames and note of a short call and one open for seconds; the messages."""
    simulated = simulation(tmp_path_factory.mktemp("walker"))
    program = simulated.folder / "program.py"
    program.write_text(_PROGRAM)
    command = [sys.executable, program, simulated.libraries / "libcudart.so.12"]
    options = ["--record-all", "--py-walker", request.param]
    with (
        Knobs(simulated.knobs) as knobs,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=simulated.environment
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        with tracing(simulated.folder, pids=[process.pid], options=options) as tracer:
            knobs.hang = 1
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "waits\n"
            until(lambda: rows(tracer.database, _OPEN)[0][0] > 0, "the open call's stack is stored")
            knobs.hang = 0
            assert process.stdout.readline() == "done\n"
        process.kill()
    return request.param, rows(tracer.database, _FRAMES), (tracer.messages, tracer.database)


def test_a_call_open_for_seconds_has_its_line_whoever_reads_it(recorded: tuple[str, list[Any], Any]) -> None:
    (found,) = [_python(frames) for name, _, frames, _ in recorded[1] if name == "cudaStreamSynchronize"]
    assert found == [("wait", 6), ("<module>", 12)]


def test_a_short_call_has_a_line_only_where_the_kernel_walks(recorded: tuple[str, list[Any], Any]) -> None:
    (found,) = [_python(frames) for name, _, frames, _ in recorded[1] if name == "cudaMemset"]
    assert found == ([("short", 8), ("<module>", 10)] if recorded[0] == "ebpf" else [])


def test_a_stack_read_from_outside_says_so(recorded: tuple[str, list[Any], Any]) -> None:
    (note,) = [note for name, _, _, note in recorded[1] if name == "cudaStreamSynchronize"]
    assert ("read while the call was in flight" in note) == (recorded[0] == "userspace")


def test_the_recording_says_who_reads_python_frames(recorded: tuple[str, list[Any], Any]) -> None:
    messages, database = recorded[2]
    started = next(one for one in messages if one["type"] == "started")
    jsonschema.validate(started, _SCHEMA)
    is_kernel = recorded[0] == "ebpf"
    assert started["py_walker"] == {"is_kernel": is_kernel, "reason": "" if is_kernel else "--py-walker=userspace"}
    (text,) = rows(database, "SELECT not_traced FROM sessions")[0]
    assert ("python_lines" in json.loads(text)) != is_kernel


class _WithoutWalk(BpfObject):
    """What a kernel would do whose verifier gives the walk up; all else is this kernel's own."""

    def __init__(self, path: Path, **options: Any) -> None:
        if path.name.startswith("api_calls") and options["constants"]["walks_python"] == b"\1\0\0\0":
            raise BpfError("BPF program is too large", hint="")
        super().__init__(path, **options)


@pytest.mark.usefixtures("refusing")
def test_where_the_kernel_refuses_the_walk_auto_reads_from_outside_and_says_why() -> None:
    with KernelSide(KernelSizes(), with_stacks=True) as kernel:
        assert not kernel.walker.is_kernel
        assert "BPF program is too large" in kernel.walker.reason
        assert [one.name for one in kernel.unavailable] == ["Python frames walked in the kernel"]


@pytest.mark.usefixtures("refusing")
def test_where_the_kernel_refuses_the_walk_ebpf_is_refused() -> None:
    with pytest.raises(BpfError, match="too large"):
        KernelSide(KernelSizes(), with_stacks=True, py_walker=PyWalker.EBPF)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero.attach.kernel_side.BpfObject", _WithoutWalk)
