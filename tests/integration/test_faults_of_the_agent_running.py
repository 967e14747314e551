"""What happens to a running agent and its targets: nothing is miscounted, nothing left behind, the end is in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ingero.demo.workloads import native
from ingero.events import STATE_COLUMNS
from tests.integration.callers import Caller, build_library, caller
from tests.integration.leftovers import Held, held_by, open_files, uprobe_events
from tests.integration.targets import (
    Recorded,
    breakpoints,
    probed_sites,
    rows,
    simulation,
    until,
    wait_for_end,
    waiting,
)
from tests.integration.test_faults_of_the_agent import INGERO, filesystem
from tests.integration.test_never_harm import assert_counts_are_true
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

STOPPED_S = 3
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/recordings/incident.db"


@pytest.fixture
def traced_process(tmp_path: Path) -> Iterator[Caller]:
    with caller() as process:
        process.do("load", build_library(tmp_path / "lib"))
        yield process
        process.do("call", 3, 1)


def assert_nothing_is_left(held: Held) -> None:
    """Programs, maps and links are freed by a worker of the kernel, a moment after the last file is closed."""
    until(lambda: not held.still_there(), f"nothing of {held.ids} is left")


def test_a_stopped_agent_counts_what_it_missed_and_invents_no_long_calls(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with (
        waiting(simulated, [native.build("sandboxed"), 7]) as process,
        tracing(tmp_path, pids=[process.pid], options=["--record-all"]) as tracer,
    ):
        program = process.go()
        tracer.wait_for("second")
        tracer.process.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        tracer.process.send_signal(signal.SIGCONT)
        output = program.finish()
        wait_for_end(tracer)
    recorded = Recorded(output=output, truth=simulated.truth(), tracer=tracer)
    assert_counts_are_true(recorded)
    assert max(message["elapsed_s"] for message in tracer.messages if message["type"] == "second") >= STOPPED_S
    ((calls, selected),) = rows(tracer.database, "SELECT sum(count), sum(recorded) FROM raw_op_stats")
    ((stored, longest_ns, unsettled),) = rows(
        tracer.database,
        "SELECT count(*), max(duration_ns), sum(abs(residual_ns) > duration_ns / 2 + 100000) FROM raw_events "
        "WHERE source IN (1, 4, 8) AND run_ns IS NOT NULL",
    )
    lost = {name: count for name, count in recorded.drops.items() if "call_records" in name or "raw_events" in name}
    print(f"\n{calls} calls, {selected} selected, {stored} stored, lost {lost}, longest {longest_ns / 1e6:.1f} ms")
    assert stored + sum(lost.values()) == selected == calls
    assert longest_ns < STOPPED_S * 1e9 / 2, "the time that the agent stood still is nobody's"
    assert not unsettled
    ((clocks_s, covered_s),) = rows(
        tracer.database,
        f"SELECT sum({' + '.join(STATE_COLUMNS)}) / 1e9, (max(start_ns) - min(start_ns)) / 1e9 "
        "FROM raw_thread_state_seconds "
        "WHERE start_ns > (SELECT min(start_ns) FROM raw_thread_state_seconds)",  # the account began within the first
    )
    # rows begin with the agent's seconds, clocks are read a little later: on a busy machine tenths of a second
    assert clocks_s >= 0.85 * covered_s, "the clocks of the time in between are there"


def test_a_stopped_target_is_charged_to_the_stop(tmp_path: Path, traced_process: Caller) -> None:
    with tracing(tmp_path, pids=[traced_process.pid]) as tracer:
        tracer.wait_for("second")
        os.kill(traced_process.pid, signal.SIGSTOP)
        tracer.wait_for("second")
        tracer.wait_for("second")
        os.kill(traced_process.pid, signal.SIGCONT)
        traced_process.do("call", 5, 1)
        tracer.wait_for("second")
        assert tracer.process.poll() is None
    assert rows(tracer.database, "SELECT sum(count) FROM raw_op_stats") == [(5,)]


def test_a_killed_agent_leaves_nothing_in_the_kernel(tmp_path: Path, traced_process: Caller) -> None:
    before = uprobe_events()
    with tracing(tmp_path, pids=[traced_process.pid]) as tracer:
        sites, held = probed_sites(tracer), held_by(tracer.process.pid)
        assert all(held.ids.values()), "the check itself must be able to see them"
        assert breakpoints(traced_process.pid, sites)
        tracer.process.kill()
        tracer.process.wait()
    assert_nothing_is_left(held)
    until(lambda: not breakpoints(traced_process.pid, sites), "the probes are gone")
    assert uprobe_events() <= before


@pytest.mark.parametrize(
    "number",
    [signal.SIGHUP, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.further)],  # which ends all others
)
def test_a_signal_ends_it_in_order_and_leaves_nothing(
    tmp_path: Path, traced_process: Caller, number: signal.Signals
) -> None:
    with tracing(tmp_path, pids=[traced_process.pid]) as tracer:
        sites, held = probed_sites(tracer), held_by(tracer.process.pid)
        assert breakpoints(traced_process.pid, sites)
        traced_process.do("call", 11, 1)
        tracer.process.send_signal(number)
        wait_for_end(tracer)
        assert tracer.stderr_text() == ""
    assert_nothing_is_left(held)
    until(
        lambda: not breakpoints(traced_process.pid, sites), "the probes are gone, of agents that trace everybody, too"
    )
    assert rows(tracer.database, "SELECT sum(count) FROM raw_op_stats") == [(11,)]
    assert rows(tracer.database, "SELECT count(*) FROM raw_sessions WHERE stopped_ns IS NOT NULL") == [(1,)]
    assert not list(tmp_path.glob("*.lock"))


def test_a_reader_that_leaves_the_pipe_ends_it_in_order(tmp_path: Path, traced_process: Caller) -> None:
    command = [*INGERO, "trace", "--json", "--pid", str(traced_process.pid), "--db", str(tmp_path / "r.db")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stderr
    assert '"started"' in process.stdout.readline()
    traced_process.do("call", 13, 1)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 128 + signal.SIGPIPE
    process.stderr.close()
    assert rows(tmp_path / "r.db", "SELECT sum(count) FROM raw_op_stats") == [(13,)]
    assert rows(tmp_path / "r.db", "SELECT count(*) FROM raw_sessions WHERE stopped_ns IS NOT NULL") == [(1,)]


def test_a_command_that_only_prints_ends_quietly_in_a_closed_pipe() -> None:
    shell = f"{sys.executable} -m ingero.cli.main explain --db {EXAMPLE} | head -0"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_full_disk_is_said_once_and_recording_resumes(tmp_path: Path) -> None:
    """The disk is full, rows are lost and counted by table, there is room again, and what comes then is stored."""
    with ExitStack() as stack:
        disk = stack.enter_context(filesystem(tmp_path / "disk", "size=160m"))
        simulated = simulation(tmp_path)
        process = stack.enter_context(waiting(simulated, [native.build("sandboxed"), 600]))
        tracer = stack.enter_context(tracing(disk, pids=[process.pid], options=["--record-all"]))
        process.go()
        tracer.wait_for("second")
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file:
            fill(file.fileno())
        while not any(name.startswith("rows_lost_raw_events") for name in tracer.wait_for("second")["drops"]):
            pass
        assert process.program.process.poll() is None
        filler.unlink()
        stored = "SELECT count(*) FROM raw_drops WHERE counter = 'store_rows_lost'"
        until(lambda: rows(tracer.database, stored)[0][0] > 0, "the losses are stored once there is room")
        tracer.wait_for("second")
        process.program.process.kill()
        tracer.wait_for("finished")
        said = tracer.stderr_text()
        lost = tracer.messages[-1]["drops"]
        shutil.copy(tracer.database, tmp_path / "r.db")
    print(f"\n{said.strip()}\nlost {lost}")
    assert "Traceback" not in said
    assert said.count("the disk is full") == 1
    assert "df -h" in said
    tables = {name for name in lost if name.startswith("rows_lost_")}
    assert "rows_lost_raw_events_write_failed" in tables


def fill(descriptor: int) -> None:
    block = bytes(4096)
    try:
        while os.write(descriptor, block):
            pass
    except OSError:
        return


def test_targets_that_go_leave_no_file_open(tmp_path: Path) -> None:
    """They are killed, become another program first, or had a root of their own."""
    library = build_library(tmp_path / "lib")
    with ExitStack() as stack:
        stays = stack.enter_context(caller())
        killed, gone_on, rooted = (
            [stack.enter_context(caller(prefix)) for _ in range(5)] for prefix in ((), (), ("chroot", "/"))
        )
        goers = [*killed, *gone_on, *rooted]
        for process in (stays, *goers):
            process.do("load", library)
        # by pid: what other programs of this machine load must not count
        tracer = stack.enter_context(tracing(tmp_path, pids=[process.pid for process in (stays, *goers)]))
        for _ in range(
            3
        ):  # by then the agent has opened what it keeps open, its own database to look for findings, too
            tracer.wait_for("second")
        before, held = open_files(tracer.process.pid), held_by(tracer.process.pid)
        for process in goers:
            process.do("call", 2, 1)
            if process in gone_on:
                process.do("exec")
            process.process.kill()
        for _ in range(4):
            tracer.wait_for("second")
        assert open_files(tracer.process.pid) <= before
        stays.do("call", 7, 1)
        tracer.stop()
    assert_nothing_is_left(held)
    calls = "SELECT p.pid, sum(s.count) FROM raw_op_stats s JOIN raw_processes p USING (process) GROUP BY 1"
    assert dict(rows(tracer.database, calls)) == {stays.pid: 7} | {process.pid: 2 for process in goers}
