"""A synced stream beside another with more launches is not the GPU; one that is merely accompanied is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingero.demo.scene import ScriptedRun, Step
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.steps.main_stream import judged_alone
from ingero.events import SyncIntervalFlag
from ingero.store.arrays import arrays
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.reader import open_reader

COPIES, COMPUTE = 0x20, 0x10


def gpu_stream(stream: int, *, launches: int, partial: float, process: int = 1, count: int = 10) -> GpuStream:
    """A stream with so many launches, of whose intervals that share was cut short."""
    sync_intervals = np.zeros(count, arrays.GPU_STREAM_DTYPE)
    sync_intervals["launches"] = launches // count
    sync_intervals["flags"][: round(partial * count)] = SyncIntervalFlag.PARTIAL
    return GpuStream(process=process, pid=100, device=0, stream=stream, sync_intervals=sync_intervals)


def judged(*gpu_streams: GpuStream, launches: int) -> list[int]:
    """The streams that are judged, of a process with so many launches."""
    return [one.stream for one in judged_alone(gpu_streams, lambda _process: launches)]


@pytest.mark.parametrize(
    ("partial", "launches", "streams"),
    [
        (1.0, 1000, []),  # the other 990 are on a stream that nobody waits for
        (0.4, 1000, [COPIES]),  # at most of its ends nothing else was under way
        (1.0, 15, [COPIES]),  # the other stream does less
    ],
)
def test_a_stream_is_judged_unless_others_cut_it_short_and_launch_more(
    partial: float, launches: int, streams: list[int]
) -> None:
    assert judged(gpu_stream(COPIES, launches=10, partial=partial), launches=launches) == streams


def test_streams_that_are_all_waited_for_are_all_judged() -> None:
    """Three threads with a stream each: at any end the two others are at work."""
    gpu_streams = [gpu_stream(stream, launches=1000, partial=1.0) for stream in (1, 2, 3)]
    assert judged(*gpu_streams, launches=3000) == [1, 2, 3]


def test_another_process_is_not_asked_how_much_it_launches() -> None:
    mine, theirs = gpu_stream(1, launches=10, partial=1.0), gpu_stream(2, launches=10, partial=0.0, process=2)
    assert judged_alone([mine, theirs], {1: 1000.0}.__getitem__) == [theirs]


def test_a_synced_copy_stream_beside_an_unsynced_compute_stream_is_not_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "streams.db"
    with ScriptedRun(path, seconds=4) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, 4, Step(busy_ms=1, idle_ms=9, launches=1, flags=SyncIntervalFlag.PARTIAL), stream=COPIES)
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        assert window is not None
        assert Evidence(reader, window).main_streams == {}


def test_a_compute_stream_is_the_gpu_however_often_copies_are_under_way(tmp_path: Path) -> None:
    path = tmp_path / "streams.db"
    with ScriptedRun(path, seconds=4) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, 4, Step(busy_ms=9, launches=80, flags=SyncIntervalFlag.PARTIAL), stream=COMPUTE)
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        assert window is not None
        assert {one.stream for one in Evidence(reader, window).main_streams.values()} == {COMPUTE}
