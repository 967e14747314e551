"""What is said of profiles of real GPUs, against the answers that are known of them.

They lie beside a checkout, as in test_real_profiles.py; these are the small ones, `python -m bench.profiles` has all.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.profile_truth import truths
from bench.profiles import diagnosed, imported, step_errors_ms
from ingero.diagnose.comparison.change_verdict import Verdict
from ingero.diagnose.comparison.compare import compare
from ingero.diagnose.profile.report import Profiles
from ingero.store.reader import open_reader

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "gpu-recordings"


def real(name: str) -> Path:
    """A profile; skips where the recordings are not there."""
    if not FOLDER.is_dir():
        pytest.skip("no recordings of real GPUs beside this checkout")
    return FOLDER / name


def said(profile: Path, folder: Path) -> Profiles:
    """What is said of a profile in which nothing is wrong."""
    found = diagnosed(imported(profile, folder))
    assert found.incidents == ()
    assert found.profiles is not None
    return found.profiles


def test_a_full_launch_queue_makes_a_program_gpu_bound(tmp_path: Path) -> None:
    path = real("hta-ns_resolution.json.gz")
    (report,) = said(path, tmp_path).reports
    (truth,) = truths(path)
    assert (report.paced_by.value, len(report.steps)) == ("gpu", 5)
    assert report.busy_ratio == pytest.approx(truth.busy_ratio, abs=0.001)
    assert report.blocked["launch"] > 0.42
    errors = step_errors_ms(report, truth)
    assert np.median(errors) < 0.5
    assert max(errors) < 3


def test_each_of_eight_collectives_names_the_rank_that_came_last(tmp_path: Path) -> None:
    found = said(real("param-dlrm-8ranks.tar.gz"), tmp_path)
    assert [one.rank_of(one.last) for one in found.collectives] == [7, 7, 7, 7, 7, 5, 5, 4]
    assert [report.process.rank for report in found.reports] == list(range(8))


def test_of_a_pair_the_later_one_is_worse_by_idle_time_alone(tmp_path: Path) -> None:
    paths = [imported(real(f"nsys-ai-mfu_2gpu_{name}.sqlite.xz"), tmp_path) for name in ("before", "after")]
    with open_reader(paths[0]) as first, open_reader(paths[1]) as second:
        windows = [reader.time_range() for reader in (first, second)]
        assert windows[0] is not None
        assert windows[1] is not None
        found = compare(first, windows[0], second, windows[1])
    assert found.verdict is Verdict.WORSE
    assert found.change_ratio == pytest.approx(0.137, abs=0.02)
    gpu = next(step for step in found.steps if step.process == "GPU 0")
    assert (gpu.before_busy_ns or 0) / 1e6 == pytest.approx(16.0, abs=0.5)
    assert (gpu.after_busy_ns or 0) / 1e6 == pytest.approx(15.7, abs=0.5)
    assert (gpu.after_idle_ns or 0) > 2 * (gpu.before_idle_ns or 0)
