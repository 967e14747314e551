"""Processes that the kernel killed because memory was used up, as far as they matter to a traced job."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link, Severity
from ingero.ops import HostOp, Source
from ingero.store.host_events import HostEvent
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS, format_bytes

HOST = "host"
CGROUP = "cgroup"


def kills(evidence: Evidence, limits: tuple[str | None, ...]) -> Iterator[HostEvent]:
    """Every OOM kill of the window below limits of these kinds."""
    yield from (event for event in _kills(evidence) if event.limit in limits)


def is_close(evidence: Evidence, event: HostEvent) -> bool:
    """Whether it hit a traced process, or somebody in its control group."""
    groups = {one.cgroup_id for one in evidence.processes.values() if one.is_traced and one.cgroup_id}
    return bool(victim_of(evidence, event)) or (event.limit == CGROUP and event.cgroup_id in groups)


def _kills(evidence: Evidence) -> Iterator[HostEvent]:
    """Every OOM kill of the window; kills are few, other events of the host may be many."""
    rows = evidence.events(evidence.window, (Source.HOST,))
    for start_ns in rows["start_ns"][rows["op"] == HostOp.OOM_KILL].tolist():
        moment = Window(begin_ns=start_ns, end_ns=start_ns + 1)
        found = evidence.reader.host_events(moment, source=Source.HOST)
        yield from (one for one in found if one.op == HostOp.OOM_KILL)


def victim_of(evidence: Evidence, event: HostEvent) -> Process | None:
    """The traced process that was killed; None where it was somebody else."""
    process = evidence.processes.get(event.process or 0)
    return process if process and process.is_traced else None


def finding(evidence: Evidence, event: HostEvent, cause: str, *, whose: str, fixes: tuple[Fix, ...]) -> Finding:
    """What a kill means for the job. whose: the memory that was used up, in words."""
    victim = victim_of(evidence, event)
    name = event.comm or (victim.name if victim else "")
    used = f" with {format_bytes(event.size_bytes)} in memory" if event.size_bytes else ""
    role = "" if victim is None else _role(evidence, victim)
    shared = is_close(evidence, event)
    beside = "; it shared the cgroup of a traced process" if shared else "; no traced process was affected"
    beside = "" if victim else beside
    asked = "" if event.pid == event.other_pid else f", while {_name(evidence, event.pid)} asked for memory"
    return Finding(
        cause=cause,
        resource="memory",
        root=str(event.other_pid),
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL if victim else Severity.LOW,
        window=Window(begin_ns=event.start_ns, end_ns=event.start_ns + SECOND_NS),
        summary=f"{name} [{event.other_pid}]{role} was killed{used}: {whose} was used up{asked}{beside}",
        culprits=(Culprit(pid=event.pid, name=_comm(evidence, event.pid, event)),),
        chain=(
            Link(
                text=f"the kernel killed {name} [{event.other_pid}]",
                structure="the killed process as the kernel marked it, and the cgroup that the killing thread had "
                "reclaimed for",
                order="after reclaim had found nothing more to free",
            ),
        ),
        fixes=fixes,
        evidence={
            "victim": event.other_pid,
            "killed process resident (bytes)": event.size_bytes,
            "asked for memory": event.pid,
            "limit": event.limit or "unknown",
        },
    )


def _role(evidence: Evidence, victim: Process) -> str:
    parent = evidence.process_at(victim.parent_pid or 0)
    return f", a worker of {parent.name} [{parent.pid}]," if parent else ""


def _comm(evidence: Evidence, pid: int, event: HostEvent) -> str:
    return event.comm if pid == event.other_pid else evidence.name_of_pid(pid)


def _name(evidence: Evidence, pid: int) -> str:
    return f"{evidence.name_of_pid(pid) or 'pid'} [{pid}]"
