"""lock-contention: sleeps that another thread of the process ends, with the waiter in no queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.store.writing.tables import Value
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

HOLDER = 105
LOCK = (("/srv/job/train.py", 95, "main"),)
GET = (("/usr/lib/python3.12/threading.py", 327, "wait"), ("/usr/lib/python3.12/queue.py", 171, "get"), *LOCK)
SELECT = (
    ("/usr/lib/python3.12/selectors.py", 468, "select"),
    ("/usr/lib/python3.12/asyncio/base_events.py", 1949, "_run_once"),
    *LOCK,
)
SAVE = (("/srv/job/checkpoint.py", 54, "save"),)
EVERY = 5


def waiting(run: ScriptedRun, trainer: Actor, at: tuple[tuple[str, int, str], ...]) -> None:
    """8 ms asleep before each step, until a thread that was busy all that time wakes it."""
    holder = Actor(number=trainer.number, pid=HOLDER, name="checkpointer")
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8}))
    comm: dict[str, Value] = {"tid": HOLDER}
    for number, (begin, first, _) in enumerate(steps):
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=holder)
        run.off_cpu(trainer, first, first + 0.002, "sleep", waker="timer", **comm)  # type: ignore[arg-type]
        if number % EVERY == 0:
            run.sample(trainer, begin + 0.004, SAVE, tid=HOLDER)
            run.sample(trainer, begin + 0.005, at, state="sleep", ms=250)


def test_the_holder_of_a_lock_is_named_with_both_lines(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: waiting(run, trainer, LOCK))
    assert causes(diagnosis) == ["lock-contention"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)
    assert str(incident.line) == "save() at /srv/job/checkpoint.py:54"
    assert incident.evidence["waits at"] == "main() at /srv/job/train.py:95"


def test_a_thread_that_launches_for_the_one_that_waits_holds_no_lock(tmp_path: Path) -> None:
    """As autograd's, whose backward pass the main thread sleeps through: in either kind of interval."""

    def launching(run: ScriptedRun, trainer: Actor) -> None:
        waiting(run, trainer, LOCK)
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.call(trainer, "cudaLaunchKernel", second + 0.5, 0.01, tid=HOLDER)

    assert "lock-contention" not in causes(diagnosed(tmp_path, launching))


def test_a_holder_that_was_sampled_only_beside_the_waits_is_named_with_its_line(tmp_path: Path) -> None:
    def seldom(run: ScriptedRun, trainer: Actor) -> None:
        """1 ms in each step for a thread that sleeps with the lock in hand, sampled while nobody waits for it."""
        holder = Actor(number=trainer.number, pid=HOLDER, name="checkpointer")
        steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=1.5, idle={"sleep": 1}))
        for number, (begin, first, end) in enumerate(steps):
            run.off_cpu(trainer, begin, begin + 0.001, "sleep", waker=holder)
            run.off_cpu(trainer, begin - 0.001, begin + 0.001, "sleep", waker="timer", tid=HOLDER)
            if number % EVERY == 0:
                run.sample(trainer, begin + 0.0005, LOCK, state="sleep", ms=250)
                run.sample(trainer, (first + end) / 2, SAVE, state="sleep", tid=HOLDER, ms=250)

    diagnosis = diagnosed(tmp_path, seldom)
    assert causes(diagnosis) == ["lock-contention"]
    assert str(diagnosis.incidents[0].line) == "save() at /srv/job/checkpoint.py:54"


def test_the_line_of_a_lock_that_is_held_asleep_is_known_from_the_sleeps_themselves(tmp_path: Path) -> None:
    def short(run: ScriptedRun, trainer: Actor) -> None:
        """1 ms in each step for a thread that has slept for 3 ms with the lock in hand, and sleeps without it, too."""
        holder = Actor(number=trainer.number, pid=HOLDER, name="checkpointer")
        steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=1.5, idle={"sleep": 1}))
        for begin, first, _ in steps:
            run.off_cpu(trainer, begin, begin + 0.001, "sleep", waker=holder, stack=LOCK)
            run.off_cpu(trainer, begin - 0.002, begin + 0.001, "sleep", waker="timer", tid=HOLDER, stack=SAVE)
            run.off_cpu(trainer, first, first + 0.003, "sleep", waker="timer", tid=HOLDER, stack=LOCK)

    diagnosis = diagnosed(tmp_path, short)
    assert causes(diagnosis) == ["lock-contention"]
    incident = diagnosis.incidents[0]
    assert str(incident.line) == "save() at /srv/job/checkpoint.py:54"
    assert incident.evidence["waits at"] == "main() at /srv/job/train.py:95"


@pytest.mark.parametrize(
    ("cpu_user", "found"),
    [((101, "pt_data_worker"), ["lock-contention"]), ((900, "cron"), ["lock-contention", "cpu-contention"])],
    ids=["its own worker", "others"],
)
def test_while_its_holder_waits_for_a_cpu_a_lock_is_held_unless_others_have_that_cpu(
    tmp_path: Path, cpu_user: tuple[int, str], found: list[str]
) -> None:
    """Of waits of 8 ms 3 ms: who had the CPU is known of each, whoever took a little more of the CPUs meanwhile."""

    def crowded(run: ScriptedRun, trainer: Actor) -> None:
        holder = Actor(number=trainer.number, pid=HOLDER, name="checkpointer")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8}))
        for begin, _, _ in steps:
            till = begin + 0.005
            run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=holder, stack=LOCK)
            run.off_cpu(
                trainer,
                begin - 0.001,
                begin + 0.008,
                "sleep",
                woken_s=till,
                waker="timer",
                culprit=cpu_user,
                tid=HOLDER,
                stack=SAVE,
            )
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.culprit(trainer, 900, "cron", second, 2.0)
            run.second(worker, second, run=400)

    diagnosis = diagnosed(tmp_path, crowded)
    assert causes(diagnosis) == found
    assert diagnosis.incidents[0].explained_ratio > 0.9
    lost = {one.cause: one.lost_ratio for one in diagnosis.incidents}
    assert lost["lock-contention"] == pytest.approx((8 if len(found) == 1 else 5) / 14.55, rel=0.05)


def test_a_thread_that_makes_what_is_waited_for_starves_the_device(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: waiting(run, trainer, GET))
    assert causes(diagnosis) == ["data-starvation"]
    assert str(diagnosis.incidents[0].line) == "save() at /srv/job/checkpoint.py:54"


def test_without_samples_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(
        tmp_path,
        lambda run, trainer: waiting(run, trainer, LOCK),
        not_traced={"stack_samples": "switched off (stack)"},
    )
    assert causes(diagnosis) == ["unexplained"]
    assert "lock-contention" in {one.cause for one in diagnosis.not_evaluated}


def test_a_loop_of_asyncio_waits_for_what_its_thread_makes(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: waiting(run, trainer, SELECT))
    assert causes(diagnosis) == ["data-starvation"]


def test_a_thread_that_launches_for_the_one_that_sleeps_holds_no_lock(tmp_path: Path) -> None:
    """Autograd's, in a loop that is waited for once a step: what it does is the step."""

    def autograd(run: ScriptedRun, trainer: Actor) -> None:
        waiting(run, trainer, LOCK)
        run.call(trainer, "cudaLaunchKernel", QUIET_S + 0.5, 0.01, tid=HOLDER)

    assert "lock-contention" not in causes(diagnosed(tmp_path, autograd))
