"""Finds the container runtimes and orchestrators of this host, by their sockets and daemons."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ingero.discover.containers import Placement, placement_among
from ingero.discover.processes import PROC

_SOCKETS = {
    "docker": ("run/docker.sock",),
    "containerd": ("run/containerd/containerd.sock", "run/k3s/containerd/containerd.sock"),
    "cri-o": ("run/crio/crio.sock",),
    "podman": ("run/podman/podman.sock",),
}
_DAEMONS = {
    "kubelet": "kubernetes",
    "k3s-server": "kubernetes",
    "k3s-agent": "kubernetes",
    "slurmd": "slurm",
    "slurmstepd": "slurm",
    "ecs-agent": "ecs",
    "amazon-ecs-agent": "ecs",
    "dockerd": "docker",
    "containerd": "containerd",
    "crio": "cri-o",
    "conmon": "podman",
}
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "ECS_CONTAINER_METADATA_URI_V4": "ecs",
    "SLURM_JOB_ID": "slurm",
}
_ORCHESTRATORS = ("kubernetes", "slurm", "ecs")


def container_runtimes(process_names: Iterable[str], root: Path = Path("/")) -> tuple[str, ...]:
    """The runtimes whose socket or daemon is here."""
    running = {_DAEMONS[name] for name in process_names if name in _DAEMONS}
    answering = {name for name, paths in _SOCKETS.items() if any((root / path).exists() for path in paths)}
    return tuple(sorted((running | answering) - {*_ORCHESTRATORS}))


def orchestrators(process_names: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The orchestrators whose daemon runs here, or that started this very process."""
    running = {_DAEMONS[name] for name in process_names if name in _DAEMONS}
    from_environ = {name for variable, name in _VARIABLES.items() if variable in environ}
    return tuple(sorted((running | from_environ) & {*_ORCHESTRATORS}))


def own_placement(proc: Path = PROC) -> Placement:
    """Where the agent itself runs."""
    return placement_of_process(os.getpid(), proc)


def placement_of_process(pid: int, proc: Path = PROC) -> Placement:
    """The placement of a process by its cgroups; empty if they show none."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Placement()
    return placement_among(line.split(":", 2)[2] for line in lines if line.count(":") >= 2)


def has_own_root(proc: Path = PROC) -> bool | None:
    """Whether this process has another root than process 1, as in a container; None: not visible.

    Only with the machine's PID namespace, as tracing needs it: elsewhere process 1 is the container's own.
    """
    try:
        theirs, ours = ((proc / name / "root").stat() for name in ("1", "self"))
    except OSError:  # without ptrace access to process 1
        return None
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)
