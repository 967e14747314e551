"""Fixtures: the workload program, built once, and the attached scheduler programs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .rig import SchedulerPrograms, Workload, build_workload

Start = Callable[..., Workload]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the compiled workload."""
    return build_workload(tmp_path_factory.mktemp("workload"))


@pytest.fixture(scope="session")
def hog(program: Path) -> Path:
    """The workload program under another name, so that a culprit can be recognized by its name."""
    return Path(shutil.copy(program, program.with_name("hog")))


@pytest.fixture(scope="module")
def scheduler() -> Iterator[SchedulerPrograms]:
    """The scheduler programs, attached; each test has its own traced process."""
    with SchedulerPrograms() as attached:
        yield attached


@pytest.fixture
def start(program: Path) -> Iterator[Start]:
    """Starts the workload in a mode; it is killed at the end of the test."""
    with ExitStack() as stack:

        def begin(*arguments: str | int, program: Path = program, prefix: tuple[str, ...] = ()) -> Workload:
            return stack.enter_context(Workload(program, *arguments, prefix=prefix))

        yield begin
