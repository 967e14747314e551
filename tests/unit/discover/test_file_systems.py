"""Where a file lies, by a made-up list of mounts, and by this machine's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ingero.discover.file_systems import file_system_of, goes_with_its_container


def mounts(folder: Path, kind: str) -> Path:
    """A /proc in which the file system of `folder` is of that kind."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    (folder / "self").mkdir()
    (folder / "self/mountinfo").write_text(
        "22 1 0:21 / /proc rw,nosuid - proc proc rw\n"
        f"30 1 {number} / / rw,relatime shared:1 - {kind} {kind} rw,lowerdir=/a,upperdir=/b\n"
    )
    return folder


@pytest.mark.parametrize(("kind", "is_lost"), [("overlay", True), ("ext4", False), ("tmpfs", False)])
def test_only_a_containers_own_layers_go_with_it(tmp_path: Path, kind: str, is_lost: bool) -> None:
    proc = mounts(tmp_path, kind)
    assert file_system_of(tmp_path, proc) == kind
    assert goes_with_its_container(tmp_path, proc) is is_lost


def test_what_cannot_be_told_is_not_said(tmp_path: Path) -> None:
    assert file_system_of(tmp_path / "none") == ""
    assert file_system_of(tmp_path, tmp_path) == ""


def test_the_kernel_says_the_same_of_shared_memory() -> None:
    said = subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True, text=True, check=True).stdout
    assert file_system_of(Path("/dev/shm")) == said.strip()
