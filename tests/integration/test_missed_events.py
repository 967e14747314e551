"""Calls during which scheduler events were missed: their record says so, and holds no time that cannot be."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from ingero.attach import kernel_side
from ingero.attach.kernel_constants import scheduler_constants
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.recorder import Recorder, RecorderOptions
from ingero.capture.session import session_facts
from ingero.demo.faults.processes import disturbers
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program
from ingero.events import CLOCK_COLUMNS, CallFlag
from ingero.store.writer import Writer
from tests.integration.targets import rows

DROP_EVERY = 5
SECONDS = 3


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose scheduler events come only four times of five."""
    constants = scheduler_constants() | {"drop_every": struct.pack("<I", DROP_EVERY)}
    monkeypatch.setattr(kernel_side, "scheduler_constants", lambda: constants)


@pytest.mark.usefixtures("lossy")
def test_no_clock_of_a_call_is_negative_and_they_add_up(tmp_path: Path) -> None:
    database, gate = tmp_path / "recording.db", tmp_path / "go"
    variables = environment(build(), ctl=tmp_path / "knobs", sched="block")
    arguments = ["--gate", gate, "--seconds", SECONDS, "--sync-every", 1]
    with (
        Program.module("train", *arguments, environment={**os.environ, **variables}) as program,
        disturbers("hog", [["100"]] * 2, name="hog"),
    ):
        pid = int(program.wait_for("loaded")[0])
        with (
            KernelSide(KernelSizes(), record_all=True) as kernel,
            Writer(database, session=session_facts([pid]), node="node") as sink,
            Recorder(kernel, sink, RecorderOptions(pids=[pid])) as recorder,
        ):
            recorder.start()
            gate.touch()
            recorder.run(should_stop=lambda: not len(recorder.targets), on_second=lambda _: None)
            sink.flush()
    clocks = " + ".join(CLOCK_COLUMNS)
    ((calls, flawed, least_ns, most_off_ns),) = rows(
        database,
        f"SELECT count(*), sum((flags & {int(CallFlag.INCOMPLETE)}) != 0), min(min({', '.join(CLOCK_COLUMNS)})), "
        f"max(abs({clocks} + residual_ns - duration_ns)) FROM raw_events WHERE source IN (1, 4) AND run_ns IS NOT NULL",
    )
    print(f"\n{calls} calls, {flawed} of them incomplete, least clock {least_ns} ns")
    assert flawed > 0
    assert least_ns >= 0
    assert not most_off_ns
