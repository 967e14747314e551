"""A demo with real probes on the simulated GPU ends in its own verdict."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.capture.single_agent import RUN_FOLDER_VARIABLE
from ingero.store.reader import open_reader

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU"),
]


def test_hogs_that_start_beside_a_training_loop_are_recorded_and_named(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ingero.cli.main",
        "demo",
        "incident",
        "--account",
        "--keep",
        str(tmp_path / "kept"),
    ]
    variables = {**os.environ, RUN_FOLDER_VARIABLE: str(tmp_path)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPU: simulated, built with gcc; driver: simulated; probes: real" in done.stdout
    assert "\nverdict: priority" in done.stdout
    assert " sync intervals of " in done.stdout
    assert "waiting for the GPU took" in done.stdout
    with open_reader(tmp_path / "kept" / "incident.db") as reader:
        window = reader.time_range()
        assert window is not None
        assert "backup" in {one.culprit_name for one in reader.culprits(window)}
