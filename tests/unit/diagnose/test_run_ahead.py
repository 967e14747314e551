"""A loop that runs ahead and waits for the GPU every so many steps: what some of them lose, the wait gets back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis
from ingero.diagnose.steps.pacing import PacedBy
from ingero.store.reader import open_reader
from ingero.store.records import Window
from tests.unit.diagnose.causes.golden import causes, diagnosed_file

LENGTH_S, QUIET_S = 24.0, 12.0
ALL = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + int(LENGTH_S * 1e9))


@dataclass(frozen=True, kw_only=True)
class Logging:
    """A loop of small launches that looks at its loss once in `every` steps: the queue holds all of them."""

    host_ms: float = 2.0
    gpu_ms: float = 6.0
    every: int = 50
    launches: int = 20  # a step: 1,000 between two looks

    def between(self) -> RepeatedStep:
        """A step that waits for nothing."""
        return RepeatedStep(host_ms=self.host_ms, launches=self.launches, noise=0.01)

    def look(self) -> RepeatedStep:
        """The step that waits until the GPU has done what all of them launched."""
        wait_ms = max(self.every * (self.gpu_ms - self.host_ms), 0.3)
        text = f"{self.launches} launches, 2 copies, from cudaMemcpyAsync"
        step = RepeatedStep(host_ms=self.host_ms, blocked={"sync": wait_ms}, launches=self.launches, noise=0)
        return replace(step, step_type=text, syncs=1)


def run_loop(script: ScriptedRun, actor: Actor, begin_s: float, end_s: float, loop: Logging) -> float:
    """Runs the loop in whole turns; answers when it ended, in seconds."""
    between, look = loop.between(), loop.look()
    look_s = (look.host_ms + sum(look.blocked.values())) / 1e3
    between_s = (loop.every - 1) * loop.host_ms / 1e3
    now = begin_s
    while now < end_s:
        add_steps(script, actor, now, now + between_s, between)
        add_steps(script, actor, now + between_s, now + between_s + look_s, look)
        now += between_s + look_s
    return now


def diagnosed(path: Path, usual: Logging, changed: Logging) -> Diagnosis:
    with ScriptedRun(path, seconds=LENGTH_S) as script:
        trainer = script.process(100, "python")
        now = run_loop(script, trainer, 0, QUIET_S, usual)
        run_loop(script, trainer, now, LENGTH_S - 0.5, changed)
    return diagnosed_file(path)


def test_the_gpu_paces_a_loop_whose_wait_is_in_one_step_of_many(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path / "scene.db", Logging(), Logging())
    assert causes(diagnosis) == []
    assert diagnosis.verdicts[0].text.startswith("GPU-bound")
    with open_reader(tmp_path / "scene.db") as reader:
        evidence = Evidence(reader, ALL)
        assert set(evidence.paced_by_type[1].values()) == {PacedBy.GPU}


def test_a_slower_host_that_the_wait_gets_back_loses_nothing(tmp_path: Path) -> None:
    """Each step takes 1 ms longer, the look waits 50 ms less."""
    assert causes(diagnosed(tmp_path / "scene.db", Logging(), Logging(host_ms=3.0))) == []


def test_a_host_that_becomes_slower_than_the_gpu_loses_the_difference(tmp_path: Path) -> None:
    """Turns of 300 ms become turns of 400 ms: only 2 of the 6 ms by which a step took longer are lost."""
    diagnosis = diagnosed(tmp_path / "scene.db", Logging(), Logging(host_ms=8.0))
    (incident,) = diagnosis.incidents
    assert incident.lost_ratio == pytest.approx(100.3 / 400.3, rel=0.05)
    assert all(place.startswith("host") for place in incident.breakdown)


def test_a_slower_gpu_is_the_gpus_doing_though_only_the_look_grows(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path / "scene.db", Logging(), Logging(gpu_ms=8.0))
    (incident,) = diagnosis.incidents
    assert incident.lost_ratio == pytest.approx(2 / 8, rel=0.05)
    assert set(incident.breakdown) == {"blocked.gpu_execution"}


def test_a_hidden_change_beside_a_slower_gpu_is_not_the_hosts(tmp_path: Path) -> None:
    """The host takes 1 ms more, of which nothing is lost; the GPU 2 ms, all of it."""
    diagnosis = diagnosed(tmp_path / "scene.db", Logging(), Logging(host_ms=3.0, gpu_ms=8.0))
    (incident,) = diagnosis.incidents
    assert incident.lost_ratio == pytest.approx(2 / 8, rel=0.05)
    assert set(incident.breakdown) == {"blocked.gpu_execution"}


def test_steps_are_counted_one_by_one(tmp_path: Path) -> None:
    """However they are judged: 166 a second, not 3 turns."""
    diagnosis = diagnosed(tmp_path / "scene.db", Logging(), Logging(gpu_ms=8.0))
    impact = diagnosis.incidents[0].impact
    assert impact is not None
    assert impact.per_s == pytest.approx(1000 / 8, rel=0.05)
    assert impact.baseline_per_s == pytest.approx(1000 / 6, rel=0.05)


def test_a_host_bound_loop_that_logs_is_judged_step_by_step(tmp_path: Path) -> None:
    """Its look waits for next to nothing: there is nothing to get back."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as script:
        trainer = script.process(100, "python")
        run_loop(script, trainer, 0, LENGTH_S - 0.5, Logging(host_ms=6.0, gpu_ms=2.0))
    with open_reader(tmp_path / "scene.db") as reader:
        evidence = Evidence(reader, ALL)
        lengths = np.diff(evidence.gpu_streams[1]["sync_end_ns"])
        assert np.median(lengths) == pytest.approx(6e6, rel=0.05)
        assert set(evidence.paced_by_type[1].values()) == {PacedBy.HOST}


def test_whole_steps_are_joined_as_those_in_short(tmp_path: Path) -> None:
    diagnosed(tmp_path / "scene.db", Logging(), Logging())
    with open_reader(tmp_path / "scene.db") as reader:
        evidence = Evidence(reader, ALL)
        gpu_stream = evidence.gpu_streams[1]
        part = Window(begin_ns=int(gpu_stream["sync_end_ns"][3]), end_ns=int(gpu_stream["sync_end_ns"][9]) + 1)
        whole = evidence.sync_intervals(part, 1)
        apart = reader.steps(Window(begin_ns=int(gpu_stream["prev_sync_end_ns"][3]) + 1, end_ns=part.end_ns), process=1)
    for name in ("prev_sync_end_ns", "sync_end_ns", "busy_ns", "idle_ns", "launches", "step_type"):
        assert (whole[name] == gpu_stream[name][3:10]).all(), name
    assert len(apart) == 7 * 50
    assert _clocks_ns(whole) == _clocks_ns(apart) == int((apart["sync_end_ns"] - apart["prev_sync_end_ns"]).sum())


def _clocks_ns(steps: np.ndarray[Any, np.dtype[Any]]) -> int:
    return sum(int(steps[f"{part}_state_ns"].sum()) for part in ("idle", "launch", "sync"))
