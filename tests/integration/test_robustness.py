"""Whatever is killed, nothing else is harmed: not the workload, not the recording, not the machine's probes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingero.demo.gpusim.knobs import Knobs
from ingero.demo.workloads import native
from ingero.events import CallFlag
from ingero.ops import Source
from tests.integration.targets import (
    Simulation,
    breakpoints,
    probed_sites,
    rows,
    simulation,
    until,
    wait_for_end,
    waiting,
)
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

STALE_LIMIT_NS = 2_000_000_000  # one second is promised; the rest is for a machine that is busy with other things


def calls_so_far(simulated: Simulation) -> int:
    return sum(calls.total for calls in simulated.truth().calls.values())


def newest_row_ns(database: Path) -> int:
    """When the newest recorded call ended (unix)."""
    ((newest,),) = rows(database, "SELECT max(start_ns + duration_ns) FROM raw_events WHERE source IN (1, 4)")
    return int(newest)


def end_of_counts_ns(database: Path) -> int:
    """Until when calls are counted (unix): a row holds the calls of one second."""
    ((start,),) = rows(database, "SELECT max(start_ns) FROM raw_op_stats")
    return int(start) + 1_000_000_000


def command(database: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ingero.cli.main",
        "trace",
        "--json",
        "--max-overhead=0",
        "--db",
        str(database),
        *options,
    ]


def test_sigkill_of_the_agent_harms_nothing(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with (
        waiting(simulated, [native.build("sandboxed"), 12]) as process,
        tracing(tmp_path, pids=[process.pid]) as tracer,
    ):
        program = process.go()
        for _ in range(3):
            tracer.wait_for("second")
        sites = probed_sites(tracer)
        assert breakpoints(program.pid, sites), "the check itself must be able to see a probe"
        tracer.process.kill()
        killed_ns = time.time_ns()
        tracer.process.wait()
        made = calls_so_far(simulated)
        assert program.process.poll() is None
        until(lambda: not breakpoints(program.pid, sites), "the probes are gone")
        until(lambda: calls_so_far(simulated) > made, "the workload goes on")
        assert json.loads(program.finish())["steps"] > 0
    newest, counted = (killed_ns - at for at in (newest_row_ns(tracer.database), end_of_counts_ns(tracer.database)))
    print(
        f"\n{len(sites)} probes; newest call {newest / 1e9:.2f} s before the kill, counts until {counted / 1e9:.2f} s"
    )
    assert newest <= STALE_LIMIT_NS
    assert counted <= STALE_LIMIT_NS


def test_a_killed_recording_can_be_continued(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with waiting(simulated, [native.build("sandboxed"), 1]) as process:
        with tracing(tmp_path, pids=[process.pid]) as killed:
            killed.process.kill()
            killed.process.wait()
        with tracing(tmp_path, pids=[process.pid]) as tracer:
            process.go().finish()
            wait_for_end(tracer)
    reasons = rows(tracer.database, "SELECT stop_reason FROM raw_sessions ORDER BY session")
    assert reasons[0] == ("killed",)
    assert reasons[1] != ("killed",)


def test_a_second_recorder_on_a_database_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with waiting(simulation(tmp_path), ["/bin/true"]) as process, tracing(tmp_path, pids=[process.pid]) as tracer:
        second = subprocess.run(
            command(tracer.database, "--pid", str(process.pid)), capture_output=True, text=True, check=False
        )
        assert second.returncode not in (0, 130)
        assert second.stdout == ""
        assert "Traceback" not in second.stderr
        assert str(tracer.process.pid) in second.stderr
        assert "--db" in second.stderr
        assert tracer.process.poll() is None


def test_a_duration_ends_the_recording(tmp_path: Path) -> None:
    with waiting(simulation(tmp_path), ["/bin/true"]) as process:
        full = command(tmp_path / "r.db", "--pid", str(process.pid), "--duration", "2s")
        done = subprocess.run(full, capture_output=True, text=True, check=True)
        assert process.program.process.poll() is None
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [messages[0]["type"], messages[-1]["type"]] == ["started", "finished"]
    recorded_s = sum(message["elapsed_s"] for message in messages if message["type"] == "second")
    assert recorded_s >= 1  # how much longer a busy machine takes is its own affair; for ever would be the time limit


def in_flight(database: Path) -> list[tuple[int, int, int, float]]:
    """(operation, pid, tid, seconds) of calls that were seen to be open for long."""
    return rows(database, "SELECT op, pid, tid, (time_ns - since_ns) / 1e9 FROM raw_in_flight ORDER BY time_ns")


def test_a_target_killed_in_mid_call_leaves_an_unfinished_call(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with (
        waiting(simulated, [native.build("sandboxed"), 600]) as process,
        tracing(tmp_path, pids=[process.pid]) as tracer,
    ):
        program = process.go()
        tracer.wait_for("second")
        with Knobs(simulated.knobs) as knobs:
            knobs.hang = 1
        while not tracer.wait_for("second")["in_flight"]:
            pass
        until(lambda: bool(in_flight(tracer.database)), "the open call is stored")
        hung = in_flight(tracer.database)
        program.process.kill()
        program.stop()
        wait_for_end(tracer)
    columns = "op, pid, tid, duration_ns / 1e9"
    of_calls = f"source IN ({Source.CUDA:d}, {Source.DRIVER:d})"
    calls = rows(
        tracer.database, f"SELECT {columns} FROM raw_events WHERE {of_calls} AND flags & ?", CallFlag.UNFINISHED
    )
    print(f"\nin flight: {hung}; when its process was killed: {calls}")
    assert len(calls) == 1
    assert calls[0][:3] == hung[-1][:3] == (calls[0][0], program.pid, program.pid)
    assert calls[0][3] >= hung[-1][3] > 1
