"""ipc-bound: a trainer waits for another process; a server that waits for its next request does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

PARTNER = Actor(number=0, pid=700, name="featurizer")
SUBPROCESS = (
    ("/usr/lib/python3.12/selectors.py", 415, "select"),
    ("/usr/lib/python3.12/subprocess.py", 2115, "_communicate"),
    ("/srv/job/train.py", 51, "log_gpu_memory"),
)
QUEUE = (("/usr/lib/python3.12/multiprocessing/connection.py", 395, "_recv"), ("/srv/job/train.py", 60, "main"))
CALL = (("/usr/lib/python3.12/multiprocessing/managers.py", 820, "_callmethod"), ("/srv/job/train.py", 98, "main"))


def asking(run: ScriptedRun, trainer: Actor) -> None:
    """8 ms asleep in each step until a process outside the tree wakes it."""
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8}))
    for begin, _, _ in steps:
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=PARTNER)


def test_the_process_that_answers_late_is_named(tmp_path: Path) -> None:
    def training(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        run.off_cpu(worker, 0.1, 0.2, "sleep", waker="timer")
        asking(run, trainer)

    diagnosis = diagnosed(tmp_path, training)
    assert causes(diagnosis) == ["ipc-bound"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(700, "featurizer")]
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)


def test_a_client_is_known_by_its_frames(tmp_path: Path) -> None:
    def calling(run: ScriptedRun, trainer: Actor) -> None:
        asking(run, trainer)
        for tenth in range(10 * int(QUIET_S), 10 * int(LENGTH_S)):
            run.sample(trainer, tenth / 10 + 0.004, CALL, state="sleep", ms=100)

    diagnosis = diagnosed(tmp_path, calling)
    assert causes(diagnosis) == ["ipc-bound"]
    assert str(diagnosis.incidents[0].line) == "main() at /srv/job/train.py:98"


def test_a_process_that_may_be_a_server_has_no_demand(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, asking)) == []


def writing(run: ScriptedRun, trainer: Actor, *, is_own_request: bool) -> None:
    """8 ms asleep in each step, until the reader of a pipe has made room, or somebody writes to the one it reads."""
    line = (("/srv/job/train.py", 77, "log"),)
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=PARTNER, stack=line, is_own_request=is_own_request)


def test_a_reader_that_takes_a_write_late_is_named_whoever_the_writer_is(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: writing(run, trainer, is_own_request=True))
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "until featurizer [700] had taken it, log() at /srv/job/train.py:77" in incident.summary
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)


def test_a_read_at_the_same_line_may_be_the_next_request(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: writing(run, trainer, is_own_request=False))) == []


def running(run: ScriptedRun, trainer: Actor, stack: tuple[tuple[str, int, str], ...]) -> None:
    """8 ms asleep in each step, until a child that sleeps by itself has ended it."""
    child = run.process(300, "nvidia-smi", parent=trainer)
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=child, stack=stack)
        run.off_cpu(child, begin - 0.001, begin + 0.0078, "sleep", waker="timer")


def test_a_program_that_the_loop_runs_is_no_data_worker(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: running(run, trainer, SUBPROCESS))
    assert causes(diagnosis) == ["ipc-bound"]
    (incident,) = diagnosis.incidents
    assert "waiting for nvidia-smi [300], a program that it ran, log_gpu_memory()" in incident.summary
    assert [(one.pid, one.name) for one in incident.culprits] == [(300, "nvidia-smi")]


def test_a_child_whose_items_the_loop_takes_is_one(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: running(run, trainer, QUEUE))
    assert causes(diagnosis) == ["data-starvation"]


def held_up(run: ScriptedRun, trainer: Actor, waker: Actor, *, is_gpu_call: bool = False) -> None:
    """8 ms in uninterruptible sleep in each step, until another process has let it go on."""
    line = (("/srv/job/train.py", 33, "read"),)
    step = Step(idle_ms=8.5, idle={"uninterruptible": 8})
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step):
        run.off_cpu(trainer, begin, begin + 0.008, "uninterruptible", waker=waker, stack=line, is_gpu_call=is_gpu_call)


def test_whoever_holds_it_up_in_the_kernel_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: held_up(run, trainer, PARTNER))
    assert causes(diagnosis) == ["ipc-bound"]
    assert "in uninterruptible sleep until featurizer [700] let it go on, read()" in diagnosis.incidents[0].summary


@pytest.mark.parametrize(("name", "is_gpu_call"), [("featurizer", True), ("kcompactd0", False)])
def test_within_gpu_calls_or_by_the_kernel_itself_it_is_no_other_process(
    tmp_path: Path, name: str, *, is_gpu_call: bool
) -> None:
    waker = Actor(number=0, pid=700, name=name)
    diagnosis = diagnosed(tmp_path, lambda run, trainer: held_up(run, trainer, waker, is_gpu_call=is_gpu_call))
    assert "ipc-bound" not in causes(diagnosis)


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "ipc-bound" in {one.cause for one in diagnosis.not_evaluated}
