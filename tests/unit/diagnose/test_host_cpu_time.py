"""How many samples are more than chance, and how much time they claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingero.demo.scene import ScriptedRun, Step
from ingero.diagnose.cases.case_search import find_cases
from ingero.diagnose.cases.host_cpu_time import claim_run_time, is_more
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.samples.stack_samples import SampledTime
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


def test_the_error_of_few_samples_is_not_scaled_up_with_them(tmp_path: Path) -> None:
    """8,000 of 30,000 intervals are read; five samples in them may be nearly twice as many, of all intervals hardly."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, LENGTH_S, Step(idle_ms=0.3, launch_ms=0.02, busy_ms=0.05, launches=1))
    with open_reader(path) as reader:
        window = reader.window(None, run.at(LENGTH_S))
        assert window is not None
        (case,) = find_cases(Evidence(reader, window))
        assert case.is_sampled
        claims = claim_run_time(case, SampledTime(ns=50e6, count=5, line=None))
        assert sum(claims.values()) == pytest.approx(50e6 * case.scale, rel=0.01)
