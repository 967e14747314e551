"""The workload program, built once, and the accounts of one target."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .rig import Accounts, Workload, build_workload

Start = Callable[..., Workload]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of the compiled workload."""
    return build_workload(tmp_path_factory.mktemp("workload"))


@pytest.fixture(scope="session")
def hog(program: Path) -> Path:
    """The same program under another name, so that a culprit's name says something."""
    return Path(shutil.copy(program, program.with_name("hog")))


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    """The scheduler programs, attached; each test has its own target."""
    with Accounts() as attached:
        yield attached


@pytest.fixture
def start(program: Path) -> Iterator[Start]:
    """Starts the workload in a mode; it is killed at the end of the test."""
    with ExitStack() as stack:

        def begin(*arguments: str | int, program: Path = program, prefix: tuple[str, ...] = ()) -> Workload:
            return stack.enter_context(Workload(program, *arguments, prefix=prefix))

        yield begin
