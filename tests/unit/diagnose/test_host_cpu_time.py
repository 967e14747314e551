"""How many samples are more than chance, and which samples a case is judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingero.demo.scene import ScriptedRun, Step
from ingero.diagnose.cases.case_search import find_cases
from ingero.diagnose.cases.host_cpu_time import is_more
from ingero.diagnose.evidence.evidence import Evidence
from ingero.store.reader import open_reader
from tests.unit.diagnose.causes.golden import LENGTH_S


@pytest.mark.parametrize(
    ("count", "usual", "scale", "expected"),
    [
        (9, 0, 1.2, True),
        (8, 1, 1.2, False),  # of a labeled run: nothing had changed
        (11, 1, 1.7, False),  # of another
        (45, 2, 3.8, True),
        (20, 0, 3.8, True),
        (19, 0, 3.8, False),
        (3000, 1000, 2.0, True),
        (2400, 1000, 2.0, False),  # beyond chance, but too little
        (5, 0, 0.0, True),  # the part that lost is nothing beside the reference, and has them all
    ],
)
def test_what_two_counts_may_differ_by(count: int, usual: int, scale: float, *, expected: bool) -> None:
    assert is_more(count, usual, scale) is expected


def test_equal_rates_are_told_apart_in_one_of_a_hundred_at_most() -> None:
    random, runs, scale = np.random.default_rng(1), 4000, 1.7
    for usual in (1, 5, 20):
        pairs = zip(random.poisson(usual * scale, runs).tolist(), random.poisson(usual, runs).tolist(), strict=True)
        assert sum(is_more(now, before, scale) for now, before in pairs) <= 0.012 * runs


def test_a_bottleneck_of_many_intervals_is_judged_by_the_samples_in_all_of_them(tmp_path: Path) -> None:
    """8,000 of 30,000 intervals are read; a quarter of the samples would be in them."""
    path, period_s = tmp_path / "scene.db", 0.02
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, LENGTH_S, Step(idle_ms=0.3, launch_ms=0.02, busy_ms=0.05, launches=1))
        times = np.arange(0, LENGTH_S - 1, period_s).tolist()
        for at_s in times:
            run.sample(trainer, at_s, (("/srv/job/train.py", 90, "main"),), ms=1000 * period_s)
    with open_reader(path) as reader:
        window = reader.window(None, run.at(LENGTH_S))
        assert window is not None
        (case,) = find_cases(Evidence(reader, window))
        groups = case.host_sample_groups
        assert case.is_sampled
        assert sum(group.count for group in groups.now) == len(times)
        assert sum(group.ns for group in groups.now) * case.scale == pytest.approx(LENGTH_S * 1e9, rel=0.15)
