"""Digests say of the sync intervals of a stream what the sync intervals themselves say."""

from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.demo.scene import ScriptedRun, Step
from ingero.store.arrays.arrays import GPU_STREAM_DTYPE
from ingero.store.arrays.gpu_streams import read_gpu_streams
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window

LENGTH_S = 3.0


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, LENGTH_S, Step(idle={"sleep": 0.2}))
        run.train(trainer, 0, LENGTH_S, Step(launches=500, busy_ms=40), stream=7)
    return path


def whole(reader: Reader) -> Window:
    window = reader.window(None, 0)
    assert window is not None
    return window


def without_digests(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("DELETE FROM raw_sync_interval_digest")
    db.close()


def test_a_digest_holds_what_the_sync_intervals_hold(recording: Path) -> None:
    with open_reader(recording) as reader:
        gpu_streams, sync_intervals = reader.gpu_streams(whole(reader)), reader.sync_intervals(whole(reader))
    assert len(gpu_streams) == 2
    for gpu_stream in gpu_streams:
        mine = sync_intervals[sync_intervals["stream"] == gpu_stream.stream]
        for name in set(GPU_STREAM_DTYPE.names or ()) - {"syncs", "joined"}:  # of steps by repetition only
            expected = mine["idle_state_ns"][:, 4] if name == "idle_sleep_ns" else mine[name]
            assert np.array_equal(gpu_stream.sync_intervals[name], expected), name


def test_a_file_without_digests_answers_the_same(recording: Path) -> None:
    with open_reader(recording) as reader:
        window = whole(reader)
        by_digest = {gpu_stream.stream: gpu_stream.sync_intervals for gpu_stream in reader.gpu_streams(window)}
    without_digests(recording)
    with open_reader(recording) as reader:
        by_rows = {gpu_stream.stream: gpu_stream.sync_intervals for gpu_stream in reader.gpu_streams(window)}
        assert reader.gpu_stream_sums(window) is None
    assert all(np.array_equal(by_digest[stream], by_rows[stream]) for stream in by_digest)


def test_a_gpu_stream_ends_with_its_window(recording: Path) -> None:
    with open_reader(recording) as reader:
        window = whole(reader)
        half = Window(begin_ns=window.begin_ns, end_ns=window.begin_ns + 1_000_000_000)
        assert (
            max(
                gpu_stream.sync_intervals["sync_end_ns"].max()
                for gpu_stream in read_gpu_streams(reader.connection, half)
            )
            < half.end_ns
        )


def test_the_sums_of_a_gpu_stream_are_those_of_its_sync_intervals(recording: Path) -> None:
    with open_reader(recording) as reader:
        sums = {one.stream: one for one in reader.gpu_stream_sums(whole(reader)) or ()}
        sync_intervals = reader.sync_intervals(whole(reader))
    for stream, one in sums.items():
        mine = sync_intervals[sync_intervals["stream"] == stream]
        assert one.sums["sync_intervals"] == len(mine)
        assert one.sums["wall_ns"] == (mine["sync_end_ns"] - mine["prev_sync_end_ns"]).sum()
        assert one.sums["busy_ns"] == mine["busy_ns"].sum()
        assert np.array_equal(one.states_ns[2], mine["sync_state_ns"].sum(axis=0))
