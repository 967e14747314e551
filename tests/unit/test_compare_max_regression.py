"""`ingero compare --max-regression`: a gate for CI, which passes nothing that it could not judge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ingero.cli.config.option_table import OptionError
from ingero.cli.fleet.options import FleetOptionError
from ingero.cli.main import cli
from ingero.demo.scene import ScriptedRun, Step
from ingero.diagnose.comparison.change_verdict import Verdict, verdict_of
from ingero.diagnose.comparison.compare import CauseChange, Comparison
from ingero.diagnose.comparison.regression import Outcome, regression_of

SECONDS = 12
QUIET = Comparison(
    classes=(), causes=(), ops=(), change_ratio=0.0, noise_ratio=0.005, verdict=Verdict.SAME, lost_change_ratio=0.0
)


def recorded(path: Path, seed: int, *, late: Step | None = None, step: Step | None = None) -> Path:
    """A trainer; late: how its second half is, with a process that takes its CPU."""
    with ScriptedRun(path, seconds=SECONDS, seed=seed) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, SECONDS / 2, step or Step())
        run.train(trainer, SECONDS / 2, SECONDS, late or step or Step())
        for second in range(SECONDS // 2, SECONDS) if late else ():
            run.culprit(trainer, 900, "hog", second, 300, switches=100)
    return path


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return recorded(tmp_path / "healthy.db", 1)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return recorded(tmp_path / "slow.db", 2, late=Step(return_delay_ms=6, sync={"sleep": 5, "runq": 6}))


def compare(before: Path, after: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["compare", str(before), str(after), *options])


def last_line(result: Result) -> str:
    return result.output.rstrip("\n").splitlines()[-1]


def test_a_regression_beyond_the_limit_fails_and_its_last_line_says_by_how_much(healthy: Path, slow: Path) -> None:
    done = compare(healthy, slow, "--max-regression", "5%")
    assert done.exit_code == 3
    assert last_line(done).startswith("REGRESSION: +")
    assert "(limit 5.0%)" in last_line(done)


def test_what_is_within_the_limit_passes_although_it_is_worse(healthy: Path, slow: Path) -> None:
    assert compare(healthy, slow).exit_code == 1
    done = compare(healthy, slow, "--max-regression", "90")
    assert (done.exit_code, last_line(done)[:4]) == (0, "OK: ")


def test_what_got_better_passes(healthy: Path, slow: Path) -> None:
    assert compare(slow, healthy, "--max-regression", "5%").exit_code == 0


def test_two_recordings_of_the_same_pass_and_the_noise_is_named(tmp_path: Path, healthy: Path) -> None:
    done = compare(healthy, recorded(tmp_path / "again.db", 9), "--max-regression", "5%")
    assert done.exit_code == 0
    assert "noise up to 3.0%" in last_line(done)


def test_recordings_without_a_step_in_common_are_no_pass(tmp_path: Path, healthy: Path) -> None:
    with ScriptedRun(tmp_path / "empty.db", seconds=SECONDS) as run:
        run.process(100, "python")
    done = compare(healthy, tmp_path / "empty.db", "--max-regression", "5%")
    assert done.exit_code == 4
    assert last_line(done).startswith("NOT COMPARABLE: ")


def test_the_json_says_the_same(healthy: Path, slow: Path) -> None:
    done = compare(healthy, slow, "--max-regression", "5%", "--json")
    judged = json.loads(done.output)["regression"]
    assert (done.exit_code, judged["outcome"], judged["limit_ratio"]) == (3, "failed", 0.05)
    assert judged["change_ratio"] > 0.05
    assert judged["lost_change_ratio"] > 0.05
    assert json.loads(compare(healthy, slow, "--json").output)["regression"] is None


@pytest.mark.parametrize("text", ["much", "-5%", "101%", ""])
def test_what_is_no_percentage_is_refused(healthy: Path, slow: Path, text: str) -> None:
    done = compare(healthy, slow, f"--max-regression={text}")
    assert isinstance(done.exception, OptionError)
    assert "--max-regression" in str(done.exception)


def test_nodes_have_no_limit() -> None:
    done = CliRunner().invoke(cli, ["compare", "--nodes", "a,b", "--max-regression", "5%"])
    assert isinstance(done.exception, FleetOptionError)


def test_time_lost_alone_is_a_regression() -> None:
    judged = regression_of(replace(QUIET, lost_change_ratio=0.08), 0.05)
    assert judged.outcome is Outcome.FAILED
    assert "+8.0 points of wall time lost" in judged.text


@pytest.mark.parametrize(
    ("change", "noise", "limit", "outcome"),
    [
        (0.06, 0.01, 0.05, Outcome.FAILED),
        (0.06, 0.025, 0.05, Outcome.UNDECIDED),  # noise of both reaches to 7.5%
        (0.04, 0.025, 0.05, Outcome.PASSED),
        (0.02, 0.001, 0.01, Outcome.UNDECIDED),  # two untraced runs differ as much
        (-0.5, 0.01, 0.05, Outcome.PASSED),
        (None, None, 0.05, Outcome.NOT_COMPARABLE),
    ],
)
def test_what_noise_may_have_done_is_undecided(
    change: float | None, noise: float | None, limit: float, outcome: Outcome
) -> None:
    found = replace(QUIET, change_ratio=change, noise_ratio=noise, verdict=verdict_of(change, noise))
    assert regression_of(found, limit).outcome is outcome


def test_a_failure_is_one_also_where_the_other_figure_is_not_known() -> None:
    assert regression_of(replace(QUIET, change_ratio=None, noise_ratio=None, lost_change_ratio=0.5), 0.05).outcome is (
        Outcome.FAILED
    )
    assert regression_of(replace(QUIET, lost_change_ratio=None), 0.05).outcome is Outcome.NOT_COMPARABLE


def test_an_event_without_lost_time_is_named_beside_a_pass() -> None:
    hang = CauseChange(
        cause="nccl-hang", before=0, after=1, before_lost_ratio=0, after_lost_ratio=0, verdict=Verdict.NEW
    )
    judged = regression_of(replace(QUIET, causes=(hang,)), 0.05)
    assert judged.outcome is Outcome.PASSED
    assert judged.text.endswith("new nccl-hang")


def test_time_lost_by_several_processes_is_not_summed(tmp_path: Path, healthy: Path) -> None:
    """Four ranks that lose as much each lose no more than one does."""
    late = Step(return_delay_ms=6, sync={"sleep": 5, "runq": 6})
    for ranks in (1, 4):
        with ScriptedRun(tmp_path / f"{ranks}.db", seconds=SECONDS) as run:
            for number in range(ranks):
                rank = run.process(100 + number, "python", rank=number)
                run.train(rank, 0, SECONDS / 2, Step())
                run.train(rank, SECONDS / 2, SECONDS, late)
                for second in range(SECONDS // 2, SECONDS):
                    run.culprit(rank, 900, "hog", second, 300, switches=100)
    one, four = (
        json.loads(compare(healthy, tmp_path / f"{ranks}.db", "--json").output)["lost_change_ratio"] for ranks in (1, 4)
    )
    assert one > 0.1
    assert four == pytest.approx(one, abs=0.05)
