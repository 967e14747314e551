"""When a process's calls are looked at, which steps are believed, and when they are looked for again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.capture.steps.step_learning import WINDOW_NS, LearningPhase, StepLearner
from tests.unit.decode.test_call_sequence import COPY, LAUNCH, STEP, TO_GPU, records

Array = np.ndarray[Any, np.dtype[Any]]

SECOND_NS = 1_000_000_000
TYPE = "6 launches, 1 copies, from cudaMemcpyAsync"


def window(steps: int, step: list[tuple[int, int, int]] = STEP) -> Array:
    """Steps of 1 ms: the calls of each at once, then a pause."""
    found = records(step * steps)
    found["start_ns"] += (np.repeat(np.arange(steps), len(step)) * 1_000_000).astype(np.uint64)
    return found


def learned(step: list[tuple[int, int, int]] = STEP) -> StepLearner:
    """A learner that follows a step it has found and tried."""
    learner = StepLearner(0)
    learner.add_calls(window(20, step), 0)
    learner.search_window(SECOND_NS)
    for _ in range(3):
        learner.step(TYPE, len(step), SECOND_NS)
    return learner


def test_a_process_is_looked_at_from_its_first_call_on() -> None:
    assert StepLearner(0).request().calls > 0


def test_what_repeats_is_tried_and_then_followed() -> None:
    learner = StepLearner(0)
    learner.add_calls(window(20), 0)
    learner.search_window(SECOND_NS)
    assert learner.phase is LearningPhase.TRYING
    assert learner.request().calls == 0
    marker = learner.request().marker
    assert marker is not None
    assert (marker.op, marker.function) == (COPY, TO_GPU)
    assert not learner.is_believed
    for _ in range(3):
        learner.step(TYPE, len(STEP), SECOND_NS)
    assert learner.is_believed


def test_steps_with_half_the_work_of_those_in_the_window_are_not_believed() -> None:
    learner = StepLearner(0)
    learner.add_calls(window(20), 0)
    learner.search_window(SECOND_NS)
    for _ in range(3):
        learner.step(TYPE, len(STEP) // 2, SECOND_NS)
    assert learner.marker is None
    assert learner.phase is LearningPhase.RESTING


def test_a_marker_that_never_comes_is_given_up() -> None:
    learner = StepLearner(0)
    learner.add_calls(window(20), 0)
    learner.search_window(SECOND_NS)
    learner.note_enqueues(1000, 2 * SECOND_NS)
    learner.note_enqueues(1000, 3 * SECOND_NS)
    assert learner.marker is None


def test_work_of_the_second_in_which_a_marker_is_found_is_not_work_without_steps() -> None:
    learner = StepLearner(0)
    learner.add_calls(window(20), 0)
    learner.search_window(SECOND_NS)
    learner.note_enqueues(1000, SECOND_NS + 1)
    assert learner.phase is LearningPhase.TRYING


def test_calls_that_repeat_nothing_are_looked_at_again_later() -> None:
    random = np.random.default_rng(1)
    learner = StepLearner(0)
    calls = [(LAUNCH, int(kernel), 1) for kernel in random.integers(1, 500, 4000)]
    learner.add_calls(records(calls), 0)
    learner.search_window(WINDOW_NS)
    assert learner.phase is LearningPhase.RESTING
    learner.note_enqueues(1000, WINDOW_NS + SECOND_NS)
    assert learner.phase is LearningPhase.RESTING
    learner.note_enqueues(1000, 2 * WINDOW_NS)
    assert learner.phase is LearningPhase.LOOKING


def test_a_silence_behind_the_first_calls_is_no_part_of_the_window() -> None:
    """Models are copied to the GPU, then compiled for a minute, then trained."""
    learner = StepLearner(0)
    learner.add_calls(records([(COPY, TO_GPU, 1)] * 10), 0)
    silent_ns = 2 * WINDOW_NS
    for at_ns in range(SECOND_NS, silent_ns, SECOND_NS):
        learner.note_enqueues(0, at_ns)
        learner.search_window(at_ns)
    assert learner.phase is LearningPhase.LOOKING
    learner.add_calls(window(20), silent_ns)
    learner.search_window(silent_ns)
    assert learner.phase is LearningPhase.TRYING


def test_calls_that_repeat_nothing_are_looked_at_no_longer_for_a_silence_between_them() -> None:
    random = np.random.default_rng(1)
    learner = StepLearner(0)
    for second in range(1, 6):
        calls = [(LAUNCH, int(kernel), 1) for kernel in random.integers(1, 500, 100)]
        learner.add_calls(records(calls), 2 * second * SECOND_NS)
        for at_ns, count in ((2 * second * SECOND_NS, 100), ((2 * second + 1) * SECOND_NS, 0)):
            learner.note_enqueues(count, at_ns)
            learner.search_window(at_ns)
    assert learner.phase is LearningPhase.LOOKING
    learner.note_enqueues(100, 14 * SECOND_NS)
    learner.search_window(14 * SECOND_NS)
    assert learner.phase is LearningPhase.RESTING


def test_work_without_steps_begins_a_new_search_and_a_stall_does_not() -> None:
    learner = learned()
    for second in range(2, 10):
        learner.note_enqueues(0, second * SECOND_NS)
    assert learner.phase is LearningPhase.FOLLOWING
    learner.note_enqueues(500, 10 * SECOND_NS)
    learner.note_enqueues(500, 11 * SECOND_NS)
    assert learner.phase is LearningPhase.LOOKING
    assert learner.is_believed  # what still comes counts


def test_a_second_with_steps_is_no_work_without_steps() -> None:
    learner = learned()
    for second in range(2, 5):
        learner.step(TYPE, len(STEP), second * SECOND_NS)
        learner.note_enqueues(5000, second * SECOND_NS)
    assert learner.phase is LearningPhase.FOLLOWING


def test_steps_of_two_kinds_in_turn_are_parts_of_one() -> None:
    learner = learned()
    for _ in range(64):
        learner.step("half", len(STEP), SECOND_NS)
        learner.step("other half", len(STEP), SECOND_NS)
    assert learner.phase is LearningPhase.LOOKING


def test_steps_of_several_kinds_in_no_order_stay_steps() -> None:
    learner = learned()
    for kind in np.random.default_rng(3).integers(0, 3, 400):
        learner.step(f"shape {kind}", len(STEP), SECOND_NS)
    assert learner.phase is LearningPhase.FOLLOWING


def test_a_search_that_finds_nothing_better_keeps_the_steps_that_still_come() -> None:
    learner = learned()
    for _ in range(64):
        learner.step("half", len(STEP), SECOND_NS)
        learner.step("other half", len(STEP), SECOND_NS)
    marker = learner.marker
    learner.add_calls(records([(LAUNCH, int(one), 1) for one in np.random.default_rng(2).integers(1, 99, 500)]), 0)
    learner.search_window(WINDOW_NS)
    assert (learner.phase, learner.marker) == (LearningPhase.FOLLOWING, marker)


def phases(counts: tuple[int, ...]) -> Array:
    """Steps of 1 ms, between them evaluations that copy nothing."""
    evaluation = [one for one in STEP if one[0] == LAUNCH][:3]
    parts = [part for count in counts for part in (*[STEP] * count, *[evaluation] * 10)]
    found = records([call for part in parts for call in part])
    number = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    found["start_ns"] += (number * 1_000_000).astype(np.uint64)
    return found


def test_a_window_with_several_phases_has_a_marker_and_the_work_of_a_step_without_one() -> None:
    learner = StepLearner(0)
    learner.add_calls(phases((30, 25, 33, 28)), 0)
    learner.search_window(WINDOW_NS)
    assert learner.phase is LearningPhase.TRYING
    marker = learner.request().marker
    assert marker is not None
    assert marker.op == COPY
    for _ in range(3):
        learner.step(TYPE, len(STEP), WINDOW_NS)
    assert learner.is_believed


def test_a_window_in_vain_says_why() -> None:
    learner = StepLearner(0)
    calls = [(LAUNCH, int(kernel), 1) for kernel in np.random.default_rng(1).integers(1, 500, 4000)]
    learner.add_calls(records(calls), 0)
    learner.search_window(WINDOW_NS)
    assert learner.why_not == "nothing repeats in its calls"
