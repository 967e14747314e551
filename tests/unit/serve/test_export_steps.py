"""Steps on a timeline: a track per process, of those that have any, with lengths and work as recorded."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.ops import BY_NAME
from ingero.serve.export.model import Slice, Track
from ingero.serve.export.timeline import timeline
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.store.streaming.streams import Streams
from ingero.store.writing import tables

MS = 1_000_000
ALL = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 3_000 * MS)
REPEATED = RepeatedStep(host_ms=6.0, blocked={"launch": 3.0, "copy": 1.0}, noise=0)


def exported(path: Path, pid: int | None = None) -> tuple[dict[int, Track], list[Slice]]:
    with open_reader(path) as reader:
        streams = Streams(reader, ALL, pid=pid)
        assert streams.first_ns() == BEGIN_NS
        items = list(timeline(streams, lambda _title, _share: None))
    tracks = {one.number: one for one in items if isinstance(one, Track)}
    return tracks, [one for one in items if isinstance(one, Slice) and one.category == "step"]


def test_the_steps_of_a_process_are_one_track_of_it(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=3) as run:
        add_steps(run, run.process(100, "python"), 0, 2, REPEATED)
        run.train(run.process(200, "synced"), 0, 2, Step())
    tracks, steps = exported(path)
    assert len(steps) == 200
    assert {one.duration_ns for one in steps} == {10 * MS}
    (track,) = {one.track for one in steps}
    assert tracks[track].name == "steps, found by repetition"
    assert tracks[tracks[track].parent].pid == 100
    assert {name for one in tracks.values() if "sync intervals" in (name := one.name)} == {
        "GPU 0, stream 0x0: sync intervals"
    }
    args = dict(steps[0].args)
    assert steps[0].name == "step: 153 launches, 1 copies, from cudaMemcpyAsync"
    assert (args["how"], args["marker_op"], args["launches"]) == ("repetition", "cudaMemcpyAsync", 153)
    assert (args["blocked_ns"], args["blocked_launch_ns"], args["blocked_copy_ns"]) == (4 * MS, 3 * MS, 1 * MS)


def test_steps_that_overlap_by_the_error_of_a_clock_stay_on_their_track(tmp_path: Path) -> None:
    path, copy = tmp_path / "scene.db", BY_NAME["cudaMemcpyAsync"]
    with ScriptedRun(path, seconds=3) as run:
        trainer = run.process(100, "python")
        of_trainer = {"process": trainer.number, "pid": 100, "tid": 100, "source": int(copy.source), "op": copy.code}
        for number in range(3):
            begin_ns = BEGIN_NS + number * 10 * MS
            times = {"start_ns": begin_ns - 40 * bool(number), "end_ns": begin_ns + 10 * MS}
            run.append(tables.STEPS, **of_trainer, **times, how=run.text("repetition"))
    _, steps = exported(path)
    assert len({one.track for one in steps}) == 1
    assert [(one.start_ns - BEGIN_NS, one.duration_ns) for one in steps] == [(n * 10 * MS, 10 * MS) for n in range(3)]


def test_a_kind_of_step_that_nobody_knows_is_shown_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=3) as run:
        trainer = run.process(100, "python")
        of_trainer = {
            "process": trainer.number,
            "pid": 100,
            "tid": 100,
            "how": run.text("told; by\x1b[31m a stranger"),
        }
        run.append(tables.STEPS, **of_trainer, start_ns=BEGIN_NS, end_ns=BEGIN_NS + MS)
    _, (step,) = exported(path)
    assert dict(step.args)["how"] == "repetition"
