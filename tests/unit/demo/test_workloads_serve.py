"""The inference server on the simulated GPU, and its load generator."""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.demo.gpusim import build
from ingero.demo.workloads.program import Program, WorkloadError

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Program, int]]:
    environment = {**os.environ, **build.environment(build.build(), sched="block", ctl=tmp_path / "ctl")}
    with Program.module("serve_inference", "--out", tmp_path / "served", environment=environment) as program:
        port = int(program.wait_for("ready")[1])
        yield program, port
        assert program.stop() == 0


def load(*arguments: object) -> list[dict[str, int]]:
    with Program.module("serve_load", *arguments) as program:
        return [json.loads(line) for line in program.finish().splitlines()]


def switches(pid: int) -> int:
    """How often the threads of a process gave up a CPU by themselves."""
    return sum(
        int(line.split()[1])
        for task in Path(f"/proc/{pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


def sleeps_everywhere(pid: int) -> bool:
    """Whether every thread sleeps; if so, none has work."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)


def test_every_request_is_answered_with_its_tokens(server: tuple[Program, int], tmp_path: Path) -> None:
    answers = load(server[1], "--requests", 20)
    served = [json.loads(line) for line in (tmp_path / "served").read_text().splitlines()]
    assert len(answers) == 20
    assert sorted(a["tokens"] for a in answers) == sorted(s["tokens"] for s in served)


def test_requests_of_several_clients_share_a_batch(server: tuple[Program, int], tmp_path: Path) -> None:
    load(server[1], "--requests", 12, "--clients", 4, "--new-tokens", 32)
    served = [json.loads(line) for line in (tmp_path / "served").read_text().splitlines()]
    starts_and_ends = [(s["t_ns"] - s["latency_ns"], s["t_ns"]) for s in served]
    assert any(a[0] < b[0] < a[1] for a in starts_and_ends for b in starts_and_ends)


@pytest.mark.parametrize("after_traffic", [False, True])
def test_it_sleeps_without_traffic(server: tuple[Program, int], after_traffic: bool) -> None:
    program, port = server
    if after_traffic:
        load(port, "--requests", 4)
    while not sleeps_everywhere(program.pid):
        time.sleep(0.005)
    before = switches(program.pid)
    time.sleep(0.2)  # a span in which something that polls would have woken
    assert switches(program.pid) == before


def test_a_client_that_talks_nonsense_is_dropped_and_the_others_are_served(server: tuple[Program, int]) -> None:

    with socket.create_connection(("127.0.0.1", server[1])) as nonsense:
        nonsense.sendall(b"\xff" * 64)
        assert nonsense.recv(1) == b""
    assert len(load(server[1], "--requests", 2)) == 2


def test_the_load_ends_when_its_time_is_over(server: tuple[Program, int]) -> None:
    assert 0 < len(load(server[1], "--requests", 10_000, "--rate", 20, "--seconds", 0.5)) <= 11


def test_a_load_without_a_server_fails() -> None:

    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(WorkloadError, match="ended with 1"):
        load(port, "--requests", 1)
