"""A test that cannot clean up after itself does not hold up those that come after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import subprocess

import pytest

import tests.conftest

tests.conftest.STEP_S = 0.1


@pytest.fixture
def waits_twice():
    process = subprocess.Popen(["sleep", "600"])
    try:
        try:
            yield
        finally:
            process.wait()
    finally:
        try:
            process.wait()
        finally:
            process.kill()


def test_fails(waits_twice):
    assert False


def test_passes(waits_twice):
    pass


def test_comes_after_it():
    pass
"""


def test_the_end_of_a_test_is_interrupted_until_it_is_over(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(TESTS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-o", "timeout=3"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_ends.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 failed, 2 passed, 2 errors" in done.stdout
