"""Calls during which scheduler events were missed: their record says so, and holds no time that cannot be."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from ingero.attach import kernel_side
from ingero.attach.kernel_constants import scheduler_constants
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.capture.loop.session import session_facts
from ingero.demo.faults.processes import disturbers
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program
from ingero.events import STATE_COLUMNS, CallFlag
from ingero.store.writing.writer import Writer
from tests.integration.targets import rows

DROP_EVERY = 5
SECONDS = 3
SYNC_EVERY = 5
MISSED = ("switch_in_missed", "switch_out_missed", "switch_count_mismatch", "wakeup_missed")
OF_CALLS = "source IN (1, 4) AND run_ns IS NOT NULL"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer beside hogs, recorded by kernel programs to whom scheduler events come only four times of five."""
    folder = tmp_path_factory.mktemp("lossy")
    database, gate = folder / "recording.db", folder / "go"
    variables = environment(build(), ctl=folder / "knobs", sched="block")
    arguments = ["--gate", gate, "--seconds", SECONDS, "--sync-every", SYNC_EVERY]
    constants = scheduler_constants() | {"drop_every": struct.pack("<I", DROP_EVERY)}
    with (
        pytest.MonkeyPatch.context() as patch,
        Program.module("train", *arguments, environment={**os.environ, **variables}) as program,
        disturbers("hog", [["100"]] * 2, name="hog"),
    ):
        patch.setattr(kernel_side, "scheduler_constants", lambda: constants)
        pid = int(program.wait_for("loaded")[0])
        with (
            KernelSide(KernelSizes(), record_all=True) as kernel,
            Writer(database, session=session_facts([pid]), node="node") as sink,
            Recorder(kernel, sink, RecorderOptions(pids=[pid])) as recorder,
        ):
            recorder.start()
            gate.touch()
            recorder.run(should_stop=lambda: not len(recorder.traced_processes), on_second=lambda _: None)
            sink.flush()
    return database


def _calls_and_incomplete_ones(database: Path) -> tuple[int, int]:
    ((calls, incomplete),) = rows(
        database, f"SELECT count(*), sum((flags & {int(CallFlag.INCOMPLETE)}) != 0) FROM raw_events WHERE {OF_CALLS}"
    )
    return calls, incomplete


def test_no_clock_of_a_call_is_negative_and_they_add_up(database: Path) -> None:
    clocks = " + ".join(STATE_COLUMNS)
    ((least_ns, most_off_ns),) = rows(
        database,
        f"SELECT min(min({', '.join(STATE_COLUMNS)})), max(abs({clocks} + residual_ns - duration_ns)) FROM raw_events "
        f"WHERE {OF_CALLS}",
    )
    assert _calls_and_incomplete_ones(database)[1] > 0
    assert least_ns >= 0
    assert not most_off_ns


def test_a_missed_event_marks_no_call_but_the_one_that_was_open(database: Path) -> None:
    counters = ", ".join(f"'{name}'" for name in MISSED)
    ((missed,),) = rows(database, f"SELECT sum(count) FROM raw_drops WHERE counter IN ({counters})")
    calls, incomplete = _calls_and_incomplete_ones(database)
    print(f"\n{calls} calls, {incomplete} of them incomplete, {missed} events missed")
    assert 0 < incomplete <= missed
