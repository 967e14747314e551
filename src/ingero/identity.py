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
    r"""A machine's name out of a unit's, in which `-` is `\x2d` (systemd.unit(5), "String escaping")."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def short_id(container_id: str) -> str:
    """The part of a container's id that people are shown; names are shown whole."""
    return container_id[:_SHOWN_ID_DIGITS] if len(container_id) >= 32 else container_id


def identity_text(
    rank: int | None,
    world_size: int | None,
    container_id: str | None,
    job: tuple[str, str, str] = ("", "", ""),
) -> str:
    """Rank, container and job (scheduler, id, step); empty where a process has none."""
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
    """Marks Python frames as not of the thread that made the call: it has none, and this one, PID/TID, waits for it."""
    return f"[Python, of the thread that waits: {thread}]"


def ending(status: int | None) -> str:
    """How a process ended, by the status that the kernel keeps: a code in the second byte, or a signal in the first."""
    if status is None:
        return "ended"
    signal = status & 0x7F
    return f"was ended by signal {signal}" if signal else f"ended with code {status >> 8 & 0xFF}"
