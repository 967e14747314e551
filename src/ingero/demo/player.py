"""Runs a scenario on what the host has, diagnoses its recording, and checks the verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.gpu_stage import GpuRun
from ingero.demo.machine import Machine, Mode
from ingero.demo.pulse import breakdown, gpu_stream_of
from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Scenario
from ingero.demo.scene import BEGIN_NS
from ingero.demo.screen import Screen
from ingero.demo.simulated_stage import SimulatedRun
from ingero.demo.stage import LiveRun
from ingero.demo.stored_incidents import store_incidents
from ingero.demo.whole_scene import FullScriptedRun
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
class _Recorded:
    """The recording of a scenario. pid: the affected process; fault: when the demo disturbed it, if it did."""

    recording: Path
    pid: int
    fault: Window | None = None


def play(scenario: Scenario, machine: Machine, screen: Screen, *, keep: Path | None, with_breakdown: bool) -> bool:
    """Run one scenario; whether the diagnosis names its cause. keep: folder where the recording stays, as NAME.db."""
    screen.scenario(scenario)
    with _folder(scenario, keep) as folder:
        if machine.mode is Mode.SCRIPTED:
            recorded = _script(scenario, screen, folder)
        else:
            recorded = _live(scenario, machine, screen, folder)
        is_right = _judge(scenario, screen, recorded, with_breakdown=with_breakdown)
        if keep is not None:
            kept = keep / f"{scenario.name}.db"
            recorded.recording.replace(kept)
            screen.say(f"recording: {kept}")
    return is_right


@contextmanager
def _folder(scenario: Scenario, keep: Path | None) -> Iterator[Path]:
    """A temporary folder on the file system where the recording is to stay."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KeepError(f"cannot make {keep}: {error.strerror}", hint="name another folder with --keep") from error
    with tempfile.TemporaryDirectory(prefix=f".ingero-demo-{scenario.name}-", dir=keep) as folder:
        yield Path(folder)


def _script(scenario: Scenario, screen: Screen, folder: Path) -> _Recorded:
    """Writes a scripted recording; the scenario is about its first process."""
    recording = folder / "demo.db"
    with FullScriptedRun(recording, seconds=scenario.seconds) as run:
        scenario.script(run)
    store_incidents(recording)
    with open_reader(recording) as reader:
        pid = reader.processes()[0].pid
    with screen.table():
        screen.watch(recording, pid)
    return _Recorded(recording=recording, pid=pid)


def _live(scenario: Scenario, machine: Machine, screen: Screen, folder: Path) -> _Recorded:
    kind = GpuRun if machine.mode is Mode.GPU else SimulatedRun
    run: LiveRun = kind(folder, say=screen.say, watch_recording=screen.watch, python=machine.python)
    with run, screen.table():
        scenario.play(run)
        pid = run.finish()
    return _Recorded(recording=run.recording, pid=pid, fault=run.fault)


def _judge(scenario: Scenario, screen: Screen, recorded: _Recorded, *, with_breakdown: bool) -> bool:
    """Show what the engine says of the recording; whether it names the scenario's cause."""
    with open_reader(recorded.recording) as reader:
        window = reader.window(None, BEGIN_NS + round(scenario.seconds * SECOND_NS))
        assert window is not None
        diagnosis = diagnose(reader, window)
        mine = [
            incident
            for incident in diagnosis.incidents
            if any(affected.pid == recorded.pid for affected in incident.affected)
        ]
        found = next((incident for incident in mine if incident.cause == scenario.cause), None)
        measured = None
        if found is not None:
            measured = Measured(reader=reader, diagnosis=diagnosis, incident=found, fault=recorded.fault)
            _breakdowns(screen, measured, recorded.pid)
        screen.lines(verdict_lines(diagnosis))
        if with_breakdown:
            screen.lines(breakdown_text(reader, measured.window if measured else window))
        number = scenario.number(measured) if measured else None
        screen.verdict(scenario, list(dict.fromkeys(incident.cause for incident in mine)), number)
    return found is not None


def _breakdowns(screen: Screen, measured: Measured, pid: int) -> None:
    """The bars before the fault and while it lasted."""
    gpu_stream = gpu_stream_of(measured.reader, pid)
    if gpu_stream is not None:
        screen.breakdowns(breakdown(gpu_stream, measured.before), breakdown(gpu_stream, measured.window))
