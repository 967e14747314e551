"""Signals that stop, continue or kill a target, with their sender."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.host_events.conftest import Tracer, Workload

pytestmark = pytest.mark.integration


def test_a_stop_by_another_process_is_recorded_with_sender_signal_and_affected(
    tracer: Tracer, workload: Callable[..., Workload]
) -> None:
    program = workload("wait_for_signal")
    tracer.track(program.pid)
    os.kill(program.pid, signal.SIGSTOP)
    os.kill(program.pid, signal.SIGCONT)
    records = tracer.lifecycle("STOP_SIGNAL")
    assert list(records["code"]) == [signal.SIGSTOP, signal.SIGCONT]
    assert set(records["pid"]) == {program.pid}
    assert set(records["other_pid"]) == {os.getpid()}
    assert records["comm"][0] == Path("/proc/self/comm").read_bytes().rstrip()
    assert set(records["process_slot"]) == {0}


def test_a_kill_is_recorded_with_the_start_time_of_its_victim(
    tracer: Tracer, workload: Callable[..., Workload]
) -> None:
    program = workload("wait_for_signal")
    tracer.track(program.pid)
    stat = Path(f"/proc/{program.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    program.process.kill()
    record = tracer.lifecycle("STOP_SIGNAL")[0]
    assert record["code"] == signal.SIGKILL
    assert int(record["start_boottime_ns"]) * os.sysconf("SC_CLK_TCK") // 10**9 == int(stat[19])


def test_other_signals_are_not_recorded(tracer: Tracer, workload: Callable[..., Workload]) -> None:
    program = workload("wait_for_signal")
    tracer.track(program.pid)
    program.begin()
    os.kill(program.pid, signal.SIGUSR1)
    assert program.result() == {}
    assert not len(tracer.lifecycle("STOP_SIGNAL"))


def test_stopping_a_process_that_is_no_target_leaves_no_record(
    tracer: Tracer, workload: Callable[..., Workload]
) -> None:
    other = workload("wait_for_signal")
    os.kill(other.pid, signal.SIGSTOP)
    os.kill(other.pid, signal.SIGCONT)
    assert not len(tracer.lifecycle("STOP_SIGNAL"))
