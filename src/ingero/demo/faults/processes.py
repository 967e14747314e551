"""Disturbing processes, and the threads of the disturbed ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ingero.demo.faults.model import FaultError
from ingero.demo.workloads import native
from ingero.demo.workloads.program import Program

_SOURCES = Path(__file__).parent
_AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


@contextmanager
def disturbers(
    source: str,
    arguments: Sequence[Sequence[str]],
    *,
    name: str,
    cgroups: Sequence[Path] = (),
) -> Iterator[tuple[Program, ...]]:
    """Run one process of `source`.c for each list of arguments, all named `name`; end them afterwards."""
    program = native.build_source(_SOURCES / f"{source}.c")
    with ExitStack() as stack:
        started = [stack.enter_context(Program([str(program), name, *own], cgroups=cgroups)) for own in arguments]
        for process in started:
            process.wait_for("ready")
        yield tuple(started)


def cpu_count() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def tree(pid: int) -> list[int]:
    """Return the process and its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(p for child in children for p in tree(int(child)))]


def threads(pid: int) -> list[int]:
    """Return the threads of the process and its descendants."""
    return [int(task.name) for process in tree(pid) for task in Path(f"/proc/{process}/task").iterdir()]


def need_same_session(pid: int) -> None:
    """Refuse to disturb a process of another session where sessions are weighed as groups.

    Raises:
        FaultError: the disturbance would get a share of its own instead of taking the workload's.
    """
    grouped = _AUTOGROUP.exists() and _AUTOGROUP.read_text().strip() == "1"
    if grouped and os.getsid(pid) != os.getsid(0):
        raise FaultError(
            f"pid {pid} is in another session, and the scheduler weighs sessions against each other",
            hint="start the workload and the fault from one session, or: sysctl kernel.sched_autogroup_enabled=0",
        )
