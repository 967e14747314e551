"""Steps whose launches are not traced, after a GPU that set the pace: only stack samples tell whose the time is."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingero import given_up
from ingero.demo.scene import ScriptedRun
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.findings import Diagnosis
from ingero.events import SyncIntervalFlag
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed_file

STALL = (("/srv/job/callbacks.py", 12, "stall"), ("/srv/job/train.py", 90, "main"))
TOKENIZE = (("/srv/job/tokens.py", 46, "tokenize"), ("/srv/job/train.py", 90, "main"))
LAUNCH = (("/usr/lib/python3/dist-packages/torch/nn/functional.py", 7, "linear"), ("/srv/job/train.py", 80, "main"))
SPINS = ("sched_yield", "libcuda.so.1:cuLaunchKernel")
UNTRACED = SyncIntervalFlag.UNTIMED | SyncIntervalFlag.LAUNCHES_UNSEEN
QUEUE_FULL, PAUSE = 6.0, 10.0  # ms


@dataclass(frozen=True, slots=True)
class Now:
    """A step of QUEUE_FULL + PAUSE ms after the queue was full: what it is asleep at, and where it runs."""

    host: dict[str, float] = field(default_factory=dict)
    asleep: tuple[tuple[str, int, str], ...] = ()
    runs: tuple[tuple[str, int, str], ...] = LAUNCH
    native: tuple[str, ...] = ()
    sometimes: tuple[tuple[str, int, str], ...] = ()  # where it is in every fifth sample instead


def diagnosed(folder: Path, now: Now) -> Diagnosis:
    """A loop that spins on its full launch queue, then makes longer steps."""
    path = folder / "scene.db"
    usual = RepeatedStep(host_ms=QUEUE_FULL + 1.0, flags=UNTRACED)
    longer = RepeatedStep(host_ms=usual.host_ms + PAUSE - QUEUE_FULL, host=now.host, flags=UNTRACED)
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        off = given_up.LAUNCHES_OFF.code
        run.append(tables.OVERHEAD_LEVELS, time_ns=run.at(0), level=6, not_traced=off, reason="too many")
        for number, at_s in enumerate(add_steps(run, trainer, 0, QUIET_S, usual)):
            if number % 4 == 0:
                run.sample(trainer, at_s + 0.003, LAUNCH, native=SPINS if number % 28 else ())
        for number, at_s in enumerate(add_steps(run, trainer, QUIET_S, LENGTH_S, longer)):
            if number % 4 == 0:
                is_other = now.sometimes and number % 20 == 0
                run.sample(trainer, at_s + 0.0105, now.sometimes if is_other else now.runs, native=now.native)
            if now.asleep:
                run.off_cpu(
                    trainer, at_s + 0.0001, at_s + 0.0001 + PAUSE / 1000, "sleep", waker="timer", stack=now.asleep
                )
    return diagnosed_file(path)


def _forget_copies(path: Path, frames: str) -> None:
    """Native stacks of these frames were never copied."""
    db = sqlite3.connect(path)
    db.execute("UPDATE raw_stacks SET ips = '' WHERE frames LIKE ?", (frames,))
    db.commit()
    db.close()


def test_a_pause_at_the_users_line_is_the_hosts_though_launches_waited_before(tmp_path: Path) -> None:
    """The sleep is longer than the wait on the full queue that it replaces; only the difference is lost."""
    diagnosis = diagnosed(tmp_path, Now(host={"sleep": PAUSE}, asleep=STALL))
    (incident,) = diagnosis.incidents
    assert incident.cause == "sleep-in-loop"
    assert incident.line is not None
    assert (incident.line.file, incident.line.line) == STALL[0][:2]
    assert incident.lost_ratio == pytest.approx((PAUSE - QUEUE_FULL) / (PAUSE + 1), rel=0.1)


def test_a_sleep_inside_a_launch_may_be_one_for_the_gpu(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, Now(host={"sleep": PAUSE}, asleep=LAUNCH))) == ["unexplained"]


def test_what_computes_outside_the_driver_is_the_hosts(tmp_path: Path) -> None:
    (incident,) = diagnosed(tmp_path, Now(runs=TOKENIZE)).incidents
    assert incident.cause == "host-bound"
    assert incident.line is not None
    assert incident.line.function == "tokenize"


def test_what_was_running_is_not_known_where_no_native_stack_was_copied(tmp_path: Path) -> None:
    """Python frames do not show whether a line of the user's launches: `x @ w` is a call of C code."""
    path = tmp_path / "scene.db"
    diagnosed(tmp_path, Now(runs=TOKENIZE))
    _forget_copies(path, "%tokenize%")
    assert causes(diagnosed_file(path)) == ["unexplained"]


def test_what_has_no_copy_is_not_left_out_of_the_share(tmp_path: Path) -> None:
    """A spin under many Python stacks is copied for a few of them; what the interpreter runs is always known."""
    path = tmp_path / "scene.db"
    diagnosed(tmp_path, Now(sometimes=TOKENIZE))
    _forget_copies(path, "%linear%")
    (incident,) = diagnosed_file(path).incidents
    assert incident.cause == "unexplained"
    assert "most of it blocked on the GPU" in incident.summary


def test_what_spins_inside_the_driver_may_be_on_a_full_queue(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, Now(native=SPINS))) == ["unexplained"]
