"""Runs a scenario on what the host has, diagnoses its recording, and checks the verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.gpu_stage import GpuStage
from ingero.demo.machine import Machine, Mode
from ingero.demo.pulse import breakdown, gpu_stream_of
from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Scenario
from ingero.demo.scene import BEGIN_NS
from ingero.demo.screen import Screen
from ingero.demo.simulated_stage import SimulatedStage
from ingero.demo.stage import Stage
from ingero.demo.stored_incidents import store_incidents
from ingero.demo.whole_scene import WholeScene
from ingero.diagnose.diagnosis import diagnose
from ingero.errors import IngeroError
from ingero.serve.text.breakdown import breakdown_text
from ingero.serve.text.findings_text import verdict_lines
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.units import SECOND_NS


class KeepError(IngeroError):
    """The folder for the recordings cannot be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """What a scenario leaves behind. pid: of the process that it is about; fault: when the demo disturbed it."""

    recording: Path
    pid: int
    fault: Window | None = None


def play(scenario: Scenario, machine: Machine, screen: Screen, *, keep: Path | None, with_breakdown: bool) -> bool:
    """Run one scenario; whether the diagnosis names its cause. keep: folder where the recording stays, as NAME.db."""
    screen.scenario(scenario)
    with _folder(scenario, keep) as folder:
        if machine.mode is Mode.SCRIPTED:
            played = _script(scenario, screen, folder)
        else:
            played = _stage(scenario, machine, screen, folder)
        is_right = _judge(scenario, screen, played, with_breakdown=with_breakdown)
        if keep is not None:
            kept = keep / f"{scenario.name}.db"
            played.recording.replace(kept)
            screen.say(f"recording: {kept}")
    return is_right


@contextmanager
def _folder(scenario: Scenario, keep: Path | None) -> Iterator[Path]:
    """For what the scenario writes; on the file system where the recording is to stay."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KeepError(f"cannot make {keep}: {error.strerror}", hint="name another folder with --keep") from error
    with tempfile.TemporaryDirectory(prefix=f".ingero-demo-{scenario.name}-", dir=keep) as folder:
        yield Path(folder)


def _script(scenario: Scenario, screen: Screen, folder: Path) -> _Played:
    """The recording, made by hand; its first process is the one that it is about."""
    recording = folder / "demo.db"
    with WholeScene(recording, seconds=scenario.seconds) as scene:
        scenario.script(scene)
    store_incidents(recording)
    with open_reader(recording) as reader:
        pid = reader.processes()[0].pid
    with screen.table():
        screen.watch(recording, pid)
    return _Played(recording=recording, pid=pid)


def _stage(scenario: Scenario, machine: Machine, screen: Screen, folder: Path) -> _Played:
    kind = GpuStage if machine.mode is Mode.GPU else SimulatedStage
    stage: Stage = kind(folder, say=screen.say, watch_recording=screen.watch, python=machine.python)
    with stage, screen.table():
        scenario.play(stage)
        pid = stage.finish()
    return _Played(recording=stage.recording, pid=pid, fault=stage.fault)


def _judge(scenario: Scenario, screen: Screen, played: _Played, *, with_breakdown: bool) -> bool:
    """Show what the engine says of the recording; whether it names the scenario's cause."""
    with open_reader(played.recording) as reader:
        window = reader.window(None, BEGIN_NS + round(scenario.seconds * SECOND_NS))
        assert window is not None
        diagnosis = diagnose(reader, window)
        mine = [one for one in diagnosis.incidents if any(affected.pid == played.pid for affected in one.affected)]
        found = next((one for one in mine if one.cause == scenario.cause), None)
        measured = None
        if found is not None:
            measured = Measured(reader=reader, diagnosis=diagnosis, incident=found, fault=played.fault)
            _breakdowns(screen, measured, played.pid)
        screen.lines(verdict_lines(diagnosis))
        if with_breakdown:
            screen.lines(breakdown_text(reader, measured.window if measured else window))
        number = scenario.number(measured) if measured else None
        screen.verdict(scenario, list(dict.fromkeys(one.cause for one in mine)), number)
    return found is not None


def _breakdowns(screen: Screen, measured: Measured, pid: int) -> None:
    """The bars before the fault and while it lasted."""
    gpu_stream = gpu_stream_of(measured.reader, pid)
    if gpu_stream is not None:
        screen.breakdowns(breakdown(gpu_stream, measured.before), breakdown(gpu_stream, measured.window))
