"""However a training loop is built, its epochs agree with the simulated GPU, beside hogs and whatever else runs.

Both sides see the same drains, so it does not matter how long those took.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from ingero.diagnose.accounting import lane_accounts, main_lane
from ingero.events import EpochFlag
from tests.integration.epoch_cases import LEGACY_STREAM, Recording, flagged, recorded, recorded_parts, true_parts
from tests.integration.test_epochs import FAULT_S, both_sides, is_close, print_parts, unseen_ns

pytestmark = pytest.mark.integration

SHAPES = {
    "ordered copy stream": ("--streams", "ordered"),
    "unordered copy stream": ("--streams", "unordered"),
    "event": ("--drain", "event"),
    "blocking copy": ("--drain", "memcpy"),
    "autograd thread": ("--autograd-thread",),
    "bystander threads": ("--bystanders", "2"),
}


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recording]:
    """Each shape of loop once, beside four hogs."""

    @cache
    def run_once(name: str) -> Recording:
        with recorded(tmp_path_factory.mktemp("shape"), "block", *SHAPES[name]) as (run, recordings):
            run.phase("hogs", FAULT_S, run.hogs())
        return recordings[0]

    return run_once


@pytest.mark.parametrize("name", SHAPES)
def test_every_lane_agrees_with_the_simulator(shaped: Callable[[str], Recording], name: str) -> None:
    recording = shaped(name)
    streams = [int(stream) for stream in np.unique(recording.truth.drains["stream"])]
    assert {LEGACY_STREAM if stream == 1 else stream for stream in streams} == set(recording.epochs["stream"].tolist())
    for stream in streams:
        assert len(recording.lane(stream)) == len(recording.drains(stream))
        epochs, drains = both_sides(recording, stream, "hogs")
        found, true = recorded_parts(epochs), true_parts(epochs, drains)
        print_parts(f"{name}, stream {stream:#x}", epochs, found, true)
        unseen = unseen_ns(recording, "hogs", epochs)
        assert is_close(found.empty_ns, true.empty_ns, found.wall_ns)
        assert is_close(found.busy_ns, true.busy_ns, found.wall_ns, unseen)
        assert is_close(found.late_ns, true.late_ns, found.wall_ns, unseen)


@pytest.mark.parametrize("name", SHAPES)
def test_epochs_of_the_training_loop_are_of_one_class(shaped: Callable[[str], Recording], name: str) -> None:
    _, counts = np.unique(shaped(name).main_lane("hogs")["class_key"], return_counts=True)
    assert counts.max() >= 0.98 * counts.sum()


def test_an_epoch_with_work_of_another_stream_uncovered_is_partial(shaped: Callable[[str], Recording]) -> None:
    unordered = shaped("unordered copy stream").main_lane("hogs")
    ordered = shaped("ordered copy stream").main_lane("hogs")
    assert flagged(unordered, EpochFlag.PARTIAL) == len(unordered)
    assert flagged(ordered, EpochFlag.PARTIAL) == 0


def test_an_autograd_thread_leaves_the_path_to_the_draining_thread(shaped: Callable[[str], Recording]) -> None:
    epochs = shaped("autograd thread").main_lane()
    assert flagged(epochs, EpochFlag.E_OTHER_THREAD | EpochFlag.X_OTHER_THREAD) == 0


def test_bystanders_do_not_become_the_main_lane(shaped: Callable[[str], Recording]) -> None:
    recording = shaped("bystander threads")
    accounts = lane_accounts(recording.epochs)
    assert len(accounts) == 3
    main = main_lane(accounts, int(recording.epochs["process"][0]))
    assert main is not None
    assert main.stream == LEGACY_STREAM
