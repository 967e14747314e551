"""Processes are traced as soon as they can be: started before or after the tracer, forked, replaced, loading late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ingero.attach.kernel_side import MAX_PROCESSES
from ingero.discover.library_files import identify
from ingero.discover.sites import probe_sites
from tests.integration.callers import build_library, caller
from tests.integration.targets import breakpoints, rows, until, wait_for_end
from tests.integration.tracing import Tracer, tracing

pytestmark = pytest.mark.integration


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


def test_a_child_that_nobody_has_waited_for_takes_no_slot_from_others(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CARELESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        with tracing(tmp_path, pids=[process.pid]) as tracer:
            tracer.wait_for("second")
        process.communicate("\n")
    assert tracer.messages[-1]["refused"] == []
    assert "process_slots_full" not in tracer.messages[-1]["drops"]
    assert rows(tracer.database, "SELECT pid FROM raw_processes WHERE pid IN (?, ?)", process.pid, child) == [
        (process.pid,)
    ]


def test_a_library_that_is_loaded_late_is_probed(tmp_path: Path, library: Path) -> None:
    with caller() as process, tracing(tmp_path, pids=[process.pid]) as tracer:
        assert tracer.messages[0]["probes"] == 0
        process.do("load", library)
        until(lambda: bool(breakpoints(process.pid, sites(library))), "its functions are probed")
        process.do("call", 21, 1)
        process.end()
        wait_for_end(tracer)
        assert counts(tracer) == {process.pid: 21}


def test_a_process_is_followed_through_fork_and_exec(tmp_path: Path, library: Path) -> None:
    with caller() as process:
        process.do("load", library)
        with tracing(tmp_path, pids=[process.pid]) as tracer:
            process.do("fork", 3, 31, 1)
            process.do("call", 32, 1)
            process.do("exec")
            process.do("load", library)
            process.do("call", 33, 1)
            process.end()
            wait_for_end(tracer)
    by_pid = counts(tracer)
    assert by_pid.pop(process.pid) == 32 + 33
    assert list(by_pid.values()) == [31, 31, 31]


def test_slots_of_short_lived_children_are_used_again(tmp_path: Path, library: Path) -> None:
    children = MAX_PROCESSES + 44
    with caller() as process:
        process.do("load", library)
        with tracing(tmp_path, pids=[process.pid]) as tracer:
            process.do("fork", children, 2, 8, 10)
            process.end()
            wait_for_end(tracer)
    by_pid = counts(tracer)
    print(f"\n{len(by_pid)} processes, losses {tracer.messages[-1]['drops']}")
    assert "process_slots_full" not in tracer.messages[-1]["drops"]
    assert len(by_pid) == children
    assert set(by_pid.values()) == {2}
    sites = rows(tracer.database, "SELECT count(DISTINCT process), sum(count) FROM raw_call_sites")
    assert sites == [(children, 2 * children)], "the histograms of ended processes are stored, too"
