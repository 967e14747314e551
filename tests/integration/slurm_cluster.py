"""A real Slurm of a test's own on the loopback: munge, a controller, and as many nodes as it is to have."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.targets import until

PROGRAMS = ("munged", "slurmctld", "slurmd")
ROOT = Path(__file__).resolve().parents[2]
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
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=10 OverSubscribe=YES
"""
HOOKED = """PrologFlags=Alloc
Prolog={folder}/hook
Epilog={folder}/hook
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus}"""
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
    """A cluster. folder: all that is its own. nodes: gpu-1 and so on; 0: this host alone, whose jobs are recorded by
    the product's prolog and epilog, into jobs/."""

    def __init__(self, folder: Path, nodes: int = 0) -> None:
        self.folder = folder
        self._names = [f"gpu-{number}" for number in range(1, nodes + 1)]
        for name in ("state", "spool", "agent"):
            (folder / name).mkdir()
        ports = _free_ports(2 + nodes)
        host, cpus = socket.gethostname().partition(".")[0], os.cpu_count()
        own = HOOKED.format(host=host, folder=folder, cpus=cpus)
        others = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1"
            for name, port in zip(self._names, ports[2:], strict=True)
        ]
        self.configuration = folder / "slurm.conf"
        text = CONFIGURATION.format(host=host, ports=ports, folder=folder, nodes="\n".join(others) or own)
        self.configuration.write_text(text)
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
        """Runs the cluster's daemons within the block."""
        munge = ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket"]
        munge += [
            f"--{name}={self.folder}/munge.{name.partition('-')[0]}"
            for name in ("key-file", "log-file", "pid-file", "seed-file")
        ]
        commands = [
            munge,
            ["slurmctld", "-D", "-i", "-f", str(self.configuration)],
            *(["slurmd", "-D", "-f", str(self.configuration), *name] for name in self._names_of_each()),
        ]
        started: list[subprocess.Popen[bytes]] = []
        with (self.folder / "log").open("wb") as log:
            try:
                for command in commands:
                    started.append(subprocess.Popen(command, stdout=log, stderr=log))
                    if command is munge:
                        until((self.folder / "munge.socket").exists, "munge answers")
                until(lambda: self._idle() == max(1, len(self._names)), (self.folder / "log").read_text())
                yield
            finally:
                for process in reversed(started):
                    process.terminate()
                    process.wait()
                print((self.folder / "log").read_text()[-4000:])

    def _names_of_each(self) -> list[list[str]]:
        """What says to each slurmd which node it is."""
        return [["-N", name] for name in self._names] or [[]]

    def _idle(self) -> int:
        return self.run("sinfo", "-h", "-N", "-o", "%T").split().count("idle")

    def run(self, *words: object, user: int = 0) -> str:
        """The output of one of its commands."""
        environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        done = subprocess.run(
            [*identity, *map(str, words)], env=environment, capture_output=True, text=True, check=False, cwd="/"
        )
        return done.stdout + done.stderr

    def wait_until_running(self, job: str) -> None:
        """Waits for a job to run on its nodes."""
        until(lambda: "RUNNING" in self.run("squeue", "-h", "-o", "%T", "-j", job), f"job {job} runs")


def _free_ports(count: int) -> list[int]:
    """Free ports of the loopback, all different."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in found]


@contextmanager
def slurm_cluster(nodes: int = 0) -> Iterator[Slurm]:
    """A running cluster."""
    with tempfile.TemporaryDirectory(prefix="ingero-slurm-") as folder:
        Path(folder).chmod(0o755)
        cluster = Slurm(Path(folder), nodes)
        with cluster.running():
            yield cluster
