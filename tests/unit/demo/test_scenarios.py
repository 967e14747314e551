"""The demos without GPU and root: each ends in its own verdict with its own number, and says so when it does not."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import apsw
import pytest
from rich.console import Console

from ingero.demo import machine, prebuilt
from ingero.demo.machine import CannotPlayError, Mode, chosen_machine, python_with_framework
from ingero.demo.player import play
from ingero.demo.scenarios import ALIASES, SCENARIOS, NoSuchScenarioError, scenario_of
from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Scenario
from ingero.demo.scene import BEGIN_NS, Step
from ingero.demo.screen import Screen
from ingero.demo.whole_scene import FullScriptedRun
from ingero.diagnose.diagnosis import diagnose
from ingero.discover.readiness import Readiness
from ingero.store.reader import open_reader
from ingero.units import SECOND_NS

EVERY_SCENARIO = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@contextmanager
def scripted(scenario: Scenario, folder: Path) -> Iterator[Measured]:
    """The scenario's script, diagnosed; measured for its worst incident."""
    path = folder / "scenario.db"
    with FullScriptedRun(path, seconds=scenario.seconds) as run:
        scenario.script(run)
    with open_reader(path) as reader:
        window = reader.window(None, BEGIN_NS + round(scenario.seconds * SECOND_NS))
        assert window is not None
        diagnosis = diagnose(reader, window)
        yield Measured(reader=reader, diagnosis=diagnosis, incident=diagnosis.incidents[0])


@EVERY_SCENARIO
def test_the_script_ends_in_the_cause_and_the_number_that_its_scenario_promises(
    scenario: Scenario, tmp_path: Path
) -> None:
    low, high = scenario.scripted_between
    with scripted(scenario, tmp_path) as measured:
        assert [one.cause for one in measured.diagnosis.incidents] == [scenario.cause]
        assert low <= scenario.number(measured).value <= high


def test_all_six_play_without_any_privilege() -> None:
    unprivileged = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*unprivileged, sys.executable, "-m", "ingero.cli.main", "demo", "--no-gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    verdicts = [line for line in done.stdout.splitlines() if line.startswith("verdict: ")]
    assert verdicts == [f"verdict: {scenario.cause}" for scenario in SCENARIOS]


def test_a_demo_that_does_not_end_in_its_cause_says_so(tmp_path: Path) -> None:
    def healthy(run: FullScriptedRun) -> None:
        run.train(run.process(100, "python"), 0, 8, Step())

    text = StringIO()
    screen = Screen(Console(file=text))
    scenario = dataclasses.replace(SCENARIOS[0], script=healthy)
    chosen = chosen_machine(wants_gpu=False, without_gpu=True)
    assert not play(scenario, chosen, screen, keep=tmp_path, with_breakdown=False)
    assert "verdict: none; the scenario is priority" in text.getvalue()


def test_a_recording_that_is_kept_can_be_explained(tmp_path: Path) -> None:
    screen = Screen(Console(file=StringIO()))
    chosen = chosen_machine(wants_gpu=False, without_gpu=True)
    assert play(SCENARIOS[0], chosen, screen, keep=tmp_path / "kept", with_breakdown=True)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["incident.db"]
    with open_reader(tmp_path / "kept" / "incident.db") as reader:
        assert reader.processes()[0].name == "python"
    db = apsw.Connection(str(tmp_path / "kept" / "incident.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert list(db.execute("SELECT cause FROM raw_incidents")) == [("priority",)]
    assert list(db.execute("SELECT count(*) > 0 FROM raw_causal_chains")) == [(1,)]
    db.close()


@pytest.mark.parametrize(("alias", "name"), [*ALIASES.items(), *((one.name, one.name) for one in SCENARIOS)])
def test_a_story_is_found_by_its_names(alias: str, name: str) -> None:
    assert scenario_of(alias).name == name


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(NoSuchScenarioError) as raised:
        scenario_of("gpu-steel")
    assert all(one.name in raised.value.hint for one in SCENARIOS)
    assert raised.value.hint.startswith("did you mean ingero demo gpu-steal? ")


def test_without_root_the_default_is_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_no_probes", lambda: "without root")
    chosen = chosen_machine(wants_gpu=False, without_gpu=False)
    assert (chosen.mode, "without root" in chosen.probes) == (Mode.SCRIPTED, True)


def test_without_a_simulated_gpu_the_default_is_the_script_and_the_way_out_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "why_no_probes", lambda: "")
    monkeypatch.setattr(machine, "known_nvml", lambda: machine.Nvml(reason="NVML: no driver"))
    monkeypatch.setattr(prebuilt, "has_sources", lambda: False)
    chosen = chosen_machine(wants_gpu=False, without_gpu=False)
    assert chosen.mode is Mode.SCRIPTED
    assert "(ingero-gpusim is not installed: pip install 'ingero[demo]')" in chosen.probes


def test_where_probes_may_not_be_attached_the_reason_is_that_of_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Readiness(group="calls", ok=False, reason="CAP_BPF missing to load BPF programs")
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "object_path", lambda _: Path())
    monkeypatch.setattr(machine, "what_blocks", lambda _: blocked)
    assert machine.why_no_probes() == blocked.reason


def test_with_root_and_a_compiler_the_default_is_the_simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "why_no_probes", lambda: "")
    monkeypatch.setattr(machine, "why_not_here", lambda: "")
    monkeypatch.setattr(machine, "known_nvml", lambda: machine.Nvml(reason="NVML: no driver"))
    assert chosen_machine(wants_gpu=False, without_gpu=False).mode is Mode.SIMULATED


def test_a_gpu_that_is_asked_for_and_not_there_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "known_nvml", lambda: machine.Nvml(reason="NVML: no driver"))
    with pytest.raises(CannotPlayError, match="no driver") as raised:
        chosen_machine(wants_gpu=True, without_gpu=False)
    assert "ingero demo" in raised.value.hint


def test_a_python_with_a_framework_is_taken_and_one_without_is_not(tmp_path: Path) -> None:
    bare, full = tmp_path / "bare", tmp_path / "full"
    for path, status in ((bare, 1), (full, 0)):
        path.write_text(f"#!/bin/sh\nexit {status}\n")
        path.chmod(0o755)
    assert python_with_framework(lambda: iter([None, str(tmp_path / "none"), str(bare), str(full)])) == full
    assert python_with_framework(lambda: iter([str(bare)])) is None
