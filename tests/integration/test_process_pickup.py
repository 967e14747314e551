"""Processes are traced as soon as they can be: started before or after the tracer, forked, replaced, loading late."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.attach.kernel_side import MAX_PROCESSES
from ingero.discover.library_files import identify
from ingero.discover.sites import probe_sites
from tests.integration.callers import build_library, caller
from tests.integration.targets import breakpoints, rows, until, wait_for_end
from tests.integration.tracing import Tracer, tracing

pytestmark = pytest.mark.integration
FORKED, CHILDREN = 3, MAX_PROCESSES + 44


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return build_library(tmp_path / "lib")


def counts(tracer: Tracer) -> dict[int, int]:
    """Calls of cudaMalloc by process id, as far as they are stored."""
    found = rows(
        tracer.database,
        "SELECT p.pid, sum(s.count) FROM raw_op_stats s JOIN raw_processes p USING (process) GROUP BY 1",
    )
    return dict(found)


def is_traced(tracer: Tracer, pid: int) -> bool:
    return bool(rows(tracer.database, "SELECT 1 FROM raw_processes WHERE pid = ?", pid))


def is_probed(tracer: Tracer, library: Path) -> bool:
    return bool(rows(tracer.database, "SELECT 1 FROM raw_probes WHERE library = ? AND is_attached", str(library)))


def sites(library: Path) -> list[tuple[str, int]]:
    """(file, offset) of its traced calls."""
    return [(str(library), site.file_offset) for site in probe_sites(identify(library)).sites]


def test_without_pids_every_user_of_a_library_is_traced(tmp_path: Path, library: Path) -> None:
    with caller() as before, caller() as after:
        before.do("load", library)
        with tracing(tmp_path) as tracer:
            before.do("call", 11, 1)
            after.do("load", library)
            until(lambda: is_traced(tracer, after.pid), "a process that loads the library later is traced")
            after.do("call", 12, 1)
        assert {pid: counts(tracer).get(pid) for pid in (before.pid, after.pid)} == {before.pid: 11, after.pid: 12}


# Has a child that has ended, which it does not wait for.
CARELESS = """
import os, sys
if not (pid := os.fork()):
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A recording of processes that were named, each of which does something else; ended_child: of the careless one."""

    tracer: Tracer
    late: int
    forking: int
    parent: int
    careless: int
    ended_child: int

    def children(self) -> dict[int, int]:
        """Calls by process id of those that were not named."""
        named = (self.late, self.forking, self.parent, self.careless)
        return {pid: count for pid, count in counts(self.tracer).items() if pid not in named}


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    folder = tmp_path_factory.mktemp("followed")
    library, of_late = build_library(folder / "lib"), build_library(folder / "late")
    with (
        caller() as late,
        caller() as forking,
        caller() as parent,
        subprocess.Popen(
            [sys.executable, "-c", CARELESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as careless,
    ):
        assert careless.stdout
        ended_child = int(careless.stdout.readline())
        for process in (forking, parent):
            process.do("load", library)
        pids = [late.pid, forking.pid, parent.pid, careless.pid]
        with tracing(folder, pids=pids) as tracer:
            assert str(of_late) not in tracer.messages[0]["libraries"]
            late.do("load", of_late)
            until(lambda: bool(breakpoints(late.pid, sites(of_late))), "its functions are probed")
            late.do("call", 21, 1)
            forking.do("fork", FORKED, 31, 1)
            forking.do("call", 32, 1)
            forking.do("exec")
            forking.do("load", library)
            forking.do("call", 33, 1)
            parent.do("fork", CHILDREN, 2, 8, 10)
            careless.communicate("\n")
            for process in (late, forking, parent):
                process.end()
            wait_for_end(tracer)
    return Followed(
        tracer=tracer,
        late=late.pid,
        forking=forking.pid,
        parent=parent.pid,
        careless=careless.pid,
        ended_child=ended_child,
    )


def test_a_child_that_nobody_has_waited_for_takes_no_slot_from_others(followed: Followed) -> None:
    last = followed.tracer.messages[-1]
    assert last["refused"] == []
    assert "process_slots_full" not in last["drops"]
    known = "SELECT pid FROM raw_processes WHERE pid IN (?, ?)"
    found = rows(followed.tracer.database, known, followed.careless, followed.ended_child)
    assert found == [(followed.careless,)]


def test_a_library_that_is_loaded_late_is_probed(followed: Followed) -> None:
    assert counts(followed.tracer)[followed.late] == 21


def test_a_process_is_followed_through_fork_and_exec(followed: Followed) -> None:
    assert counts(followed.tracer)[followed.forking] == 32 + 33
    assert Counter(followed.children().values())[31] == FORKED


def test_slots_of_short_lived_children_are_used_again(followed: Followed) -> None:
    children, drops = followed.children(), followed.tracer.messages[-1]["drops"]
    print(f"\n{len(children)} children, losses {drops}")
    assert "process_slots_full" not in drops
    assert Counter(children.values()) == {31: FORKED, 2: CHILDREN}
    short = ",".join(str(pid) for pid, count in children.items() if count == 2)
    found = rows(
        followed.tracer.database,
        "SELECT count(DISTINCT c.process), sum(c.count) FROM raw_call_sites c JOIN raw_processes p USING (process) "
        f"WHERE p.pid IN ({short})",
    )
    assert found == [(CHILDREN, 2 * CHILDREN)], "the histograms of ended processes are stored, too"
