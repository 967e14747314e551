"""Each demo with real probes on the simulated GPU ends in the verdict of its script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.capture.loop.single_agent import RUN_FOLDER_VARIABLE
from ingero.demo.scenarios import SCENARIOS
from ingero.store.reader import open_reader

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU"),
]


def run_demo(name: str, folder: Path, *options: str) -> str:
    """What a demo prints whose verdict is the scenario's."""
    command = [sys.executable, "-m", "ingero.cli.main", "demo", name, "--keep", str(folder / "kept"), *options]
    variables = {**os.environ, RUN_FOLDER_VARIABLE: str(folder)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPU: simulated, built with gcc; driver: simulated; probes: real" in done.stdout
    return done.stdout


def test_hogs_that_start_beside_a_training_loop_are_recorded_and_named(tmp_path: Path) -> None:
    printed = run_demo("incident", tmp_path, "--breakdown")
    assert "\nverdict: priority" in printed
    assert " sync intervals in " in printed
    assert "GPU sync took" in printed
    assert "host  CPU" in printed
    with open_reader(tmp_path / "kept" / "incident.db") as reader:
        window = reader.time_range()
        assert window is not None
        assert "backup" in {one.culprit_name for one in reader.culprits(window)}


@pytest.mark.further
@pytest.mark.parametrize("name", [one.name for one in SCENARIOS if one.name != "incident"])
def test_every_demo_ends_in_the_verdict_of_its_script(name: str, tmp_path: Path) -> None:
    [cause] = [one.cause for one in SCENARIOS if one.name == name]
    assert f"\nverdict: {cause}" in run_demo(name, tmp_path)
