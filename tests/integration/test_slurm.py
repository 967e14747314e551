"""deploy/slurm under a real Slurm: a controller and a node of the test's own, on the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero.demo.workloads import native
from tests.integration.targets import rows, simulation, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.alone,
    pytest.mark.skipif(shutil.which("slurmctld") is None, reason="no Slurm is here (apt-get install slurm-wlm)"),
]

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
PrologFlags=Alloc
Prolog={folder}/hook
Epilog={folder}/hook
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES MaxTime=10 OverSubscribe=YES
"""
# What slurmd gives a prolog has nothing of the test's own.
HOOK = """#!/bin/sh
export INGERO={folder}/ingero INGERO_JOBS={folder}/jobs INGERO_JOBS_STATE={folder}/run INGERO_WAIT_S=30
export INGERO_SLURM_SETTINGS={folder}/none
exec {script} 2>>{folder}/hook.log
"""
INGERO = """#!/bin/sh
export PYTHONPATH={path} INGERO_RUN_DIR={run}
exec {python} -m ingero.cli.main "$@"
"""


class Slurm:
    """A cluster of one node. folder: all that is its own, and recordings in jobs/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "spool", "agent"):
            (folder / name).mkdir()
        ports = []
        for _ in range(2):
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                ports.append(one.getsockname()[1])
        host, cpus = socket.gethostname().partition(".")[0], os.cpu_count()
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(host=host, ports=ports, folder=folder, cpus=cpus))
        run_folder = os.environ.get("INGERO_RUN_DIR", folder / "agent")
        path = f"{ROOT / 'src'}:{ROOT}"
        for name, text in (
            ("hook", HOOK.format(folder=folder, script=ROOT / "deploy/slurm/record_job.sh")),
            ("ingero", INGERO.format(path=path, run=run_folder, python=sys.executable)),
        ):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Its programs run."""
        munge = ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket"]
        munge += [
            f"--{name}={self.folder}/munge.{name.partition('-')[0]}"
            for name in ("key-file", "log-file", "pid-file", "seed-file")
        ]
        commands = [
            munge,
            ["slurmctld", "-D", "-i", "-f", self.configuration],
            ["slurmd", "-D", "-f", self.configuration],
        ]
        started: list[subprocess.Popen[bytes]] = []
        with (self.folder / "log").open("wb") as log:
            try:
                for command in commands:
                    started.append(subprocess.Popen(command, stdout=log, stderr=log))
                    if command is munge:
                        until((self.folder / "munge.socket").exists, "munge answers")
                until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), (self.folder / "log").read_text())
                yield
            finally:
                for process in reversed(started):
                    process.terminate()
                    process.wait()
                print((self.folder / "log").read_text()[-4000:])

    def run(self, *words: object, user: int = 0) -> str:
        """What one of its commands prints."""
        environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        done = subprocess.run(
            [*identity, *map(str, words)], env=environment, capture_output=True, text=True, check=False, cwd="/"
        )
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="ingero-slurm-") as folder:
        Path(folder).chmod(0o755)
        cluster = Slurm(Path(folder))
        with cluster.running():
            yield cluster


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
