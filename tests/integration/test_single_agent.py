"""Two agents in containers that share neither file system nor network, only the kernel and its process ids."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ingero.attach.machine_marks import MachineMark

pytestmark = pytest.mark.integration

NAME = f"ingero_t{os.getpid()}"  # agents of other tests and of this machine's users are not met

# a /run of its own, and no way to that of process 1, as where an LSM closes it
CONTAINER = 'mount -t tmpfs run /run && mount -t tmpfs nothing /proc/1 && exec "$@"'
AGENT = """
import os, sys
from pathlib import Path
from ingero.capture.loop.single_agent import only_agent
from ingero.errors import IngeroError
try:
    with only_agent(Path("/data/first.db"), {}, mark=sys.argv[1]) as facts:
        print("runs", *Path("/run/ingero").iterdir(), flush=True)
        sys.stdin.read()
except IngeroError as error:
    print(f"refused: {error}; {error.hint}", flush=True)
"""


@contextmanager
def agent(*privileges: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An agent in a container of its own, and the first thing it says."""
    command = ["unshare", "--mount", "--net", "sh", "-c", CONTAINER, "sh", *privileges]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", AGENT, NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    try:
        yield process, process.stdout.readline()
    finally:
        process.communicate()


def test_the_second_of_two_agents_in_containers_is_told_who_the_first_is() -> None:
    with agent() as (first, said), agent() as (_, answer):
        assert said == "runs /run/ingero/agent.lock\n"
        assert answer.startswith(f"refused: another ingero is tracing this host: pid {first.pid}, since 20")
        assert f"-c {NAME}" in answer
        assert f" explain --db /proc/{first.pid}/root/data/first.db" in answer
        assert f"kill {first.pid}" in answer


def test_after_a_killed_agent_the_next_one_runs() -> None:
    with agent() as (first, _):
        first.kill()
        first.wait()
        with agent() as (_, said):
            assert said.startswith("runs")


def test_an_agent_that_may_not_list_what_is_in_the_kernel_is_seen_by_one_that_may() -> None:
    few = ",".join(("-all", "+bpf", "+perfmon", "+sys_ptrace"))
    least = ("setpriv", f"--inh-caps={few}", f"--bounding-set={few}")
    with agent(*least) as (first, said), agent(*least) as (_, unaware), agent() as (_, answer):
        assert said.startswith("runs")
        assert unaware.startswith("runs"), "its own lock is all that it can see"
        assert f"pid {first.pid}" in answer


def test_of_two_that_begin_at_once_only_the_later_one_finds_the_other() -> None:
    one, other = MachineMark(NAME, "one"), MachineMark(NAME, "other")
    try:
        assert (one.earlier(), other.earlier()) == (None, "one")
    finally:
        one.close()
    assert other.earlier() is None
    other.close()


def test_a_mark_of_another_name_is_not_met() -> None:
    one, other = MachineMark(NAME, "one"), MachineMark(f"{NAME}b", "other")
    try:
        assert other.earlier() is None
    finally:
        one.close()
        other.close()
