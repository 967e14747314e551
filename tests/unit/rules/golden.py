"""Diagnoses scenes as a user's recording would be: written by the real writer, read by the real reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingero.demo.scene import Actor, Scene, Step
from ingero.diagnose.engine import diagnose
from ingero.diagnose.model import Diagnosis
from ingero.store.reader import open_reader

QUIET_S = 6.0
LENGTH_S = 12.0

Script = Callable[[Scene, Actor], None]


def diagnosed(folder: Path, script: Script, *, not_traced: dict[str, str] | None = None) -> Diagnosis:
    """The diagnosis of a trainer (pid 100), healthy for QUIET_S; the script adds the rest."""
    path = folder / "scene.db"
    with Scene(path, seconds=LENGTH_S, not_traced=not_traced) as scene:
        trainer = scene.process(100, "python")
        scene.train(trainer, 0, QUIET_S, Step())
        script(scene, trainer)
    with open_reader(path) as reader:
        window = reader.window(None, scene.at(LENGTH_S))
        assert window is not None
        return diagnose(reader, window)


def causes(diagnosis: Diagnosis) -> list[str]:
    """The causes found."""
    return [one.cause for one in diagnosis.incidents]
