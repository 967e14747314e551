"""Calls of a learning window: what makes them equal, and which of them can mark a step that something interrupts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.decode.call_sequence import MarkerCall, marker_call, regular_marker, search_calls
from ingero.decode.steps import find_steps
from ingero.ops import BY_NAME

Array = np.ndarray[Any, np.dtype[Any]]

RECORD = np.dtype(
    [
        *((name, "<u8") for name in ("start_ns", "duration_ns", "function", "caller", "stream", "size_bytes")),
        *((name, "<u4") for name in ("pid", "tid")),
        *((name, "<u2") for name in ("op", "process_slot")),
        ("pad", "<u4"),
    ]
)
LAUNCH, LAUNCH_EX, COPY, GRAPH, DEVICE_SYNC = (
    BY_NAME[name].id
    for name in (
        "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaGraphLaunch", "cudaDeviceSynchronize"
    )
)  # fmt: skip
TO_GPU, TO_HOST = 1, 2


def records(calls: list[tuple[int, int, int]]) -> Array:
    """Calls (operation, function, caller) of thread 7, 10 us apart."""
    found = np.zeros(len(calls), RECORD)
    found["start_ns"] = np.arange(len(calls)) * 10_000
    found["duration_ns"], found["tid"] = 3_000, 7
    for name, column in zip(("op", "function", "caller"), zip(*calls, strict=True), strict=True):
        found[name] = column
    return found


STEP = [(COPY, TO_GPU, 0x10), *((LAUNCH, 0x100 + kernel, 0x20) for kernel in (1, 2, 3, 2, 3, 4))]


def test_calls_of_one_kernel_or_direction_and_caller_are_equal() -> None:
    calls = [(LAUNCH, 1, 5), (LAUNCH, 1, 5), (LAUNCH, 2, 5), (LAUNCH, 1, 6), (COPY, TO_GPU, 5), (COPY, TO_HOST, 5)]
    keys = search_calls(records(calls))["key"].tolist()
    assert keys[0] == keys[1]
    assert len(set(keys)) == 5


def test_calls_that_returned_late_stand_where_they_began() -> None:
    found = search_calls(records(STEP)[::-1])
    assert found["start_ns"].tolist() == sorted(found["start_ns"].tolist())


def test_a_wait_for_the_device_is_of_no_stream_and_a_graph_no_launch_that_is_given_up() -> None:
    found = search_calls(records([(DEVICE_SYNC, 0, 1), (GRAPH, 0, 1), (LAUNCH, 1, 1)]))
    assert found["stream"].tolist() == [-1, 0, 0]
    assert found["is_enqueue"].tolist() == [False, True, True]
    assert found["is_launch"].tolist() == [False, False, True]


def test_the_marker_of_a_loop_is_its_copy() -> None:
    window = records(STEP * 12)
    found = find_steps(search_calls(window))
    assert found is not None
    best = found.markers[0]
    assert marker_call(window, best.key, best.tid) == MarkerCall(op=COPY, function=TO_GPU, caller=0x10, tid=7)


def marker_of(window: Array, at: int) -> MarkerCall:
    """The marker that the call at this place of a window would be."""
    return marker_call(window, int(search_calls(window)["key"][at]), int(window["tid"][at]))


def test_a_launch_is_told_by_its_kernel_where_no_other_of_its_thread_is_of_that_kernel() -> None:
    assert marker_of(records([(LAUNCH, 1, 5), (LAUNCH, 2, 5)] * 3), 0).is_matched_by_kernel
    assert not marker_of(records([(LAUNCH, 1, 5), (LAUNCH, 1, 6)] * 3), 0).is_matched_by_kernel
    assert not marker_of(records([(LAUNCH, 1, 5), (LAUNCH_EX, 1, 5)] * 3), 0).is_matched_by_kernel
    window = records([(LAUNCH, 1, 5), (LAUNCH, 1, 6)] * 3)
    window["tid"][1::2] = 8
    assert marker_of(window, 0).is_matched_by_kernel


def test_what_is_no_launch_of_a_known_kernel_is_not_told_by_it() -> None:
    for call in ((COPY, TO_GPU, 5), (GRAPH, 7, 5), (LAUNCH, 0, 5)):
        assert not marker_of(records([call, (LAUNCH, 2, 5)] * 3), 0).is_matched_by_kernel


def test_a_loop_that_an_evaluation_interrupts_has_a_marker_all_the_same() -> None:
    evaluation = [(LAUNCH, 0x100 + kernel, 0x20) for kernel in (1, 2, 3, 3)]
    window = records(STEP * 80 + evaluation + STEP * 40)
    calls = search_calls(window)
    found = find_steps(calls)
    assert found is not None
    assert found.period == len(STEP)
    best = regular_marker(calls, found)
    assert best is not None
    assert marker_call(window, best.key, best.tid).op == COPY
