"""While launches are not traced: the host's part and the wait are known, and nothing is said that needs more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingero import given_up
from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.cases.against_zero import idle_at_least_ns, proven_idle
from ingero.diagnose.causes.rule import all_rules
from ingero.diagnose.evidence.nvml_utilization import Utilization
from ingero.diagnose.findings import JUDGED_NS, Bucket, Diagnosis, FindingKind, Part, share_of_wall_time
from ingero.diagnose.steps.untraced_launches import host_growth_ns
from ingero.serve.text.breakdown import breakdown_text
from ingero.store.reader import open_reader
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed_file

USUAL = Step(is_untraced=True)
HOST_MS, WAIT_MS = USUAL.idle_ms + USUAL.launch_ms, USUAL.busy_ms - USUAL.launch_ms

NEED_THE_GPUS_TIME = {"gpu-slower", "gpu-throttled", "pcie-link"}
NEED_LAUNCHES = {"launch-bound", "unexpected-sync", "cuda-graph-unused"}
WANT_LAUNCHES = {"hung-call", "cold-start", "driver-lock", "gpu-contention"}


def unseen(folder: Path, step: Step, *, hog_ms: float = 0.0, seen_s: float = 0.0) -> Diagnosis:
    """A loop whose launches are not traced from seen_s on; from QUIET_S on it makes these steps."""
    path = folder / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        if seen_s:
            run.train(trainer, 0, seen_s, Step())
        given_up_at(run, seen_s)
        run.train(trainer, seen_s, QUIET_S, USUAL)
        steps = run.train(trainer, QUIET_S, LENGTH_S, step)
        hog(run, trainer, steps, hog_ms)
    return diagnosed_file(path)


def given_up_at(run: ScriptedRun, at_s: float) -> None:
    for time_s, text in ((0.0, ""), (at_s, given_up.LAUNCHES_OFF.code)):
        run.append(tables.OVERHEAD_LEVELS, time_ns=run.at(time_s), level=6, not_traced=text, reason="too many")


def hog(run: ScriptedRun, trainer: Actor, steps: list[tuple[float, float, float]], ms: float) -> None:
    for second in range(int(QUIET_S), int(LENGTH_S)):
        if ms:
            run.culprit(trainer, 900, "hog", second, ms * sum(int(end) == second for _, _, end in steps))


@pytest.mark.parametrize(
    ("host_ms", "wait_ms", "grown_by_host_ms"),
    [
        (2, 5, 0),
        (5, 5, 3),  # nothing was hidden
        (5, 2, 0),  # all of it was hidden behind the GPU's work
        (5, 3, 1),  # some of it
        (2, 8, 0),  # the GPU's
        (5, 8, 3),
        (1, 5, -1),  # it caught up
        (1, 6, 0),
    ],
)
def test_only_what_made_the_interval_longer_is_lost_by_the_host(
    host_ms: int, wait_ms: int, grown_by_host_ms: int
) -> None:
    interval = np.array([(host_ms, wait_ms)], [("idle_ns", "<i8"), ("busy_ns", "<i8")])
    assert host_growth_ns(interval, 2, 5).tolist() == [grown_by_host_ms]


@pytest.mark.parametrize(
    ("waits", "waited", "busy", "copied_bytes", "proven"),
    [
        (60, 0, 0.70, 0, 0),  # all of it may have passed behind kernels
        (60, 0, 0.30, 0, 30),
        (60, 0, 0.30, 60, 10),  # bytes that took 20 of it at 3 bytes a ns
        (90, 0, 0.0, 0, 90),
        (60, 0, None, 0, 0),  # NVML says nothing
        (60, 30, 0.50, 0, 40),  # the GPU was idle for 50 of the 70 in which the host did not wait for it
        (60, 30, 0.10, 0, 60),  # no more than all of it
    ],
)
def test_only_waits_that_the_gpu_was_idle_in_for_certain_count_against_zero(
    waits: int, waited: int, busy: float | None, copied_bytes: int, proven: int
) -> None:
    used = None if busy is None else Utilization(share=busy, error=0.0, is_shared=False)
    lost = {Bucket(Part.IDLE, "sleep"): waits, Bucket(Part.RETURN_DELAY, "runq"): 5}
    expected = {Bucket(Part.IDLE, "sleep"): proven, Bucket(Part.RETURN_DELAY, "runq"): 5}
    assert proven_idle(lost, 100, waited, idle_at_least_ns(100, used, copied_bytes)) == expected


def test_what_was_seen_before_launches_were_given_up_counts_against_zero_as_it_was(tmp_path: Path) -> None:
    """The same loop in both halves; of the second nothing proves that the GPU was idle meanwhile."""
    path, waits = tmp_path / "scene.db", {"runq": 4.0}
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        steps = run.train(trainer, 0, LENGTH_S / 2, Step(idle_ms=4.5, idle=waits))
        given_up_at(run, LENGTH_S / 2)
        run.train(trainer, LENGTH_S / 2, LENGTH_S, Step(idle_ms=4.5, idle=waits, is_untraced=True, launch_ms=5.9))
        for second in range(int(LENGTH_S)):
            run.culprit(trainer, 900, "hog", second, 4.0 * len(steps) / (LENGTH_S / 2))
    (incident,) = diagnosed_file(path).incidents
    assert (incident.kind, incident.cause) == (FindingKind.BOTTLENECK, "cpu-contention")
    assert incident.lost_ns == pytest.approx(4e6 * len(steps), rel=0.02)


@pytest.mark.parametrize(
    ("innermost", "said"),
    [
        (("/srv/job/tokens.py", 46, "tokenize"), ["host-bound"]),
        (("/srv/torch/tokens.py", 46, "tokenize"), ["host-bound"]),  # a folder of the user's
        (("/usr/lib/python3/dist-packages/torch/autograd/graph.py", 823, "_engine_run_backward"), ["unexplained"]),
    ],
)
def test_what_runs_in_a_framework_may_be_launches_and_is_no_computing(
    tmp_path: Path, innermost: tuple[str, int, str], said: list[str]
) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        given_up_at(run, 0.0)
        run.train(trainer, 0, QUIET_S, USUAL)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(is_untraced=True, idle_ms=4.5))[::5]:
            run.sample(trainer, begin + 0.002, (innermost, ("/srv/job/train.py", 90, "main")))
    assert causes(diagnosed_file(path)) == said


@pytest.mark.parametrize(
    ("innermost", "percent", "said"),
    [
        (("/srv/job/tokens.py", 46, "tokenize"), 40, ["host-bound"]),
        (("/srv/job/tokens.py", 46, "tokenize"), 95, []),  # the GPU works meanwhile
        (("/usr/lib/python3/dist-packages/torch/nn/functional.py", 7, "linear"), 40, []),  # it may be launching
    ],
)
def test_what_has_always_kept_the_gpu_waiting_is_proven_by_nvml_and_samples(
    tmp_path: Path, innermost: tuple[str, int, str], percent: int, said: list[str]
) -> None:
    """Per step: 8 ms of the host's, of which NVML proves the GPU idle for at least 4.6, and 3 ms waiting."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        given_up_at(run, 0.0)
        for begin, _, _ in run.train(trainer, 0, LENGTH_S, Step(is_untraced=True, idle_ms=8, launch_ms=0, busy_ms=3)):
            run.sample(trainer, begin + 0.002, (innermost, ("/srv/job/train.py", 90, "main")))
        for second in range(int(LENGTH_S)):
            run.gpu(second + 0.5, percent=percent, processes=[(100, 1 << 30)])
    diagnosis = diagnosed_file(path)
    assert causes(diagnosis) == said
    for incident in diagnosis.incidents:
        assert incident.kind is FindingKind.BOTTLENECK
        assert 0.4 <= incident.lost_ratio <= 0.6
        assert "lost at least" in incident.summary


@pytest.mark.parametrize(("traced_s", "is_said"), [(2.0, True), (0.4, False)])
def test_what_is_seen_while_launches_are_traced_again_is_said_of_that_time_alone(
    tmp_path: Path, traced_s: float, is_said: bool
) -> None:
    """Counted against all of the time it would be too little; of the rest nothing is known."""
    path, waits = tmp_path / "scene.db", {"runq": 4.0}
    untraced = Step(idle_ms=4.5, idle=waits, is_untraced=True, launch_ms=5.9)
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        given_up_at(run, 0.0)
        run.train(trainer, 0, 6, untraced)
        run.append(tables.OVERHEAD_LEVELS, time_ns=run.at(6), level=0, not_traced="", reason="to see")
        steps = run.train(trainer, 6, 6 + traced_s, Step(idle_ms=4.5, idle=waits))
        run.append(tables.OVERHEAD_LEVELS, time_ns=run.at(6 + traced_s), level=6, not_traced=given_up.LAUNCHES_OFF.code)
        run.train(trainer, 6 + traced_s, LENGTH_S, untraced)
        for second in range(int(LENGTH_S)):
            run.culprit(trainer, 900, "hog", second, 4.0 * len(steps) / traced_s)
    incidents = diagnosed_file(path).incidents
    assert [one.cause for one in incidents] == ["cpu-contention"] * is_said
    for incident in incidents:
        assert incident.lost_ns == pytest.approx(4e6 * len(steps), rel=0.03)
        assert incident.end_ns is not None
        assert incident.end_ns - incident.start_ns == pytest.approx(traced_s * 1e9, rel=0.03)
        assert incident.lost_ratio == pytest.approx(4e-3 * len(steps) / traced_s, rel=0.03)
        assert "s in which launches were traced) waiting for a CPU" in incident.summary
        assert incident.of_wall_time == share_of_wall_time(incident.evidence[JUDGED_NS])


def test_a_hog_is_named_with_what_it_took(tmp_path: Path) -> None:
    late = Step(is_untraced=True, idle_ms=USUAL.idle_ms + 2, idle={"runq": 2.0})
    (incident,) = unseen(tmp_path, late, hog_ms=2.0).incidents
    assert incident.cause == "cpu-contention"
    assert [one.name for one in incident.culprits] == ["hog"]
    assert incident.lost_ratio == pytest.approx(2 / (HOST_MS + WAIT_MS + 2), rel=0.05)


def test_a_hog_beside_a_slower_gpu_is_named_and_the_gpus_part_left_unexplained(tmp_path: Path) -> None:
    both = Step(is_untraced=True, idle_ms=USUAL.idle_ms + 2, idle={"runq": 2.0}, busy_ms=USUAL.busy_ms + 4)
    found = {one.cause: one.lost_ratio for one in unseen(tmp_path, both, hog_ms=2.0).incidents}
    length_ms = HOST_MS + WAIT_MS + 6
    assert found == pytest.approx({"cpu-contention": 2 / length_ms, "unexplained": 4 / length_ms}, rel=0.05)


def test_what_the_host_lost_beside_a_slower_gpu_is_named_only_where_it_is_explained(tmp_path: Path) -> None:
    both = Step(is_untraced=True, idle_ms=USUAL.idle_ms + 2, idle={"runq": 1.2}, busy_ms=USUAL.busy_ms + 4)
    assert causes(unseen(tmp_path, both, hog_ms=1.2)) == ["unexplained"]


def test_a_delay_that_the_wait_hides_is_not_lost(tmp_path: Path) -> None:
    hidden = Step(is_untraced=True, idle_ms=USUAL.idle_ms + 2, busy_ms=USUAL.busy_ms - 2, idle={"runq": 2.0})
    assert causes(unseen(tmp_path, hidden, hog_ms=2.0)) == []


def test_a_longer_wait_has_no_cause_that_could_be_seen(tmp_path: Path) -> None:
    (incident,) = unseen(tmp_path, Step(is_untraced=True, busy_ms=USUAL.busy_ms + 3)).incidents
    assert incident.cause == "unexplained"
    assert given_up.LAUNCHES_OFF.text in incident.summary


def test_intervals_are_not_compared_with_those_of_full_tracing(tmp_path: Path) -> None:
    """The first seconds were slower, because tracing was dear: that is no baseline of the rest, nor the other way."""
    assert causes(unseen(tmp_path, USUAL, seen_s=2.0)) == []
    (tmp_path / "slower").mkdir()
    slower = Step(is_untraced=True, idle_ms=USUAL.idle_ms + 3)
    path = tmp_path / "slower" / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, 2.0, Step())
        given_up_at(run, 2.0)
        run.train(trainer, 2.0, LENGTH_S, slower)
    assert causes(diagnosed_file(path)) == []


def test_the_first_seconds_are_no_verdict_about_the_rest(tmp_path: Path) -> None:
    (verdict,) = unseen(tmp_path, USUAL, seen_s=1.0).verdicts
    assert "GPU-bound" not in verdict.text
    waited = round(100 * WAIT_MS / (HOST_MS + WAIT_MS + USUAL.return_delay_ms))
    assert f"waited for the GPU {waited}% of wall time" in verdict.text
    assert "GPU idle time is unknown" in verdict.text


@pytest.mark.parametrize(
    ("seen_s", "told", "untold"),
    [
        (0.0, "host time, from one GPU sync to the next", "GPU idle: nothing queued"),
        (9.0, "GPU idle: nothing queued", "host time, from one"),
    ],
)
def test_the_breakdown_calls_idle_only_what_is_known_to_be(
    tmp_path: Path, seen_s: float, told: str, untold: str
) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        if seen_s:
            run.train(trainer, 0, seen_s, Step())
        given_up_at(run, seen_s)
        run.train(trainer, seen_s, LENGTH_S, USUAL)
    with open_reader(path) as reader:
        window = reader.window(None, run.at(LENGTH_S))
        assert window is not None
        text = "\n".join(breakdown_text(reader, window))
    assert told in text
    assert untold not in text
    assert "GPU idle time is unknown: not all launches and copies were traced for" in text


def test_steps_that_ended_unseen_are_said_not_to_have_been_followed(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        given_up_at(run, 1.0)
        trainer = run.process(100, "python")
        run.train(trainer, 0, 1.0, Step())
        run.op(trainer, "cudaMemcpyAsync", LENGTH_S - 1, 100, 0.01)
    (verdict,) = diagnosed_file(path).verdicts
    assert verdict.text.startswith("in 1.00 s: GPU-bound")
    assert "not checked for 11.0 s, in which its steps could not be followed" in verdict.text


def test_a_process_of_which_no_step_was_seen_has_a_verdict_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        given_up_at(run, 0.1)
        trainer = run.process(100, "python")
        for second in range(int(LENGTH_S)):
            run.op(trainer, "cudaMemcpyAsync", second, 100, 0.01)
    (verdict,) = diagnosed_file(path).verdicts
    assert verdict.text.startswith("no GPU sync and no launches traced")


def test_each_rule_says_whether_it_needs_launches_or_the_gpus_time() -> None:
    gone = given_up.LAUNCHES_OFF.evidence
    assert {rule.cause for rule in all_rules() if gone & set(rule.needs)} == NEED_THE_GPUS_TIME | NEED_LAUNCHES
    assert {rule.cause for rule in all_rules() if "enqueues" in rule.needs} == NEED_THE_GPUS_TIME
    assert {rule.cause for rule in all_rules() if gone & set(rule.improves_with)} == WANT_LAUNCHES
    assert {rule.cause for rule in all_rules() if "copies" in rule.needs} == {"memcpy-bound"}
