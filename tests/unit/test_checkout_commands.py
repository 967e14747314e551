"""What a checkout brings to build and to run it: bin/ingero, scripts/install-deps.sh, what each target installs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingero import __version__

ROOT = Path(__file__).resolve().parents[2]
TESTERS = {"chromium", "gcc", "g++", "iproute2", "iptables", "openssh-client"}


def test_bin_ingero_is_the_program_of_the_checkout_from_anywhere(tmp_path: Path) -> None:
    link = tmp_path / "ingero"
    link.symlink_to(ROOT / "bin" / "ingero")
    for program in (ROOT / "bin" / "ingero", link):
        done = subprocess.run([program, "version"], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stdout.startswith(f"ingero {__version__} ")


def test_bin_ingero_says_what_is_missing_where_nothing_is_built(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "bin" / "ingero", tmp_path / "bin")
    done = subprocess.run([tmp_path / "bin" / "ingero", "version"], capture_output=True, text=True, check=False)
    assert (done.returncode, f"make -C {tmp_path} build" in done.stderr) == (2, True)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout on a host that has nothing but a shell and Python, where nobody is root."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "flock"):
        (programs / name).symlink_to(shutil.which(name) or name)
    (programs / "python3").write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} "$@"\n')
    (programs / "python3").chmod(0o755)
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)
    (tmp_path / "tools").mkdir()
    (tmp_path / "scripts").mkdir()
    text = (ROOT / "tools" / "setup.sh").read_text().replace("PATH=$PATH:/usr/sbin:/sbin", "PATH=$PATH")
    text = text.replace("\nprometheus=", "\nexit 0\nprometheus=")  # what is missing is said by then
    (tmp_path / "tools" / "setup.sh").write_text(text)
    (tmp_path / "tools" / "setup.sh").chmod(0o755)
    shutil.copy(ROOT / "scripts" / "install-deps.sh", tmp_path / "scripts")
    return tmp_path


def wanted(checkout: Path, *command: str) -> set[str]:
    """The distribution packages that it says are missing."""
    done = subprocess.run(
        [checkout / command[0], *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(checkout / "programs")},
    )
    found = re.search(r"^setup: not installed: (.*)$", done.stderr, re.MULTILINE)
    return set(found[1].split()) if found else set()


def test_the_demo_asks_for_no_compiler_but_clang_and_for_nothing_of_the_page_or_the_tests(bare: Path) -> None:
    for_demo = wanted(bare, "tools/setup.sh", "demo")
    assert "clang" in for_demo
    assert for_demo <= {"clang", "libc6-dev", "binutils", "libbpf1", "python3-venv"}


def test_a_build_asks_for_the_page_too_and_for_nothing_of_the_tests(bare: Path) -> None:
    for_build = wanted(bare, "scripts/install-deps.sh")
    assert {"clang", "nodejs", "npm"} <= for_build
    assert not for_build & TESTERS


def test_tests_ask_for_the_rest(bare: Path) -> None:
    assert wanted(bare, "tools/setup.sh") >= TESTERS
