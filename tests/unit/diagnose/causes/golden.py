"""Diagnoses scripted recordings that the real writer has written, through the real reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose.diagnosis import FAILED, diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.store.reader import open_reader
from ingero.store.writing.tables import Value

QUIET_S = 6.0
LENGTH_S = 12.0

Script = Callable[[ScriptedRun, Actor], None]


def diagnosed(
    folder: Path,
    script: Script,
    *,
    not_traced: dict[str, str] | None = None,
    length_s: float = LENGTH_S,
    **process: Value,
) -> Diagnosis:
    """The diagnosis of a trainer (pid 100) that is healthy for QUIET_S, then runs `script`. process: its columns."""
    path = folder / "scene.db"
    with ScriptedRun(path, seconds=length_s, not_traced=not_traced) as run:
        trainer = run.process(100, "python", **process)
        run.train(trainer, 0, QUIET_S, Step())
        script(run, trainer)
    return diagnosed_file(path, length_s=length_s)


def diagnosed_file(path: Path, *, length_s: float = LENGTH_S) -> Diagnosis:
    """The diagnosis of all of a recording."""
    with open_reader(path) as reader:
        window = reader.window(None, BEGIN_NS + int(length_s * 1e9))
        assert window is not None
        diagnosis = diagnose(reader, window)
    assert not [one for one in diagnosis.not_evaluated if one.reason.startswith(FAILED)]
    return diagnosis


def causes(diagnosis: Diagnosis) -> list[str]:
    """The causes found."""
    return [one.cause for one in diagnosis.incidents]
