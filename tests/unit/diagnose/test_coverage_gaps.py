"""What was given up for a while is not evaluated then, is said from when to when, and is claimed by nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ingero import given_up
from ingero.capture.budget.levels import CODES, Level
from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose.causes.rule import all_rules
from ingero.diagnose.evidence.coverage_gaps import CoverageGaps
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis, Part
from ingero.diagnose.incidents.blind_spots import why_not_evaluated
from ingero.serve.structured.findings_json import diagnosis_json
from ingero.serve.text.findings_text import headline, not_looked_at_lines
from ingero.store.arrays.spans import joined
from ingero.store.reader import open_reader
from ingero.store.records import OverheadLevel, Window
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

Script = Callable[[ScriptedRun, Actor], None]
SLOW = {"cudaLaunchKernel": (80.0, 0.1), "cudaStreamSynchronize": (1.0, 0.1)}
OFF = given_up.LAUNCHES_AND_INTERVALS_OFF.code  # of a recording of version 1
UNSEEN = given_up.LAUNCHES_OFF.code
NO_STACKS = given_up.STACKS_OFF.code


def governed(run: ScriptedRun, *steps: tuple[float, str]) -> None:
    """From these seconds on these sentences say what is given up; everything is traced at the start."""
    for at_s, text in ((0.0, ""), *steps):
        run.append(
            tables.OVERHEAD_LEVELS, time_ns=run.at(at_s), level=int(bool(text)), not_traced=text, reason="too many"
        )


def without(folder: Path, *steps: tuple[float, str], script: Script | None = None) -> Diagnosis:
    def play(run: ScriptedRun, trainer: Actor) -> None:
        governed(run, *steps)
        if script:
            script(run, trainer)
        else:
            run.train(trainer, QUIET_S, LENGTH_S, Step())

    return diagnosed(folder, play)


def time_ranges(diagnosis: Diagnosis) -> dict[str, list[tuple[float, float]]]:
    """By cause: seconds from when to when it is not evaluated."""
    return {
        one.cause: [((part.begin_ns - BEGIN_NS) / 1e9, (part.end_ns - BEGIN_NS) / 1e9) for part in one.time_ranges]
        for one in diagnosis.not_evaluated
        if one.time_ranges
    }


def slow_launches(run: ScriptedRun, trainer: Actor) -> None:
    run.train(trainer, QUIET_S, LENGTH_S, Step(launch_ms=8.9, busy_ms=9.0), calls=SLOW)


def hogged(run: ScriptedRun, trainer: Actor) -> None:
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=2.05, sync={"runq": 2.0}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        run.culprit(trainer, 900, "hog", second, 2.0 * sum(int(end) == second for _, _, end in steps))


def test_where_everything_was_traced_nothing_is_listed(tmp_path: Path) -> None:
    diagnosis = without(tmp_path)
    assert time_ranges(diagnosis) == {}
    assert headline(diagnosis) == "No incidents found."


def test_every_cause_that_needs_steps_is_not_evaluated_where_earlier_versions_had_none(tmp_path: Path) -> None:
    found = time_ranges(without(tmp_path, (2, OFF), (4, "")))
    need = {rule.cause for rule in all_rules() if "sync_intervals" in rule.needs}
    assert need <= set(found)
    assert {tuple(parts) for parts in found.values()} == {((2.0, 4.0),)}
    assert "cgroup-oom" not in found


@pytest.mark.parametrize(
    ("text", "silenced", "seen"),
    [
        (given_up.MEMORY_OFF.code, {"allocation-churn", "allocator-retry", "gpu-memory-leak"}, {"launch-bound", "gil"}),
        (
            UNSEEN,
            {"launch-bound", "unexpected-sync", "gpu-slower"},
            {"cpu-contention", "gil", "data-starvation"},
        ),
        (given_up.COPIES_OFF.code, {"memcpy-bound", "gpu-slower"}, {"cpu-contention", "launch-bound"}),
        (given_up.LAUNCHES_COUNTED.code, {"launch-bound", "cold-start"}, {"allocation-churn", "cpu-contention"}),
        (NO_STACKS, {"garbage-collection", "lock-contention", "host-bound"}, {"launch-bound", "cpu-contention"}),
        (CODES[Level.LAUNCHES_AT_DRIVER], set(), {"launch-bound", "cpu-contention"}),
    ],
    ids=["memory", "launches", "copies", "launches counted", "stacks", "launches at the driver"],
)
def test_only_the_causes_that_need_what_was_given_up_are_listed(
    tmp_path: Path, text: str, silenced: set[str], seen: set[str]
) -> None:
    found = set(time_ranges(without(tmp_path, (3, text), (5, ""))))
    assert silenced <= found
    assert not seen & found


def test_silence_is_claimed_of_nothing_that_was_not_seen(tmp_path: Path) -> None:
    diagnosis = without(tmp_path, (2, OFF), (4, ""))
    assert headline(diagnosis).endswith("For 2.00 s, some causes could not be checked.")
    assert "not checked for 2.00 s, in which its steps could not be followed" in diagnosis.verdicts[0].text


def test_of_a_process_that_began_later_nothing_was_missed(tmp_path: Path) -> None:
    def two(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        run.train(run.process(200, "later", start_s=5), 5, LENGTH_S, Step())

    verdicts = {one.pid: one.text for one in without(tmp_path, (2, OFF), (4, ""), script=two).verdicts}
    assert "could not be followed" in verdicts[100]
    assert "could not be followed" not in verdicts[200]


def test_text_and_json_say_from_when_to_when(tmp_path: Path) -> None:
    diagnosis = without(tmp_path, (2, OFF), (4, ""), (7, OFF), (8, ""))
    lines = [line for line in not_looked_at_lines(diagnosis) if f"({given_up.BY_CODE[OFF].text}" in line]
    assert len(lines) == 1
    assert lines[0].endswith(", 3.00 s in 2 time ranges)")
    told = json.loads(json.dumps(diagnosis_json(diagnosis)))["not_checked"]
    (gil,) = (one for one in told if one["cause"] == "gil")
    assert [(one["begin_ns"] - BEGIN_NS, one["duration_ns"]) for one in gil["ranges"]] == [
        (2_000_000_000, 2_000_000_000),
        (7_000_000_000, 1_000_000_000),
    ]


def test_a_cause_that_was_found_at_another_time_stays_listed_for_this_one(tmp_path: Path) -> None:
    diagnosis = without(tmp_path, (2, OFF), (3, ""), script=hogged)
    assert causes(diagnosis) == ["cpu-contention"]
    assert time_ranges(diagnosis)["cpu-contention"] == [(2.0, 3.0)]


def test_a_cause_whose_evidence_was_given_up_while_time_was_lost_is_not_claimed(tmp_path: Path) -> None:
    diagnosis = without(tmp_path, (QUIET_S, given_up.LAUNCHES_COUNTED.code), script=slow_launches)
    (incident,) = diagnosis.incidents
    assert incident.cause == "unexplained"
    assert given_up.LAUNCHES_COUNTED.text in incident.summary


def test_what_was_only_counted_before_does_not_look_as_if_it_had_become_slower(tmp_path: Path) -> None:
    diagnosis = without(tmp_path, (0.1, given_up.LAUNCHES_COUNTED.code), (QUIET_S, ""), script=slow_launches)
    assert causes(diagnosis) == ["unexplained"]


def test_a_loss_may_be_only_what_was_given_up_at_its_own_time(tmp_path: Path) -> None:
    memory, launches = given_up.MEMORY_OFF.code, given_up.LAUNCHES_COUNTED.code
    window = without(tmp_path, (1, memory), (2, launches), (3, "")).window
    case = Window(begin_ns=BEGIN_NS + 2_200_000_000, end_ns=BEGIN_NS + 2_800_000_000)
    with open_reader(tmp_path / "scene.db") as reader:
        reasons = why_not_evaluated(Evidence(reader, window), all_rules(), Part.IDLE, [case])
    assert given_up.BY_CODE[launches].text in reasons
    assert given_up.BY_CODE[memory].text not in reasons


def test_a_short_trial_in_between_takes_no_finding_away(tmp_path: Path) -> None:
    diagnosis = without(tmp_path, (8, given_up.LAUNCHES_COUNTED.code), (8.75, ""), script=slow_launches)
    assert causes(diagnosis) == ["launch-bound"]
    assert time_ranges(diagnosis)["launch-bound"] == [(8.0, 8.75)]


def test_what_an_earlier_recording_gave_up_ended_with_it() -> None:
    """It ended before the window, so that it is not among the sessions that touch it."""
    last = OverheadLevel(
        session=1, time_ns=5, level=6, agent_level=0, not_traced=OFF, reason="", overhead_ratio=0.0, agent_cpu_ratio=0.0
    )
    assert CoverageGaps([last], [], Window(begin_ns=100, end_ns=200)).of(("sync_intervals",)) == {}


def test_time_ranges_that_touch_are_one() -> None:
    parts = [Window(begin_ns=5, end_ns=9), Window(begin_ns=1, end_ns=3), Window(begin_ns=3, end_ns=6)]
    assert joined(parts) == (Window(begin_ns=1, end_ns=9),)


def test_every_code_of_the_limiter_says_which_evidence_it_costs() -> None:
    assert set(given_up.BY_CODE) >= {*CODES.values(), NO_STACKS}
    names = {name for rule in all_rules() for name in (*rule.needs, *rule.improves_with)}
    assert set().union(*(given.evidence for given in given_up.BY_CODE.values())) <= names
