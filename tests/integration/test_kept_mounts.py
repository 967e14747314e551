"""Files on a mount of another user that not even root may read: said with the mount and a way out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero.demo.workloads.program import Program
from ingero.discover.interpreters import UnreadableInterpreter, find_interpreter
from ingero.discover.libraries import LibraryScanner
from ingero.ops import Library
from tests.integration.callers import build_library

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no /dev/fuse on this machine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the programs"),
]

_OTHER = 65534
_LOADER = """
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	puts(argc == 2 && dlopen(argv[1], RTLD_NOW) ? "loaded" : dlerror());
	fflush(stdout);
	pause();
	return 0;
}
"""


@contextmanager
def public() -> Iterator[Path]:
    """A folder that another user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def loaded(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process of another user that has loaded a library of the name asked for from a mount of its own."""
    with public() as folder:
        (folder / "loader.c").write_text(_LOADER)
        subprocess.run(["gcc", "-o", folder / "loader", folder / "loader.c", "-ldl"], check=True)
        file = build_library(folder / "built").rename(folder / "built" / request.param)
        mount = folder / "mount"
        mount.mkdir()
        server = [sys.executable, str(Path(__file__).parent / "kept_mount.py"), str(mount), str(file), str(_OTHER)]
        with Program(server) as serving:
            serving.wait_for("ready")
            command = [folder / "loader", mount / request.param]
            with subprocess.Popen(
                command, user=_OTHER, group=_OTHER, extra_groups=[], stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout
                assert process.stdout.readline() == "loaded\n"
                yield process.pid
                process.kill()


@pytest.mark.parametrize("loaded", ["libcudart.so.12"], indirect=True)
def test_a_library_that_root_may_not_read_is_said_with_its_mount(loaded: int) -> None:
    (found,) = (one for one in LibraryScanner().scan().unreadable if one.pid == loaded)
    assert found.library is Library.CUDART
    assert "FUSE" in found.reason
    assert "not even root" in found.reason
    assert "-o allow_root" in found.hint


@pytest.mark.parametrize("loaded", ["libpython3.11.so.1.0"], indirect=True)
def test_an_interpreter_that_root_may_not_read_is_said_with_its_mount(loaded: int) -> None:
    found = find_interpreter(loaded)
    assert isinstance(found, UnreadableInterpreter)
    assert "not even root" in found.reason
