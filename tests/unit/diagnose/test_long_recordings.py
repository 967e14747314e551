"""What is read of a long recording, and what is left of one that outgrew its size limit, still tells what was lost."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.diagnosis import FAILED, diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.diagnose.lost_time import interval_sampling as samples
from ingero.store.reader import open_reader
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

HOGGED = Step(return_delay_ms=3, sync={"runq": 3, "sleep": 5})


def hogs(run: ScriptedRun, trainer: Actor) -> None:
    run.train(trainer, QUIET_S, LENGTH_S, HOGGED)
    for second in range(int(QUIET_S), int(LENGTH_S)):
        run.culprit(trainer, 900, "stress-ng", second, 300, switches=100)


def again(path: Path) -> Diagnosis:
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        assert window is not None
        return diagnose(reader, window)


def without(path: Path, table: str) -> Diagnosis:
    db = apsw.Connection(str(path))
    db.execute(f"DELETE FROM {table}")
    db.close()
    return again(path)


def test_a_file_without_digests_gives_the_same_incident(tmp_path: Path) -> None:
    whole = diagnosed(tmp_path, hogs)
    assert without(tmp_path / "scene.db", "raw_sync_interval_digest").incidents == whole.incidents


def test_a_sample_of_a_long_time_range_gives_the_same_loss_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = diagnosed(tmp_path, hogs).incidents
    monkeypatch.setattr(samples, "MAX_WHOLE_SYNC_INTERVALS", 200)
    monkeypatch.setattr(samples, "_PIECE", 20)
    (sampled,) = again(tmp_path / "scene.db").incidents
    assert sampled.cause == whole.cause
    assert sampled.lost_ns == pytest.approx(whole.lost_ns, rel=0.05)
    assert sampled.evidence["sync intervals read whole"] == pytest.approx(150, abs=50)
    assert sampled.evidence["sync_intervals"] == pytest.approx(630, abs=20)


def test_a_sample_keeps_a_long_small_loss_and_a_short_large_one_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hogs_then_a_quota(run: ScriptedRun, trainer: Actor) -> None:
        late = Step(return_delay_ms=1.05, sync={"runq": 1.0})
        steps = run.train(trainer, QUIET_S, LENGTH_S - 1, late)
        for second in range(int(QUIET_S), int(LENGTH_S) - 1):
            run.culprit(trainer, 900, "hog", second, 1.0 * sum(int(end) == second for _, _, end in steps))
        run.train(trainer, LENGTH_S - 1, LENGTH_S, Step(idle_ms=10.5, idle={"throttled": 10.0}))

    whole = {one.cause: one.lost_ns for one in diagnosed(tmp_path, hogs_then_a_quota).incidents}
    monkeypatch.setattr(samples, "MAX_WHOLE_SYNC_INTERVALS", 200)
    monkeypatch.setattr(samples, "_PIECE", 20)
    sampled = {one.cause: one.lost_ns for one in again(tmp_path / "scene.db").incidents}
    assert set(whole) == {"cpu-contention", "cpu-throttled"}
    assert sampled == pytest.approx(whole, rel=0.1)


def test_when_the_size_limit_has_taken_the_sync_intervals_the_loss_is_told_without_an_owner(tmp_path: Path) -> None:
    (whole,) = diagnosed(tmp_path, hogs).incidents
    rest = without(tmp_path / "scene.db", "raw_sync_intervals")
    assert causes(rest) == ["unexplained"]
    assert rest.incidents[0].lost_ns == pytest.approx(whole.lost_ns, rel=0.1)


def test_a_sync_that_hung_is_told_when_the_size_limit_has_taken_the_sync_intervals(tmp_path: Path) -> None:
    def hung(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=4000))
        run.train(trainer, QUIET_S + 4.01, LENGTH_S, Step())

    diagnosed(tmp_path, hung)
    rest = without(tmp_path / "scene.db", "raw_sync_intervals")
    assert not [one for one in rest.not_evaluated if one.reason.startswith(FAILED)]
    assert causes(rest) == ["hung-call"]


def test_the_device_is_known_when_the_size_limit_has_taken_the_sync_intervals(tmp_path: Path) -> None:
    diagnosed(tmp_path, lambda run, trainer: run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12)))
    db = apsw.Connection(str(tmp_path / "scene.db"))
    db.execute("UPDATE raw_sync_interval_digest SET device = 3")
    db.close()
    (incident,) = without(tmp_path / "scene.db", "raw_sync_intervals").incidents
    assert (incident.cause, incident.root) == ("gpu-slower", "100 device 3")


def test_a_sample_of_a_long_time_range_names_the_line_that_computed_in_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenizing(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))[::5]:
            run.sample(trainer, begin + 0.002, (("/srv/job/tokens.py", 46, "tokenize"),))

    (whole,) = diagnosed(tmp_path, tokenizing).incidents
    monkeypatch.setattr(samples, "MAX_WHOLE_SYNC_INTERVALS", 200)
    monkeypatch.setattr(samples, "_PIECE", 20)
    (sampled,) = again(tmp_path / "scene.db").incidents
    assert (whole.cause, sampled.cause) == ("host-bound", "host-bound")
    assert sampled.lost_ns == pytest.approx(whole.lost_ns, rel=0.05)
