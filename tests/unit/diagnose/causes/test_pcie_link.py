"""pcie-link: decided by what the driver says of the link; where that has not changed the bytes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed_file

SIZE = 16 << 20
Width = tuple[int, int]


def scene_of(folder: Path, now: Width | None, *, before: Width | None = (4, 16), busy_ms: float = 9.6) -> Path:
    """Each step copies 16 MiB, which takes 0.67 ms over 16 lanes of generation 4, and over one lane 10.6 ms."""
    path = folder / "link.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer: Actor = run.process(100, "python")
        for second in range(int(LENGTH_S)):
            run.gpu(second + 0.5, link=before if second < QUIET_S else now)
        run.train(trainer, 0, QUIET_S, Step(size_bytes=SIZE))
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=busy_ms, size_bytes=SIZE))
    return path


def test_fewer_lanes_are_named_with_the_bytes_that_go_over_them(tmp_path: Path) -> None:
    diagnosis = diagnosed_file(scene_of(tmp_path, (4, 2)))
    assert causes(diagnosis) == ["pcie-link"]
    (incident,) = diagnosis.incidents
    expected = (
        "is of generation 4 with 2 lanes, before generation 4 with 16 lanes: 16.0 MiB are copied over it per step"
    )
    assert expected in incident.summary
    assert incident.lost_ratio == pytest.approx(3.6 / 10.15, rel=0.05)


def test_a_generation_that_only_an_idle_gpu_lowers_is_no_reason(tmp_path: Path) -> None:
    """At its fastest it is as fast as before."""
    path = tmp_path / "idle.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for second in range(int(LENGTH_S)):
            run.gpu(second + 0.5, link=(1 if second % 2 else 4, 16))
        run.train(trainer, 0, QUIET_S, Step(size_bytes=SIZE))
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=9, size_bytes=SIZE))
    diagnosis = diagnosed_file(path)
    assert causes(diagnosis) == ["gpu-slower"]
    summary = diagnosis.incidents[0].summary
    copied = "or the link to it (16.0 MiB are copied in each step, of generation 4 with 16 lanes as before), took"
    assert copied in summary


def test_where_nothing_is_known_of_the_link_the_bytes_are_named_as_what_may_be_slower(tmp_path: Path) -> None:
    diagnosis = diagnosed_file(scene_of(tmp_path, None, before=None))
    assert causes(diagnosis) == ["gpu-slower"]
    assert "or the link to it (16.0 MiB are copied in each step), took" in diagnosis.incidents[0].summary


def test_a_narrower_link_does_not_own_what_its_bytes_cannot_take(tmp_path: Path) -> None:
    """16 MiB take 0.67 ms longer over half of the lanes; the steps take 54 ms more."""
    assert causes(diagnosed_file(scene_of(tmp_path, (4, 8), busy_ms=60))) == ["gpu-slower"]
