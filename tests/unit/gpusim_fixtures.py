"""Builds the simulated GPU once per test session and runs small client programs on it."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingero.demo.gpusim import build, truth


@pytest.fixture(scope="session")
def gpusim_lib() -> Path:
    """The folder with the libraries."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the simulated GPU cannot be built")
    return build.build()


class Rig:
    """A simulated host: a folder with its knob and ground-truth files."""

    def __init__(self, lib: Path, folder: Path) -> None:
        self.lib = lib
        self.ctl = folder / "ctl"
        self.trace = folder / "truth"
        self._children: list[subprocess.Popen[str]] = []

    def environment(self, **options: Any) -> dict[str, str]:
        settings: dict[str, Any] = {"ctl": self.ctl, "trace": self.trace, "runtime": "12", **options}
        own = build.environment(self.lib, **settings)
        return {**os.environ, **own, "PYTHONPATH": str(Path(__file__).parent)}

    def start(self, program: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        """Start a program that has `from gpusim_client import *`; it may print one line of JSON at its end."""
        source = "import json, sys\nfrom gpusim_client import *\n" + textwrap.dedent(program)
        child = subprocess.Popen(
            [sys.executable, "-c", source, *(str(argument) for argument in arguments)],
            env=self.environment(**options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def stop(self) -> None:
        """Leave nothing behind, whatever the test came to."""
        for child in self._children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    def run(self, program: str, *arguments: object, **options: Any) -> Any:
        """Run a program to its end and return what it printed."""
        return finish(self.start(program, *arguments, **options))

    def truth(self) -> truth.Truth:
        return truth.read(self.trace)


def finish(child: subprocess.Popen[str]) -> Any:
    """Wait for a program and return what it printed."""
    output, _ = child.communicate()
    assert child.returncode == 0
    return json.loads(output) if output else None


def wait_until(condition: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    """Wait until the condition holds while the child runs."""
    while not condition():
        assert child.poll() is None, "the program ended before it happened"


@pytest.fixture
def rig(gpusim_lib: Path, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(gpusim_lib, tmp_path)
    yield rig
    rig.stop()
