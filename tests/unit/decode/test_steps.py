"""What repeats in the calls of a program: steps, their boundaries, and the call that marks them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from ingero.decode.steps import CALL_DTYPE, FoundSteps, find_steps

Array = np.ndarray[Any, np.dtype[Any]]

CALL_NS = 5_000
COPY, SYNC = 1_000, 2_000
MAIN, AUTOGRAD = 10, 11


def calls(keys: Iterable[int], *, pauses_ns: dict[int, int] | None = None, tid: int = MAIN) -> Array:
    """Calls one after the other, of CALL_NS each. pauses_ns: the host's time before each call with a key."""
    rows, now = [], 0
    for key in keys:
        now += (pauses_ns or {}).get(key, CALL_NS)
        rows.append((now, now + CALL_NS, key, tid, -1 if key == SYNC else 7, key != SYNC, key < COPY))
        now += CALL_NS
    return np.array(rows, CALL_DTYPE)


def found(made: Array) -> FoundSteps:
    steps = find_steps(made)
    assert steps is not None
    return steps


FORWARD = [1, 2, 3, 2, 3, 2, 3, 4]
BACKWARD = [14, 13, 12, 13, 12, 11]
STEP = [COPY, *FORWARD, *BACKWARD, 20]


def test_a_training_loop_without_any_wait_has_its_steps() -> None:
    steps = found(calls(STEP * 10))
    assert (steps.count, steps.period, steps.match) == (10, len(STEP), 1.0)


def test_a_step_begins_when_the_last_call_of_the_one_before_has_returned() -> None:
    made = calls(STEP * 6, pauses_ns={COPY: 1_000_000})
    steps = found(made)
    assert steps.cut_ns[1:].tolist() == made["end_ns"][len(STEP) - 1 :: len(STEP)].tolist()
    assert made["key"][steps.first].tolist() == [COPY] * 6


def test_calls_that_begin_in_mid_step_are_cut_where_the_host_pauses_longest() -> None:
    made = calls((STEP * 8)[5:-3], pauses_ns={COPY: 1_000_000})
    steps = found(made)
    assert steps.count == 6  # whole ones: of the first the begin, of the last the end was not seen
    assert set(made["key"][steps.first].tolist()) == {COPY}


def test_a_call_that_is_no_launch_and_comes_once_a_step_is_the_marker() -> None:
    first, *rest = found(calls(STEP * 10)).markers
    assert (first.key, first.is_launch) == (COPY, False)
    assert all(marker.is_launch for marker in rest)


def test_a_call_that_comes_several_times_a_step_is_no_marker() -> None:
    markers = {marker.key for marker in found(calls(STEP * 10)).markers}
    assert markers == set(STEP) - {2, 3, 12, 13}


def test_a_wait_in_mid_step_is_a_marker_like_any_other_call() -> None:
    made = calls([COPY, *FORWARD, SYNC, *BACKWARD] * 5)
    steps = found(made)
    assert steps.period == len(FORWARD) + len(BACKWARD) + 1  # of what was enqueued
    assert {marker.key for marker in steps.markers if not marker.is_launch} == {COPY, SYNC}


def test_the_layers_of_a_token_are_not_its_steps() -> None:
    token = [COPY, *[1, 2, 3, 4] * 60, 5, 6]
    steps = found(calls(token * 4))
    assert steps.period == len(token)


def test_the_layers_of_a_single_pass_are_no_steps() -> None:
    assert find_steps(calls([8, 9, *[1, 2, 3, 4] * 60, 5, 6])) is None


def test_accumulated_gradients_are_one_step_with_its_optimizer() -> None:
    micro = [*FORWARD, *BACKWARD]
    steps = found(calls([*micro * 4, 20, 21, 22] * 6))
    assert steps.period == 4 * len(micro) + 3


DROP = COPY + 1  # copied to the host


@pytest.mark.parametrize("every", [5, 10, 50])
def test_a_look_at_the_drop_now_and_then_makes_no_turn_of_so_many_steps(every: int) -> None:
    steps = found(calls(([*STEP * every, DROP, SYNC]) * 6))
    assert steps.period == len(STEP)
    assert steps.count in (6 * every - 1, 6 * every)


def test_neither_does_it_in_a_loop_of_launches_alone() -> None:
    steps = found(calls([*(STEP[1:] * 10), DROP, SYNC] * 6))
    assert steps.period == len(STEP) - 1


def test_several_values_that_are_read_at_once_make_no_turn_either() -> None:
    long = [COPY, *range(1, 60)]
    steps = found(calls([*(long * 10), DROP, SYNC, DROP, SYNC] * 6))
    assert (steps.period, steps.match) == (len(long), 1.0)


def test_steps_of_two_kinds_in_no_order_are_cut_by_a_call_of_both() -> None:
    kinds = ([COPY, *FORWARD, 20], [COPY, *FORWARD, *FORWARD, 5, 20])
    order = np.random.default_rng(3).integers(0, 2, 60)
    made = calls([key for kind in order.tolist() for key in kinds[kind]], pauses_ns={COPY: 50_000})
    steps = found(made)
    seen = order[1:-1]  # of the first the begin, of the last the end was not seen
    assert steps.count == len(seen)
    assert len(set(zip(steps.kind.tolist(), seen.tolist(), strict=True))) == 2


def test_a_first_step_that_does_more_is_left_out_of_the_comparison() -> None:
    steps = found(calls([*range(30, 60), *STEP * 40]))
    assert steps.period == len(STEP)


def test_two_repeats_are_not_enough() -> None:
    assert find_steps(calls(STEP * 2)) is None


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_few_calls_are_no_steps(count: int) -> None:
    assert find_steps(calls(range(count))) is None


def test_calls_in_no_order_are_no_steps() -> None:
    assert find_steps(calls(np.random.default_rng(1).integers(0, 50, 4000).tolist())) is None


def test_the_stream_with_most_enqueues_is_compared() -> None:
    made = calls(STEP * 10)
    made["stream"][made["key"] == COPY] = 9
    steps = found(made)
    assert (steps.stream, steps.period, steps.count) == (7, len(STEP) - 1, 10)
    assert steps.markers[0].key == COPY


def test_two_threads_that_launch_in_turn_are_one_sequence() -> None:
    made = calls(STEP * 10)
    made["tid"][np.isin(made["key"], BACKWARD)] = AUTOGRAD
    steps = found(made)
    assert steps.count == 10
    assert {marker.tid for marker in steps.markers} == {MAIN, AUTOGRAD}


EVALUATION = [*FORWARD, 30]
SHAPES = ([COPY, *FORWARD, *BACKWARD, 20], [COPY, *FORWARD, 5, 6, *BACKWARD, 20], [COPY, *FORWARD, 7, *BACKWARD, 20])


def in_phases(steps: list[int], other: list[int], counts: Iterable[int]) -> Array:
    """So many steps, then other work, and so on."""
    return calls([key for count in counts for key in (*steps * count, *other)], pauses_ns={COPY: 50_000})


def test_training_and_evaluation_in_turn_have_the_steps_of_the_training() -> None:
    counts = (40, 37, 44)
    steps = found(in_phases(STEP, [*EVALUATION * 20, SYNC], counts))
    usual = np.bincount(steps.kind).max()
    assert usual == sum(counts) - len(counts)  # behind the last step of a phase comes the evaluation
    assert steps.period == len(STEP)
    assert [(marker.key, marker.is_launch) for marker in steps.markers] == [(COPY, False)]


def test_phases_that_are_all_alike_are_no_steps_themselves() -> None:
    steps = found(in_phases(STEP, [COPY + 1, *EVALUATION] * 20, (40, 40, 40, 40)))
    assert (steps.period, steps.markers[0].key) == (len(STEP), COPY)
    assert steps.count == 159


def test_evaluations_that_copy_their_batch_as_well_have_steps_of_their_own_kind() -> None:
    steps = found(in_phases(STEP, [COPY, *EVALUATION] * 20, (40, 37, 44)))
    assert steps.markers[0].key == COPY
    assert len(set(steps.kind.tolist())) == 2
    assert steps.count == 121 + 60 - 2  # of the first the begin, of the last the end was not seen


def test_steps_of_several_shapes_between_evaluations_are_cut_by_the_copy_of_their_batch() -> None:
    order = np.random.default_rng(5).integers(0, 3, 121).tolist()
    keys: list[int] = []
    for step, shape in enumerate(order):
        keys += [*SHAPES[shape], *(EVALUATION * 15 if step in {39, 76, 120} else [])]
    steps = found(calls(keys, pauses_ns={COPY: 50_000}))
    assert (steps.period, steps.markers[0].key) == (0, COPY)
    assert steps.count == 120
    assert sorted(np.bincount(steps.kind).tolist())[:-3] == [2]  # those with an evaluation behind them


def test_accumulated_gradients_between_evaluations_are_a_step_with_their_optimizer() -> None:
    turn = [*[COPY, *FORWARD, *BACKWARD] * 4, 20, 21, 22]
    steps = found(in_phases(turn, EVALUATION * 20, (12, 10, 13)))
    assert steps.period == len(turn)
    assert np.bincount(steps.kind).max() == 35 - 3


def test_a_short_unmarked_phase_every_few_steps_hides_no_marker() -> None:
    """Logging that launches something now and then, never the same number of times."""
    keys: list[int] = []
    for count in (5, 7, 4, 6, 9, 5, 3, 8, 5, 6, 7):
        keys += [*STEP * count, *[60 + count % 3] * (count % 4 + 1)]
    steps = found(calls(keys, pauses_ns={COPY: 50_000}))
    assert steps.markers[0].key == COPY
    assert np.bincount(steps.kind).max() == 65 - 11


def test_calls_between_which_nothing_comes_again_mark_nothing() -> None:
    """A copy every now and then among launches in no order."""
    random = np.random.default_rng(4)
    keys: list[int] = []
    for _ in range(60):
        keys += [COPY, *random.integers(0, 40, int(random.integers(10, 40))).tolist()]
    assert find_steps(calls(keys)) is None
