"""Traces of JAX's profiler: GPU work by the streams it is on, steps by their number, calls of the driver."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingero.diagnose.diagnosis import diagnose
from ingero.events import HostMemory
from ingero.ops import BY_ID
from ingero.profiles.model import ActivityKind, Direction, Notes, RangeKind
from ingero.profiles.recording import write_recording
from ingero.store.reader import open_reader
from tests.unit.profiles import files

STEPS, STEP_US, KERNELS = 6, 1000.0, 20
GPU, HOST = 1, 701


def named(pid: int, name: str, tid: int | None = None) -> dict[str, Any]:
    """A process's or thread's name."""
    kind = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "pid": pid, "name": kind, "args": {"name": name}} | ({} if tid is None else {"tid": tid})


def event(pid: int, tid: int, name: str, ts: float, dur: float, **args: str) -> dict[str, Any]:
    """One event: they have no category."""
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": args}


def xprof_trace(more: Sequence[dict[str, Any]]) -> bytes:
    """A trace with these events behind its own."""
    whole = json.loads(trace())
    return json.dumps(whole | {"traceEvents": [*whole["traceEvents"], *more]}).encode()


def trace(*, with_calls: bool = True) -> bytes:
    """Twenty kernels and a copy a step, launched 30 us apart, with the sums that XProf derives of them."""
    events = [named(GPU, "/device:GPU:0"), named(HOST, "/host:CPU"), named(HOST, "python3", 9)]
    events += [named(GPU, "Stream #13(Compute)", 1), named(GPU, "Stream #14(MemcpyH2D)", 2), named(GPU, "XLA Ops", 3)]
    for step in range(STEPS):
        begin, number = step * STEP_US, step * 100
        events.append(event(HOST, 9, "train", begin, STEP_US - 10, step_num=str(step)))
        events.append(event(HOST, 9, "$train.py:88 step", begin + 5, STEP_US - 20))
        details = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
        events.append(
            event(GPU, 2, "MemcpyH2D", begin + 20, 30, correlation_id=str(number + 1), memcpy_details=details)
        )
        for launch in range(KERNELS):
            at, correlation = begin + 60 + 30 * launch, str(number + 2 + launch)
            if with_calls:
                events.append(event(HOST, 9, "cuLaunchKernel", at, 5, correlation_id=correlation))
            name = f"loop_fusion_{launch}"
            events.append(event(GPU, 1, name, at + 8, 20, correlation_id=correlation, hlo_op=name, hlo_module="jit_f"))
            events.append(event(GPU, 3, name, at + 8, 20))
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()


def test_what_a_stream_did_is_gpu_work_and_what_is_derived_of_it_is_not() -> None:
    (profile,) = files.read(trace())
    work = profile.activities
    assert (profile.origin.tool, profile.pid) == ("XProf", HOST)
    assert [int((work["kind"] == kind).sum()) for kind in (ActivityKind.KERNEL, ActivityKind.MEMCPY)] == [120, STEPS]
    copies = work[work["kind"] == ActivityKind.MEMCPY]
    assert set(copies[["stream", "bytes", "direction", "host_memory"]].tolist()) == {
        (14, 4096, Direction.HOST_TO_GPU, HostMemory.PAGEABLE)
    }


def test_calls_of_the_driver_have_what_they_launched_and_their_line() -> None:
    (profile,) = files.read(trace())
    assert {BY_ID[op].name for op in profile.calls["op"].tolist()} == {"cuLaunchKernel"}
    assert set(profile.calls["stream"].tolist()) == {13}
    assert {(frame.file, frame.line, frame.function) for stack in profile.stacks for frame in stack} == {
        ("train.py", 88, "step")
    }


@pytest.mark.parametrize("with_calls", [True, False])
def test_steps_that_are_numbered_agree_with_what_repeats(tmp_path: Path, with_calls: bool) -> None:
    read = files.read(trace(with_calls=with_calls))
    assert int((read[0].ranges["kind"] == RangeKind.STEP).sum()) == STEPS
    write_recording(tmp_path / "run.db", read, Notes(), files=["a.trace.json.gz"])
    with open_reader(tmp_path / "run.db") as reader:
        window = reader.time_range()
        assert window is not None
        found = diagnose(reader, window).profiles
    assert found is not None
    (report,) = found.reports
    assert [step.how for step in report.steps] == ["both"] * STEPS
    assert report.busy_ratio == pytest.approx(430 / 1000, abs=0.05)
