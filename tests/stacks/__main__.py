"""`make test-stacks`: fetches the interpreters, compares every stack with what they say, and prints the figures.

Usage: python -m tests.stacks [arguments of pytest]. INGERO_STACKS_ONLY=3.8,3.14 compares these versions alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.stacks import debian, free_threaded
from tests.stacks.chosen import is_chosen

_HERE = Path(__file__).parent
_LIMIT_S = 1800  # of a test


def main() -> int:
    """Command line."""
    if os.geteuid():
        sys.exit("test-stacks: real probes and chroots need root: sudo make test-stacks")
    for suite in debian.SUITES:
        if any(map(is_chosen, suite.versions)):
            _fetch(f"Debian {suite.name}", partial(debian.fetch, suite))
    if is_chosen("3.13t"):
        _fetch("the free-threaded Python", free_threaded.fetch)
    command = [sys.executable, "-m", "pytest", "-q", f"--timeout={_LIMIT_S}"]
    variables = {**os.environ, "INGERO_STACKS": "1"}
    return subprocess.run([*command, _HERE, *sys.argv[1:]], env=variables, check=False).returncode


def _fetch(name: str, fetch: Callable[[], None]) -> None:
    """What cannot be had is left out, and said so: the tables show what was proven."""
    try:
        fetch()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"test-stacks: {name} cannot be had: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
