"""data-starvation: what the worker did that the GPU waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import FindingKind
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

AUGMENT = (("/srv/job/images.py", 29, "augment"), ("/srv/job/images.py", 20, "__getitem__"))
FEEDER = (("/usr/lib/python3.12/multiprocessing/reduction.py", 51, "dumps"), *AUGMENT[1:])
PROBE = (("/srv/job/settings.py", 50, "read"), *AUGMENT[1:])
STALL_S = 8.9  # the end of a second that began healthy
ITERATED = (*AUGMENT, ("/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", 701, "__next__"))


def starved(run: ScriptedRun, trainer: Actor, waker: str) -> None:
    """20 ms asleep before each step; the worker ends it after having slept 18 ms itself."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    for begin, first, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
        run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        state = "io" if waker == "block" else "sleep"
        run.off_cpu(worker, begin + 0.001, begin + 0.019, state, waker=waker)  # type: ignore[arg-type]
        assert begin + 0.020 <= first


@pytest.mark.parametrize(("waker", "doing"), [("timer", "asleep"), ("block", "disk"), ("network", "network")])
def test_what_the_worker_did_is_said(tmp_path: Path, waker: str, doing: str) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: starved(run, trainer, waker))
    assert causes(diagnosis) == ["data-starvation"]
    incident = diagnosis.incidents[0]
    assert incident.evidence["worker was"] == doing
    assert incident.culprits[0].pid == 101
    assert incident.lost_ratio == pytest.approx(20 / 26.55, rel=0.03)


def test_who_holds_the_worker_up_in_the_kernel_is_said(tmp_path: Path) -> None:
    def scanned(run: ScriptedRun, trainer: Actor) -> None:
        worker, scanner = run.process(101, "pt_data_worker", parent=trainer), Actor(number=0, pid=9, name="clamonacc")
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
            run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
            run.off_cpu(worker, begin + 0.001, begin + 0.019, "uninterruptible", waker=scanner)

    (incident,) = diagnosed(tmp_path, scanned).incidents
    assert incident.cause == "data-starvation"
    assert "held up in the kernel by clamonacc [9]" in incident.summary


def test_a_request_that_did_not_come_is_no_starvation(tmp_path: Path) -> None:
    def idle(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _first, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
            run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker="network")

    assert causes(diagnosed(tmp_path, idle)) == []


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "data-starvation" in {one.cause for one in diagnosis.not_evaluated}


def computing(
    run: ScriptedRun, trainer: Actor, begin_s: float, end_s: float, stack: tuple[tuple[str, int, str], ...]
) -> None:
    """20 ms asleep before each step, in which the worker is on a CPU."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    run.off_cpu(worker, 0.1, 0.2, "sleep", waker="timer")
    for begin, _, _ in run.train(trainer, begin_s, end_s, Step(idle_ms=20.5, idle={"sleep": 20})):
        run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        run.sample(worker, begin + 0.010, stack)


STORAGE = (("/srv/job/images.py", 40, "fetch"), ("/srv/job/images.py", 20, "__getitem__"))


def test_of_a_worker_that_was_always_too_slow_all_of_its_cycle_counts(tmp_path: Path) -> None:
    """6 ms asleep and 3 ms computing for each item; the loop, done after 7 ms, waits while it computes."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        steps = run.train(trainer, 0, LENGTH_S, Step(idle_ms=2.5, idle={"sleep": 2.0}))
        for number, (begin, first, _) in enumerate(steps):
            run.off_cpu(trainer, begin, first - 0.0005, "sleep", waker=worker)
            woken = first - 0.0005 - 0.003
            if number:
                run.off_cpu(worker, woken - 0.006, woken, "sleep", waker="timer", stack=STORAGE)
            if number % 10 == 0:
                run.sample(worker, begin + 0.001, AUGMENT)
    (incident,) = diagnosed_file(path).incidents
    assert (incident.cause, incident.kind) == ("data-starvation", FindingKind.BOTTLENECK)
    assert incident.evidence["worker was"] == "asleep"
    assert str(incident.line) == "fetch() at /srv/job/images.py:40"


PREFETCH = (("/srv/job/loader.py", 22, "decode_item"), ("/srv/job/loader.py", 31, "prefetch"))
LOOK = (("/srv/job/loader.py", 38, "wait_for_batch"), ("/srv/job/train.py", 90, "main"))
OPTIMIZER = (("/usr/lib/torch/optim/adam.py", 220, "step"), ("/srv/job/train.py", 71, "main"))


@pytest.mark.parametrize(
    ("made", "looks", "expected"),
    [
        (True, (3, 5, 4, 6), ["data-starvation"]),
        (False, (3, 5, 4, 6), []),  # no thread of it makes anything: it may look for its next job
        (True, (4,), ["sleep-in-loop"]),  # always as many: pauses, whatever another thread computes
        (None, (3, 5, 4, 6), ["sleep-in-loop"]),  # another thread computes, as much as it always has
    ],
)
def test_a_loop_that_looks_for_what_its_own_thread_makes_waits_for_data(
    tmp_path: Path, *, made: bool | None, looks: tuple[int, ...], expected: list[str]
) -> None:
    def looking(run: ScriptedRun, trainer: Actor) -> None:
        for tick in range(5):
            run.sample(trainer, 1 + tick / 10, OPTIMIZER)
        run.off_cpu(trainer, 0.1, 0.2, "sleep", tid=105)
        for tick in range(int(QUIET_S) * 50) if made is None else ():
            run.sample(trainer, tick / 50, PREFETCH, tid=105, ms=20)
        now, number = QUIET_S, 0
        while now < LENGTH_S:
            count = looks[number % len(looks)]
            step = Step(idle_ms=0.5 + 2 * count, idle={"sleep": 2 * count})
            ((begin, _, now),) = run.train(trainer, now, now + 1e-6, step)
            for look in range(count):
                at_s = begin + look * 0.002
                run.off_cpu(trainer, at_s, at_s + 0.00199, "sleep", waker="timer", stack=LOOK)
            if made is not False:
                run.sample(trainer, begin + 0.001, PREFETCH, tid=105, ms=2 * count)
            number += 1

    diagnosis = diagnosed(tmp_path, looking)
    assert causes(diagnosis) == expected
    if not expected:
        return
    (incident,) = diagnosis.incidents
    if expected == ["data-starvation"]:
        assert str(incident.line) == "decode_item() at /srv/job/loader.py:22"
    assert ("it looks again and again" in incident.summary) is (made is None)


def test_the_line_of_a_computing_worker_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: computing(run, trainer, QUIET_S, LENGTH_S, AUGMENT))
    assert causes(diagnosis) == ["data-starvation"]
    incident = diagnosis.incidents[0]
    assert incident.evidence["worker was"] == "on-cpu"
    assert str(incident.line) == "augment() at /srv/job/images.py:29"
    assert "num_workers=" in incident.fixes[0].command or "CPU work" in incident.fixes[0].text


def test_few_samples_of_the_waits_name_no_line_that_the_worker_is_seldom_at(tmp_path: Path) -> None:
    def busy(run: ScriptedRun, trainer: Actor) -> None:
        """It is waited for 1 ms a step, in which it was seen once; it computes all the time."""
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for number, (begin, _, _) in enumerate(
            run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=1.5, idle={"sleep": 1}))
        ):
            run.off_cpu(trainer, begin, begin + 0.001, "sleep", waker=worker)
            if number == 7:
                run.sample(worker, begin + 0.0005, PROBE)
            if number % 10 == 0:
                run.sample(worker, begin + 0.004, AUGMENT)

    diagnosis = diagnosed(tmp_path, busy)
    assert causes(diagnosis) == ["data-starvation"]
    assert str(diagnosis.incidents[0].line) == "augment() at /srv/job/images.py:29"


def test_pickling_is_told_from_computing(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: computing(run, trainer, QUIET_S, LENGTH_S, FEEDER))
    assert causes(diagnosis) == ["data-starvation"]
    assert diagnosis.incidents[0].evidence["worker was"] == "passing"


def test_too_few_workers_from_the_first_second_are_a_bottleneck(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        computing(run, run.process(100, "python"), 0, LENGTH_S, AUGMENT)
    diagnosis = diagnosed_file(path)
    assert causes(diagnosis) == ["data-starvation"]
    assert diagnosis.incidents[0].kind is FindingKind.BOTTLENECK
    assert diagnosis.incidents[0].evidence["sub-cause"] == "too few workers"


def test_loading_in_the_launching_thread_has_its_line(tmp_path: Path) -> None:
    def alone(run: ScriptedRun, trainer: Actor) -> None:
        """4 ms of a dataset before each step, without a worker."""
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))[::5]:
            run.sample(trainer, begin + 0.002, ITERATED)

    diagnosis = diagnosed(tmp_path, alone)
    assert causes(diagnosis) == ["data-starvation"]
    incident = diagnosis.incidents[0]
    assert incident.evidence["sub-cause"] == "no worker"
    assert str(incident.line) == "augment() at /srv/job/images.py:29"


@pytest.mark.parametrize(("passing", "cause"), [(6, "unexplained"), (60, "data-starvation")])
def test_samples_that_chance_may_have_left_out_of_a_short_reference_name_nothing(
    tmp_path: Path, passing: int, cause: str
) -> None:
    """Of two healthy seconds none is seen passing items; of the ten slower ones some are."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin, _, _ in run.train(trainer, 0, 2, Step())[::30]:
            run.sample(trainer, begin + 0.0002, AUGMENT[1:])
        steps = run.train(trainer, 2, LENGTH_S, Step(idle_ms=1.0))
        for begin, _, _ in steps[:: len(steps) // passing][:passing]:
            run.sample(trainer, begin + 0.0002, FEEDER)
    assert causes(diagnosed_file(path)) == [cause]


def test_a_worker_behind_the_pinning_thread_and_a_launcher_is_found(tmp_path: Path) -> None:
    def pinned(run: ScriptedRun, trainer: Actor) -> None:
        """Trainer, thread that pins, and a worker that is a grandchild: each wakes the one before."""
        launcher = run.process(101, "launcher", parent=trainer)
        worker = run.process(102, "pt_data_worker", parent=launcher)
        pin = Actor(number=trainer.number, pid=105, name="pt_data_pin")
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
            run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=pin)
            run.off_cpu(trainer, begin, begin + 0.0198, "sleep", waker=worker, tid=105)
            run.off_cpu(worker, begin, begin + 0.0195, "sleep", waker="timer")

    diagnosis = diagnosed(tmp_path, pinned)
    assert causes(diagnosis) == ["data-starvation"]
    assert diagnosis.incidents[0].culprits[0].pid == 102
    assert diagnosis.incidents[0].evidence["worker was"] == "asleep"


@pytest.mark.parametrize("to_cpu_ms", [0, 0.03])
def test_what_a_worker_always_computes_is_no_reason(tmp_path: Path, to_cpu_ms: float) -> None:
    def slow_disk(run: ScriptedRun, trainer: Actor) -> None:
        """The worker computes 5 ms for each step as it did before, and now waits 8 ms for a disk first.

        On its way back to a CPU it is runnable for a moment, as it always was.
        """
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for second in range(int(LENGTH_S)):
            per_step_ms = 13.05 if second >= QUIET_S else 6.55
            run.second(worker, second, run=5 / per_step_ms * 1000, runq=to_cpu_ms / per_step_ms * 1000)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=7.0, idle={"sleep": 6.5})):
            run.off_cpu(trainer, begin, begin + 0.0065, "sleep", waker=worker)
            woken = begin + 0.0015
            run.off_cpu(worker, begin - 0.0065, woken + to_cpu_ms / 1e3, "io", woken_s=woken, waker="block")

    incident = diagnosed(tmp_path, slow_disk).incidents[0]
    assert incident.cause == "data-starvation"
    assert incident.evidence["worker was"] == "disk"
    assert incident.explained_ratio > 0.9


def test_what_a_worker_computes_beside_a_stall_is_no_reason(tmp_path: Path) -> None:
    """The stall begins and ends within a second, whose rest is that of a healthy loop and of as many of its steps."""

    def slow_disk(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for second in range(int(LENGTH_S)):
            stalled = min(max(second + 1 - STALL_S, 0), 1)
            run.second(worker, second, run=1 / 13.05 * 1000 * stalled + 1 / 6.55 * 1000 * (1 - stalled))
        run.train(trainer, QUIET_S, STALL_S, Step())
        for begin, _, _ in run.train(trainer, STALL_S, LENGTH_S, Step(idle_ms=7.0, idle={"sleep": 6.5})):
            run.off_cpu(trainer, begin, begin + 0.0065, "sleep", waker=worker)
            run.off_cpu(worker, begin - 0.0065, begin + 0.0055, "io", waker="block")

    incident = diagnosed(tmp_path, slow_disk).incidents[0]
    assert (incident.cause, incident.evidence["worker was"]) == ("data-starvation", "disk")
    assert "worker on-cpu (ns)" not in incident.evidence


def test_a_worker_that_works_as_before_is_no_reason_while_a_stall_is_young(tmp_path: Path) -> None:
    """It computes 6 ms for each step and gets a CPU late, as the trainer does; in that second, before, it did not."""
    began_s = LENGTH_S - 0.7
    stalled = Step(idle_ms=6.5, idle={"sleep": 6}, return_delay_ms=18, sync={"runq": 18})

    def kept_from_running(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for second in range(int(LENGTH_S)):
            healthy_s = min(max(began_s - second, 0), 1)
            run.second(worker, second, run=6 * (healthy_s / 0.00655 + (1 - healthy_s) / 0.0305))
        run.train(trainer, QUIET_S, began_s, Step())
        for begin, _, end in run.train(trainer, began_s, LENGTH_S, stalled):
            run.off_cpu(worker, begin - 0.018, begin, "runq", culprit=(500, "hog"))
            run.off_cpu(trainer, begin, begin + 0.006, "sleep", waker=worker)
            run.off_cpu(trainer, end - 0.018, end, "runq", culprit=(500, "hog"))
        run.culprit(trainer, 500, "hog", LENGTH_S - 1, ms=500)

    assert causes(diagnosed(tmp_path, kept_from_running)) == ["cpu-contention"]


def test_a_forked_worker_is_not_at_its_parents_line(tmp_path: Path) -> None:
    stack = (
        ("/usr/lib/python3/site-packages/images/codec.py", 8, "decode"),
        ("/usr/lib/python3.12/multiprocessing/process.py", 314, "_bootstrap"),
        ("/srv/job/train.py", 187, "main"),
    )
    diagnosis = diagnosed(tmp_path, lambda run, trainer: computing(run, trainer, QUIET_S, LENGTH_S, stack))
    assert str(diagnosis.incidents[0].line) == "decode() at /usr/lib/python3/site-packages/images/codec.py:8"


def test_what_a_worker_computes_as_the_one_before_it_did_is_no_reason(tmp_path: Path) -> None:
    def slow_disk(run: ScriptedRun, trainer: Actor) -> None:
        """Workers compute 5 ms for each step; that of the second pass waits 8 ms for a disk first."""
        before = run.process(101, "pt_data_worker", parent=trainer)
        worker = run.process(102, "pt_data_worker", parent=trainer, start_s=QUIET_S)
        for second in range(int(LENGTH_S)):
            one, per_step_ms = (worker, 13.05) if second >= QUIET_S else (before, 6.55)
            run.second(one, second, run=5 / per_step_ms * 1000)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=7.0, idle={"sleep": 6.5})):
            run.off_cpu(trainer, begin, begin + 0.0065, "sleep", waker=worker)
            run.off_cpu(worker, begin - 0.0065, begin + 0.0015, "io", waker="block")

    incident = diagnosed(tmp_path, slow_disk).incidents[0]
    assert (incident.cause, incident.evidence["worker was"]) == ("data-starvation", "disk")
    assert incident.evidence["worker disk (ns)"] > 0.9 * incident.lost_ns


def test_workers_of_earlier_passes_do_not_raise_the_number_that_is_needed(tmp_path: Path) -> None:
    def passes(run: ScriptedRun, trainer: Actor) -> None:
        """A new worker each two seconds; each step takes four times as long as at best."""
        for number in range(3):
            begin_s = QUIET_S + 2 * number
            life = {"start_s": begin_s, "exit_ns": run.at(begin_s + 2)}
            worker = run.process(101 + number, "pt_data_worker", parent=trainer, **life)
            for begin, _, _ in run.train(trainer, begin_s, begin_s + 1.95, Step(idle_ms=20, idle={"sleep": 19.5})):
                run.off_cpu(trainer, begin, begin + 0.0195, "sleep", waker=worker)
                run.off_cpu(worker, begin + 0.0001, begin + 0.019, "sleep", waker="timer")

    (incident,) = diagnosed(tmp_path, passes).incidents
    assert "DataLoader(num_workers=4)" in [one.command for one in incident.fixes]
