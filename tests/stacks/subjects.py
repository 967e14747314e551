"""The interpreters that are proven: pyenv's, Debian's in a chroot, a free-threaded one, and ways to run them."""

from __future__ import annotations

import os
import subprocess
from functools import cache

from tests.integration.interpreters import interpreters
from tests.integration.python_truth import Subject
from tests.stacks.chosen import is_chosen
from tests.stacks.debian import SUITES
from tests.stacks.free_threaded import PROGRAM


@cache
def subjects() -> dict[str, Subject]:
    """By name; the oldest first. Only those that are there and start."""
    found = [Subject(name, program) for name, program in interpreters().items()]
    if PROGRAM.exists():
        found += [Subject("3.13t", PROGRAM, variables={"PYTHON_GIL": "0"})]
    found += _in_chroots()
    found = [one for one in found if is_chosen(one.name)]
    found += _other_ways(found)
    return {one.name: one for one in found}


def _in_chroots() -> list[Subject]:
    found = []
    for suite in SUITES:
        for version in (*suite.versions, *(f"{one}d" for one in suite.debug)):
            program = suite.root / "usr" / "bin" / f"python{version}"
            if program.exists():
                subject = Subject("", program, root=suite.root)
                subject = Subject("", subject.inside(program), root=suite.root)
                kind = ", debug build" if version.endswith("d") else ""
                found.append(Subject(f"{_version(subject)}-{suite.name}{kind}", subject.program, root=suite.root))
    return found


def _other_ways(plain: list[Subject]) -> list[Subject]:
    found = []
    for one in plain:
        minor = int(one.name.split(".")[1].rstrip("t"))
        if minor >= 14:
            found.append(_with(one, "JIT", {"PYTHON_JIT": "1"}))
        if minor in (12, 14) or one.name.endswith("trixie"):
            found.append(_with(one, "perf trampolines", {"PYTHONPERFSUPPORT": "1"}))
    if not plain:
        return found
    newest = plain[-1]
    found.append(
        Subject(f"{newest.name}, PID namespace", newest.program, newest.root, newest.variables, in_namespace=True)
    )
    found.append(Subject(f"{plain[0].name}, PID namespace", plain[0].program, in_namespace=True))
    return found


def _with(one: Subject, way: str, variables: dict[str, str]) -> Subject:
    return Subject(f"{one.name}, {way}", one.program, one.root, variables)


def _version(subject: Subject) -> str:
    command = subject.command("-c", "import sys; print(*sys.version_info[:3], sep='.')")
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ)).stdout.strip()
