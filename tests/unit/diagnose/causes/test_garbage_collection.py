"""garbage-collection: samples of the feeding thread in which its interpreter collects."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

LOOP = (("/srv/job/train.py", 92, "main"),)
EVERY = 5


def collecting(run: ScriptedRun, trainer: Actor, *, is_collecting: bool = True) -> None:
    """4 ms before each step, marked as a collection or not."""
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))[::EVERY]:
        run.sample(trainer, begin + 0.002, LOOP, is_collecting=is_collecting)


def test_collections_are_named_with_the_line_they_began_at(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, collecting)
    assert causes(diagnosis) == ["garbage-collection"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(4 / 10.55, rel=0.05)
    assert str(incident.line) == "main() at /srv/job/train.py:92"


def test_the_same_line_without_the_mark_is_no_collection(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: collecting(run, trainer, is_collecting=False))
    assert causes(diagnosis) == ["host-bound"]


def test_without_samples_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, collecting, not_traced={"stack_samples": "switched off (stack)"})
    assert causes(diagnosis) == ["unexplained"]
    assert "garbage-collection" in {one.cause for one in diagnosis.not_evaluated}
