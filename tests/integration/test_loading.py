"""Each kernel takes every program that its version can run: a refused one costs what it would have told, in silence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import bpf_lines
import build_bpf
import pytest

import ingero
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.probes import ProbeMode
from ingero.discover.kernel import read_kernel

pytestmark = pytest.mark.integration

# What is missing before: by its name in `KernelSide.unavailable`.
SINCE = {
    ProbeMode.SESSION.value: (6, 13),
    ProbeMode.MULTI.value: (6, 6),
    "socket_send": (6, 3),
    "socket_receive": (6, 3),
}
MISSING = {name for name, since in SINCE.items() if read_kernel().version < since}


@pytest.mark.parametrize("mode", [None, *(mode for mode in ProbeMode if mode.value not in MISSING)])
def test_nothing_is_refused_but_what_the_kernel_is_too_old_for(mode: ProbeMode | None) -> None:
    with KernelSide(KernelSizes(), mode=mode, with_stacks=True) as kernel:
        kernel.start()
        print(f"\n{kernel.mode.value}: without {', '.join(one.name for one in kernel.unavailable) or 'nothing'}")
        refused = {one.name: one.reason for one in kernel.unavailable if one.name not in MISSING}
    assert not refused


def test_the_objects_of_a_wheel_are_taken_as_well_as_those_with_their_lines(tmp_path: Path) -> None:
    source = Path(ingero.__file__).parent
    shutil.copytree(source, tmp_path / "ingero", ignore=shutil.ignore_patterns("__pycache__", "page"))
    for path in (tmp_path / "ingero" / "bpf" / "objects").glob("*/*.bpf.o"):
        build_bpf.strip(path, required=False)
        path.write_bytes(bpf_lines.without_lines(path.read_bytes()))
    text = """
from ingero.attach.kernel_side import KernelSide, KernelSizes
with KernelSide(KernelSizes(), with_stacks=True) as kernel:
    kernel.start()
    print(__import__("ingero").__file__, *sorted(one.name for one in kernel.unavailable))
"""
    done = subprocess.run(
        [sys.executable, "-c", text], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    file, *unavailable = done.stdout.split()
    assert file == str(tmp_path / "ingero" / "__init__.py")
    assert set(unavailable) <= MISSING
