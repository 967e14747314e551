"""deploy/slurm: what prolog and epilog of a job do, with a program in ingero's place; tests/integration has a Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/slurm/record_job.sh"
USER = os.getuid()
# Notes how it was called, and that it was ended in good order.
AGENT = """#!/bin/sh
trap 'echo ended $3 >>{folder}/calls; exit 0' TERM
echo "$*" >>{folder}/calls
[ "$1" = trace ] || exit {check}
while sleep 0.02; do :; done
"""


class Node:
    """A host with Slurm's script on it. settings: what /etc/ingero/slurm has."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.jobs, self.state = folder, folder / "jobs", folder / "state"
        self.settings = folder / "settings"
        self.write_agent(AGENT.format(folder=folder, check=0))

    def write_agent(self, text: str) -> None:
        """What stands in ingero's place."""
        agent = self.folder / "ingero"
        agent.write_text(text)
        agent.chmod(0o755)

    def run(self, when: str, job: object = "", user: object = USER, **variables: str) -> str:
        """What it says; it must end well, whatever happens."""
        environment = {
            "SLURM_SCRIPT_CONTEXT": when, "SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(user),
            "INGERO": str(self.folder / "ingero"), "INGERO_JOBS": str(self.jobs), "INGERO_JOBS_STATE": str(self.state),
            "INGERO_SLURM_SETTINGS": str(self.settings), **variables,
        }  # fmt: skip
        done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == ""
        return done.stderr

    def begin(self, job: object, **variables: str) -> str:
        """The prolog of a job; the agent that it starts, if any, has begun."""
        before, agent = len(self.calls()), self.agent()
        said = self.run("prolog_slurmd", job, **variables)
        if self.agent() != agent:
            until(lambda: len(self.calls()) > before)
        return said

    def agent(self) -> str:
        """Which agent was started last; "" for none."""
        made = self.state / "agent"
        return made.read_text() if made.exists() else ""

    def end(self, job: object) -> str:
        """Its epilog."""
        return self.run("epilog_slurmd", job)

    def calls(self) -> list[str]:
        """How the agent was called, and when it was ended."""
        made = self.folder / "calls"
        return made.read_text().splitlines() if made.exists() else []

    def traced(self, job: object) -> str:
        """The call by which a job is recorded."""
        return f"trace --db {self.jobs}/job-{job}.db --user {USER}"


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.01)


def command_of(pid: int) -> bytes:
    """Its command line; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.agent() and str(made.folder).encode() in command_of(int(made.agent().split()[0])):  # of a test that left it
        os.kill(int(made.agent().split()[0]), signal.SIGKILL)


def test_a_job_is_recorded_from_its_begin_to_its_end(node: Node) -> None:
    assert node.begin(7) == ""
    assert node.calls() == [node.traced(7)]
    database = node.jobs / "job-7.db"
    assert (database.stat().st_uid, database.stat().st_mode & 0o777) == (USER, 0o600)
    assert node.jobs.stat().st_mode & 0o777 == 0o755
    assert node.end(7) == ""
    assert node.calls() == [node.traced(7), f"ended {database}"]
    assert not (node.state / "agent").exists()


def test_jobs_of_one_user_share_an_agent_that_the_last_of_them_ends(node: Node) -> None:
    node.begin(7)
    node.begin(8)
    assert (node.jobs / "job-8.db").readlink() == Path("job-7.db")
    node.end(7)
    assert node.calls() == [node.traced(7)]
    node.end(8)
    assert node.calls()[1:] == [f"ended {node.jobs}/job-7.db"]


def test_what_another_user_runs_beside_it_is_neither_recorded_nor_ends_it(node: Node) -> None:
    node.begin(7)
    said = node.run("prolog_slurmd", 8, USER + 1)
    assert f"job 8: not recorded: job 7 of user {USER} is" in said
    assert node.run("epilog_slurmd", 8, USER + 1) == ""
    assert node.calls() == [node.traced(7)]
    node.end(7)
    assert len(node.calls()) == 2


def test_a_job_that_is_queued_again_goes_on_in_its_file(node: Node) -> None:
    node.begin(7)
    node.end(7)
    (node.jobs / "job-7.db").write_text("what was recorded")
    node.begin(7)
    node.end(7)
    assert node.calls().count(node.traced(7)) == 2
    assert (node.jobs / "job-7.db").read_text() == "what was recorded"


def test_an_agent_that_was_killed_is_followed_by_another(node: Node) -> None:
    node.begin(7)
    pid = int(node.agent().split()[0])
    os.kill(pid, signal.SIGKILL)
    until(lambda: not command_of(pid))
    node.begin(8)
    assert node.calls()[1] == node.traced(8)
    assert node.end(7) == ""
    assert len(node.calls()) == 2
    node.end(8)
    assert node.calls()[2:] == [f"ended {node.jobs}/job-8.db"]


def test_a_process_that_has_the_number_of_an_agent_is_left_alone(node: Node) -> None:
    other = subprocess.Popen(["sleep", "60"])
    (node.state / "jobs").mkdir(parents=True)
    (node.state / "jobs/7").touch()
    (node.state / "agent").write_text(f"{other.pid} {USER} 7\n")
    node.end(7)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_options_and_jobs_without_gpus_are_settings(node: Node) -> None:
    node.settings.write_text("INGERO_GPUS_ONLY=1\nINGERO_OPTIONS='--max-db 1g --no-io'\n")
    node.begin(7)
    assert (node.calls(), node.end(7)) == ([], "")
    node.begin(8, SLURM_JOB_GPUS="0,1")
    assert node.calls() == [f"{node.traced(8)} --max-db 1g --no-io"]
    node.end(8)


def test_a_job_may_wait_until_it_is_recorded(node: Node) -> None:
    node.begin(7, INGERO_WAIT_S="5")
    assert f"check --recording --db {node.jobs}/job-7.db" in node.calls()
    node.end(7)


def test_an_agent_that_does_not_start_keeps_no_job_from_running(node: Node) -> None:
    node.write_agent("#!/bin/sh\necho cannot trace >&2; exit 2\n")
    node.run("prolog_slurmd", 7, INGERO_WAIT_S="1")
    until(lambda: (node.jobs / "job-7.log").read_text() == "cannot trace\n")
    assert node.end(7) == ""


@pytest.mark.parametrize("what", ["settings", "state", "jobs", "id", "user", "context", "program"])
def test_whatever_is_wrong_it_ends_well(what: str, node: Node) -> None:
    variables = {}
    if what == "settings":
        node.settings.write_text("INGERO_OPTIONS='a\n")
    elif what in ("state", "jobs"):
        getattr(node, what).write_text("a file")
    elif what == "program":
        variables["INGERO"] = "/nowhere/ingero"
    said = node.run(
        "prolog_task" if what == "context" else "prolog_slurmd",
        "../7" if what == "id" else 7,
        "" if what == "user" else USER,
        **variables,
    )
    assert said or what == "program"
    if what == "program":
        until(lambda: "/nowhere/ingero" in (node.jobs / "job-7.log").read_text())
    assert node.calls() == []
