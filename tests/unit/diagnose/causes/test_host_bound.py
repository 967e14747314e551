"""host-bound: on-CPU time of the feeding thread outside calls, at the line that samples name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

TOKENIZE = (("/srv/job/tokens.py", 46, "tokenize"), ("/srv/job/train.py", 90, "main"))
EVERY = 5  # 20 ms of samples stand for 4 ms in each of so many steps


def tokenizing(run: ScriptedRun, trainer: Actor) -> None:
    """4 ms of Python before each step."""
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))[::EVERY]:
        run.sample(trainer, begin + 0.002, TOKENIZE)


def test_python_before_the_first_launch_is_named_with_its_line(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, tokenizing)
    assert causes(diagnosis) == ["host-bound"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(4 / 10.55, rel=0.05)
    assert str(incident.line) == "tokenize() at /srv/job/tokens.py:46"


def test_python_that_the_device_does_not_wait_for_is_silent(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        """The same samples, but of another thread, in steps as fast as ever."""
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step())[::EVERY]:
            run.sample(trainer, begin + 0.0001, TOKENIZE, tid=105)

    assert causes(diagnosed(tmp_path, hidden)) == []


DECODE = (("/srv/job/model.py", 73, "decode"), ("/srv/job/train.py", 90, "main"))


def decoding(folder: Path, slower: Step, *, more: float) -> Diagnosis:
    """A loop that computes at one line, a sample in every tenth step, and then for so many times as long."""
    path = folder / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin, first, _ in run.train(trainer, 0, QUIET_S, Step())[::10]:
            run.sample(trainer, (begin + first) / 2, DECODE)
        for begin, first, _ in run.train(trainer, QUIET_S, LENGTH_S, slower)[:: round(10 / more)]:
            run.sample(trainer, (begin + first) / 2, DECODE)
    return diagnosed_file(path)


def test_the_same_line_that_takes_somewhat_longer_is_a_slower_cpu_and_silent(tmp_path: Path) -> None:
    assert causes(decoding(tmp_path, Step(idle_ms=1.2), more=1.5)) == []


def test_the_same_line_that_takes_much_longer_has_no_owner(tmp_path: Path) -> None:
    assert causes(decoding(tmp_path, Step(idle_ms=3.5), more=2.5)) == ["unexplained"]


SAMPLER = (("/srv/job/model.py", 80, "sample"), ("/srv/job/train.py", 90, "main"))


def test_ticks_that_missed_the_thread_before_show_no_growth(tmp_path: Path) -> None:
    """0.5 ms a step more on the CPU, by its clock: of what it ran before, a fifth as much was sampled."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for idle_ms, begin_s, end_s, every in ((0.5, 0, QUIET_S, 15), (1.0, QUIET_S, LENGTH_S, 3)):
            steps = run.train(trainer, begin_s, end_s, Step(idle_ms=idle_ms))
            for begin, _, _ in steps[::every]:
                run.sample(trainer, begin + 0.0001, DECODE, ms=1.2)
            for begin, _, _ in steps[1::60]:
                run.sample(trainer, begin + 0.0002, SAMPLER, ms=1.2)
    assert causes(diagnosed_file(path)) == []


RECORD_MS = 0.02


@pytest.mark.parametrize(("times", "expected"), [(1.0, ["host-bound"]), (1.3, ["host-bound"]), (2.0, [])])
def test_python_that_takes_longer_as_do_short_calls_is_no_work_of_the_program(
    tmp_path: Path, times: float, expected: list[str]
) -> None:
    """0.45 ms a step more at a line that had few samples before; an event is recorded once a step."""

    def colder(run: ScriptedRun, trainer: Actor) -> None:
        steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=0.95))
        for begin, _, _ in steps[::25]:
            run.sample(trainer, begin + 0.0002, TOKENIZE)
        for second in range(int(LENGTH_S)):
            is_slow = second >= QUIET_S
            count = sum(int(begin) == second for begin, _, _ in steps) if is_slow else 132
            run.op(trainer, "cudaEventRecord", second, count, RECORD_MS * (times if is_slow else 1))

    assert causes(diagnosed(tmp_path, colder)) == expected


def test_a_line_in_the_ordinary_steps_around_a_few_long_ones_does_not_own_their_time(tmp_path: Path) -> None:
    """Half of the ordinary steps are longer than their median, too."""

    def stalling(run: ScriptedRun, trainer: Actor) -> None:
        for at_s in range(int(QUIET_S), int(LENGTH_S)):
            run.train(trainer, at_s, at_s + 0.1, Step(idle_ms=100))
            for begin, first, _ in run.train(trainer, at_s + 0.12, at_s + 1, Step())[::EVERY]:
                run.sample(trainer, (begin + first) / 2, DECODE)

    assert causes(diagnosed(tmp_path, stalling)) == ["unexplained"]


def test_a_line_of_another_thread_does_not_own_the_time(tmp_path: Path) -> None:
    def elsewhere(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))[::EVERY]:
            run.sample(trainer, begin + 0.002, TOKENIZE, tid=105)

    assert causes(diagnosed(tmp_path, elsewhere)) == ["unexplained"]


def test_a_loop_that_always_computes_a_seventh_of_its_time_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        run.train(run.process(100, "python"), 0, LENGTH_S, Step(idle_ms=0.5, busy_ms=3))
    assert causes(diagnosed_file(path)) == []


FORWARD = (("/srv/job/model.py", 12, "forward"), ("/srv/job/train.py", 90, "main"))


@pytest.mark.parametrize(
    ("computes", "calls", "expected"),
    [(TOKENIZE, 400, ["host-bound"]), (FORWARD, 400, []), (TOKENIZE, 100, [])],
    ids=["apart", "where calls come from", "too few calls to know"],
)
def test_a_sixth_of_the_time_is_told_where_no_call_comes_from(
    tmp_path: Path, computes: tuple[tuple[str, int, str], ...], calls: int, expected: list[str]
) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        steps = run.train(trainer, 0, LENGTH_S, Step(idle_ms=1.5))
        for begin, _, _ in steps[::10]:
            run.sample(trainer, begin + 0.001, computes, ms=15)
        for _, first, _ in steps[:calls]:
            run.call(trainer, "cudaLaunchKernel", first, 0.005, stack_hash=run.stack(FORWARD))
    diagnosis = diagnosed_file(path)
    assert causes(diagnosis) == expected
    assert [str(one.line) for one in diagnosis.incidents] == ["tokenize() at /srv/job/tokens.py:46"] * len(expected)


def test_without_samples_it_is_unexplained_and_the_way_out_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, tokenizing, not_traced={"stack_samples": "switched off (stack)"})
    assert causes(diagnosis) == ["unexplained"]
    assert "host-bound" in {one.cause for one in diagnosis.not_evaluated}
    assert "--stack=true" in diagnosis.incidents[0].fixes[0].command


def test_stacks_that_were_switched_off_are_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S, options={"stack": False}) as run:
        run.train(run.process(100, "python"), 0, LENGTH_S, Step())
    reasons = {one.cause: one.reason for one in diagnosed_file(path).not_evaluated}
    assert reasons["host-bound"] == "no samples were taken: stacks were off (--no-stack)"
