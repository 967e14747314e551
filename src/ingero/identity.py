"""How texts name a process: its rank, its container, how it ended."""

from __future__ import annotations

import re

_ESCAPED = re.compile(r"\\x([2-7][0-9a-f])")
_SCHEDULERS = {
    "slurm": "Slurm",
    "flux": "Flux",
    "pbs": "PBS",
    "lsf": "LSF",
    "htcondor": "HTCondor",
    "gridengine": "Grid Engine",
    "ray": "Ray",
}
_SHOWN_ID_DIGITS = 12  # as `docker ps` and `crictl ps` show a container's id


def unescaped_unit(name: str) -> str:
    r"""The machine name in a unit name, in which `-` is `\x2d` (systemd.unit(5), "String escaping")."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def short_id(container_id: str) -> str:
    """The shortened id of a container for display; names are kept whole."""
    return container_id[:_SHOWN_ID_DIGITS] if len(container_id) >= 32 else container_id


def identity_text(
    rank: int | None,
    world_size: int | None,
    container_id: str | None,
    job: tuple[str, str, str] = ("", "", ""),
) -> str:
    """Text of rank, container and job (scheduler, id, step); empty if a process has none."""
    parts = []
    if rank is not None:
        parts.append(f"rank {rank}" + (f" of {world_size}" if world_size is not None else ""))
    if container_id:
        parts.append(f"container {short_id(container_id)}")
    if text := job_text(*job):
        parts.append(text)
    return ", ".join(parts)


def job_text(scheduler: str, job: str, step: str = "") -> str:
    """A scheduler's job as texts name it: `Slurm job 77 step 0`; empty without one."""
    if not job:
        return ""
    return f"{_SCHEDULERS.get(scheduler, scheduler)} job {job}" + (f" step {step}" if step else "")


def waiting_mark(thread: str) -> str:
    """Marks Python frames of another thread, PID/TID, which waits for the calling thread that has none."""
    return f"[Python, of the thread that waits: {thread}]"


def ending(status: int | None) -> str:
    """How a process ended, from its wait status: exit code in the second byte, or signal in the first."""
    if status is None:
        return "ended"
    signal = status & 0x7F
    return f"was ended by signal {signal}" if signal else f"ended with code {status >> 8 & 0xFF}"
