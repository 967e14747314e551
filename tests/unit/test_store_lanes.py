"""Digests say of the epochs of a lane what the epochs themselves say."""

from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.demo.scene import Scene, Step
from ingero.store.arrays import LANE_DTYPE
from ingero.store.lanes import read_lanes
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window

LENGTH_S = 3.0


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "scene.db"
    with Scene(path, seconds=LENGTH_S) as scene:
        trainer = scene.process(100, "python")
        scene.train(trainer, 0, LENGTH_S, Step(empty={"sleep": 0.2}))
        scene.train(trainer, 0, LENGTH_S, Step(launches=500, busy_ms=40), stream=7)
    return path


def whole(reader: Reader) -> Window:
    window = reader.window(None, 0)
    assert window is not None
    return window


def without_digests(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM raw_epoch_digest")
    db.close()


def test_a_digest_holds_what_the_epochs_hold(recording: Path) -> None:
    with open_reader(recording) as reader:
        lanes, epochs = reader.lanes(whole(reader)), reader.epochs(whole(reader))
    assert len(lanes) == 2
    for lane in lanes:
        mine = epochs[epochs["stream"] == lane.stream]
        for name in set(LANE_DTYPE.names or ()) - {"syncs", "joined"}:  # of steps by repetition only
            expected = mine["empty_clock_ns"][:, 4] if name == "empty_sleep_ns" else mine[name]
            assert np.array_equal(lane.epochs[name], expected), name


def test_a_file_without_digests_answers_the_same(recording: Path) -> None:
    with open_reader(recording) as reader:
        window = whole(reader)
        by_digest = {lane.stream: lane.epochs for lane in reader.lanes(window)}
    without_digests(recording)
    with open_reader(recording) as reader:
        by_rows = {lane.stream: lane.epochs for lane in reader.lanes(window)}
        assert reader.lane_sums(window) is None
    assert all(np.array_equal(by_digest[stream], by_rows[stream]) for stream in by_digest)


def test_a_lane_ends_with_its_window(recording: Path) -> None:
    with open_reader(recording) as reader:
        window = whole(reader)
        half = Window(begin_ns=window.begin_ns, end_ns=window.begin_ns + 1_000_000_000)
        assert max(lane.epochs["b_ns"].max() for lane in read_lanes(reader.connection, half)) < half.end_ns


def test_the_sums_of_a_lane_are_those_of_its_epochs(recording: Path) -> None:
    with open_reader(recording) as reader:
        sums = {one.stream: one for one in reader.lane_sums(whole(reader)) or ()}
        epochs = reader.epochs(whole(reader))
    for stream, one in sums.items():
        mine = epochs[epochs["stream"] == stream]
        assert one.sums["epochs"] == len(mine)
        assert one.sums["wall_ns"] == (mine["b_ns"] - mine["a_ns"]).sum()
        assert one.sums["x_ns"] == mine["x_ns"].sum()
        assert np.array_equal(one.clocks_ns[2], mine["drain_clock_ns"].sum(axis=0))
