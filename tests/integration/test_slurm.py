"""deploy/slurm under a real Slurm: a controller and a node of the test's own, on the loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.demo.workloads import native
from ingero.fleet.discovery.ask import discovery
from ingero.fleet.node_lists import parse_nodes
from tests.integration.slurm_cluster import PROGRAMS, ROOT, Slurm, slurm_cluster
from tests.integration.targets import rows, simulation, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.alone,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="no Slurm is here (apt-get install slurm-wlm)"),
]

NOBODY = 65534


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with slurm_cluster() as cluster:
        yield cluster


def test_a_job_stands_for_its_nodes() -> None:
    """`--nodes slurm:JOB`, where a node of Slurm is a program of its own."""
    with slurm_cluster(nodes=8) as slurm:
        job = slurm.run("sbatch", "--parsable", "-N8", "--output=/dev/null", "--wrap", "sleep 60").strip()
        slurm.wait_until_running(job)
        found = parse_nodes([f"slurm:{job}"], discovery({**os.environ, "SLURM_CONF": str(slurm.configuration)}, ROOT))
        slurm.run("scancel", job)
    assert [node.host for node in found] == [f"gpu-{number}" for number in range(1, 9)]


def test_a_job_is_recorded_with_its_number_in_every_row_and_belongs_to_its_user(slurm: Slurm) -> None:
    simulated = simulation(slurm.folder / "simulated")
    simulated.folder.chmod(0o777)
    variables = [f"{name}={value}" for name, value in simulated.environment.items() if os.environ.get(name) != value]
    program = Path(shutil.copy(native.build("sandboxed"), slurm.folder / "program"))
    program.chmod(0o755)
    said = slurm.run("srun", "-n1", "env", *variables, program, 6, user=NOBODY)
    until(lambda: not slurm.run("squeue", "-h"), "the job has ended")
    hook_log = slurm.folder / "hook.log"
    print(said, hook_log.read_text() if hook_log.exists() else "")
    [database] = (slurm.folder / "jobs").glob("*.db")
    job = database.stem.removeprefix("job-")
    until(lambda: not (slurm.folder / "run/agent").exists(), "the epilog has ended")
    assert job.isdigit()
    assert (database.stat().st_uid, database.stat().st_mode & 0o777) == (NOBODY, 0o600)
    assert sorted(path.name for path in database.parent.iterdir()) == [database.name, f"job-{job}.log"]
    assert rows(database, "SELECT stop_reason FROM sessions") == [("stopped",)]
    for view in ("cuda_events", "op_stats", "sync_intervals"):
        jobs = (
            f"SELECT (SELECT slurm_job FROM processes p WHERE p.process = v.process), count(*) FROM {view} v GROUP BY 1"
        )
        [(found, count)] = rows(database, jobs)
        print(f"{view}: {count} rows of job {found}")
        assert found == job


def test_jobs_of_two_users_do_not_end_each_others_recording(slurm: Slurm) -> None:
    """The second is told to be unrecorded in the log of the hook, and runs."""
    before = set(slurm.folder.glob("jobs/*.db"))
    first = subprocess.Popen(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "srun", "-n1", "sleep", "8"],
        env={**os.environ, "SLURM_CONF": str(slurm.configuration)},
        cwd="/",
    )
    until((slurm.folder / "run/agent").exists, "the first job is recorded")
    assert "ran" in slurm.run("srun", "-n1", "echo", "ran", user=2)
    assert first.wait() == 0
    until(lambda: not (slurm.folder / "run/agent").exists(), "the epilog has ended")
    assert len(set(slurm.folder.glob("jobs/*.db")) - before) == 1
    assert f"user {NOBODY} is, on the same node" in (slurm.folder / "hook.log").read_text()
