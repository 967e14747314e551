"""Steps of a program that never waits for the stream that paces it: found by what its calls repeat, to the call."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.demo.workloads import steps as marks
from ingero.diagnose.diagnosis import diagnose
from ingero.events import STATE_COLUMNS
from ingero.store.reader import open_reader
from tests.integration.targets import rows, simulation, wait_for_end, waiting
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

SECONDS = 8
STOPPED_S = 0.6  # longer than the work of a full queue, and than the shortest single stall that is told
CLOCK_ERROR_NS = 1_000  # between the wall clock's rate before and after a pair of readings
PARTS = [f"{part}_{clock}" for part in ("host", "blocked") for clock in STATE_COLUMNS]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[dict[str, Any]]]:
    """A trainer that looks at its loss every hundredth step, stopped once: the recording, the trainer's own log, and
    what the tracer said.
    """
    folder = tmp_path_factory.mktemp("steps")
    log = folder / "steps"
    train = [sys.executable, "-m", "ingero.demo.workloads.train", "--pattern", "no-sync", "--seconds", str(SECONDS)]
    with (
        waiting(simulation(folder), [*train, "--out", log]) as process,
        tracing(folder, pids=[process.pid], options=("--max-overhead=0",)) as tracer,
    ):
        program = process.go()
        program.wait_for("ready")
        time.sleep(SECONDS * 0.7)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(process.pid, signal.SIGCONT)
        program.finish()
        wait_for_end(tracer)
    return tracer.database, log, tracer.messages


def test_each_step_is_one_of_the_programs_own(recording: tuple[Path, Path, list[dict[str, Any]]]) -> None:
    database, log, _ = recording
    ((to_mono_ns,),) = rows(database, "SELECT mono_ns - unix_ns FROM raw_clock_pairs LIMIT 1")
    found = np.array(rows(database, "SELECT start_ns, end_ns FROM steps ORDER BY start_ns")) + to_mono_ns
    ends = np.array([one.t_ns for one in marks.read(log)])
    inside = np.searchsorted(ends, found[:, 1]) - np.searchsorted(ends, found[:, 0])
    assert len(found) > 50
    assert (inside == 1).all()
    assert (np.abs(found[1:, 0] - found[:-1, 1]) < CLOCK_ERROR_NS).all()  # without a gap


def test_the_tracer_counts_the_steps_and_the_syncs_that_are_none(
    recording: tuple[Path, Path, list[dict[str, Any]]],
) -> None:
    seconds = [one for one in recording[2] if one["type"] == "second"]
    for name, view in (("steps", "steps"), ("sync_intervals", "sync_intervals")):
        assert [(sum(one[name] for one in seconds),)] == rows(recording[0], f"SELECT count(*) FROM {view}")


def test_its_clocks_add_up_to_the_nanosecond(recording: tuple[Path, Path, list[dict[str, Any]]]) -> None:
    sums = f"step_ns - ({' + '.join(PARTS)}), blocked_ns - (blocked_run_ns + blocked_sleep_ns + blocked_yielded_ns)"
    assert set(rows(recording[0], f"SELECT {sums} FROM steps WHERE flags & 16 = 0")) == {(0, 0)}


def test_equal_steps_have_one_type_and_a_look_at_the_drop_another(
    recording: tuple[Path, Path, list[dict[str, Any]]],
) -> None:
    types = rows(recording[0], "SELECT step_type, count(*), min(syncs), max(syncs) FROM steps GROUP BY 1 ORDER BY 2")
    assert types[-1][2:] == (0, 0)
    assert types[-1][1] > 50
    assert {one[2:] for one in types[:-1]} <= {(1, 1)}


def test_the_marker_is_a_rare_call_and_the_wait_that_for_a_full_queue(
    recording: tuple[Path, Path, list[dict[str, Any]]],
) -> None:
    ((marker, how, blocked, launch),) = rows(
        recording[0],
        "SELECT marker_op, how, sum(blocked_ns), sum(blocked_launch_ns) FROM steps WHERE syncs = 0 "
        "GROUP BY 1, 2 ORDER BY count(*) DESC LIMIT 1",
    )
    assert (marker, how) == ("cudaMemcpyAsync", "repetition")
    assert launch > 0.9 * blocked > 0


def test_a_thread_that_sleeps_while_autograds_is_blocked_for_the_gpu_shares_that(
    recording: tuple[Path, Path, list[dict[str, Any]]],
) -> None:
    """The main thread marks the steps; autograd's launches the backward pass, and waits for room in the queue."""
    ((shared, launch, whole),) = rows(
        recording[0],
        "SELECT sum(blocked_sleep_ns), sum(blocked_launch_ns), sum(blocked_ns) FROM steps WHERE syncs = 0",
    )
    assert 0 < shared <= whole
    assert launch > 0.9 * whole


def test_a_stop_is_in_the_hosts_part_of_its_step_and_is_told(
    recording: tuple[Path, Path, list[dict[str, Any]]],
) -> None:
    ((stopped,),) = rows(recording[0], "SELECT max(host_stopped_ns) FROM steps")
    assert stopped > 0.9 * STOPPED_S * 1e9
    with open_reader(recording[0]) as reader:
        window = reader.window(None, time.time_ns())
        assert window is not None
        diagnosis = diagnose(reader, window)
    assert "stopped" in [one.cause for one in diagnosis.incidents]
    assert "the GPU" in next(iter(diagnosis.verdicts)).text
