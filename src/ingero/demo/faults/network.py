"""The fault of a lossy network between the workers and their data store."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.demo.faults.model import FaultError, Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.faults.packet_drop import dropping, load
from ingero.demo.workloads.program import Program

HERE, THERE = "198.18.0.1", "198.18.0.2"  # a network reserved for benchmarks (RFC 2544): collides with no real one
BATCH_BYTES = 256 << 10
LOST_SHARE = 0.08


class TcpLoss(Recipe):
    """A store in a network namespace of its own, behind a pair of virtual interfaces that loses packets."""

    def __init__(self, *, share: float = LOST_SHARE) -> None:
        self.share = share
        self._interface = f"igr{os.getpid()}"[:15]

    def requires(self) -> str | None:
        """Root, iproute2, util-linux, and a kernel that takes the dropping program."""
        if os.geteuid() != 0:
            return "making a network namespace needs root"
        for tool, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
            if shutil.which(tool) is None:
                return f"{tool} is missing (apt-get install {package})"
        try:
            os.close(load(0.0))
        except FaultError as error:
            return str(error)
        return None

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Start the store, connect it, and let the workers fetch from it; the network ends with the store."""
        del scratch
        with Program.module("store", "--own-network", "--host", "0.0.0.0") as store:
            _, port = store.wait_for("ready")
            peer = f"{self._interface[:13]}.p"
            _run("ip", "link", "add", self._interface, "type", "veth", "peer", "name", peer, "netns", str(store.pid))
            inside = ("nsenter", f"--net=/proc/{store.pid}/ns/net")
            for prefix, interface, address in (((), self._interface, HERE), (inside, peer, THERE)):
                _run(*prefix, "ip", "address", "add", f"{address}/30", "dev", interface)
                _run(*prefix, "ip", "link", "set", interface, "up")
            yield WorkloadSetup(arguments=("--tcp", f"{THERE}:{port}", "--nbytes", str(BATCH_BYTES)))
        self._await_removal()

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Lose packets on their way from the store."""
        del workload
        with dropping(self._interface, self.share):
            yield Injection()

    def _await_removal(self) -> None:
        """The kernel removes the pair some time after the namespace's last process has ended."""
        while Path(f"/sys/class/net/{self._interface}").exists():
            time.sleep(0.02)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FaultError(f"{' '.join(command)}: {done.stderr.strip()}")
