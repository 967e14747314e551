"""However a training loop is built, its sync intervals agree with the simulated GPU, beside hogs and whatever else
runs.

Both sides see the same syncs, so it does not matter how long those took.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from ingero.diagnose.accounting import main_stream, stream_breakdowns
from ingero.events import SyncIntervalFlag
from tests.integration.sync_interval_cases import (
    LEGACY_STREAM,
    Recording,
    flagged,
    recorded,
    recorded_parts,
    true_parts,
)
from tests.integration.test_sync_intervals import both_sides, is_close, print_parts, unseen_ns

pytestmark = pytest.mark.integration

HOGS_S = 1.5  # some 20 sync intervals, each of which has its truth
SHAPES = {
    "ordered copy stream": ("--streams", "ordered"),
    "unordered copy stream": ("--streams", "unordered"),
    "event": ("--sync", "event"),
    "blocking copy": ("--sync", "memcpy"),
    "autograd thread": ("--autograd-thread",),
    "bystander threads": ("--bystanders", "2"),
}


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recording]:
    """Each shape of loop once, beside four hogs."""

    @cache
    def run_once(name: str) -> Recording:
        with recorded(tmp_path_factory.mktemp("shape"), "block", *SHAPES[name]) as (run, recordings):
            run.phase("hogs", HOGS_S, run.hogs())
        return recordings[0]

    return run_once


@pytest.mark.parametrize("name", SHAPES)
def test_every_gpu_stream_agrees_with_the_simulator(shaped: Callable[[str], Recording], name: str) -> None:
    recording = shaped(name)
    streams = [int(stream) for stream in np.unique(recording.truth.interval_ends["stream"])]
    assert {LEGACY_STREAM if stream == 1 else stream for stream in streams} == set(
        recording.sync_intervals["stream"].tolist()
    )
    for stream in streams:
        assert len(recording.gpu_stream(stream)) == len(recording.syncs(stream))
        sync_intervals, syncs = both_sides(recording, stream, "hogs")
        found, true = recorded_parts(sync_intervals), true_parts(sync_intervals, syncs)
        print_parts(f"{name}, stream {stream:#x}", sync_intervals, found, true)
        unseen = unseen_ns(recording, "hogs", sync_intervals)
        assert is_close(found.idle_ns, true.idle_ns, found.wall_ns)
        assert is_close(found.busy_ns, true.busy_ns, found.wall_ns, unseen)
        assert is_close(found.return_delay_ns, true.return_delay_ns, found.wall_ns, unseen)


@pytest.mark.parametrize("name", SHAPES)
def test_sync_intervals_of_the_training_loop_are_of_one_class(shaped: Callable[[str], Recording], name: str) -> None:
    _, counts = np.unique(shaped(name).main_stream("hogs")["step_type"], return_counts=True)
    assert counts.max() >= 0.98 * counts.sum()


def test_an_sync_interval_with_work_of_another_stream_uncovered_is_partial(shaped: Callable[[str], Recording]) -> None:
    unordered = shaped("unordered copy stream").main_stream("hogs")
    ordered = shaped("ordered copy stream").main_stream("hogs")
    assert flagged(unordered, SyncIntervalFlag.PARTIAL) == len(unordered)
    assert flagged(ordered, SyncIntervalFlag.PARTIAL) == 0


def test_an_autograd_thread_leaves_the_path_to_the_draining_thread(shaped: Callable[[str], Recording]) -> None:
    sync_intervals = shaped("autograd thread").main_stream()
    assert flagged(sync_intervals, SyncIntervalFlag.IDLE_OTHER_THREAD | SyncIntervalFlag.LAUNCH_OTHER_THREAD) == 0


def test_bystanders_do_not_become_the_main_gpu_stream(shaped: Callable[[str], Recording]) -> None:
    recording = shaped("bystander threads")
    breakdowns = stream_breakdowns(recording.sync_intervals)
    assert len(breakdowns) == 3
    main = main_stream(breakdowns, int(recording.sync_intervals["process"][0]))
    assert main is not None
    assert main.stream == LEGACY_STREAM
