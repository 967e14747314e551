"""OOM kills by the kernel, and how each relates to a traced job."""

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
    """OOM kills in the window below limits of these kinds."""
    yield from (event for event in _all_kills(evidence) if event.limit in limits)


def affects_traced_job(evidence: Evidence, event: HostEvent) -> bool:
    """Whether an OOM kill hit a traced process, or a process in the cgroup of one."""
    groups = {process.cgroup_id for process in evidence.processes.values() if process.is_traced and process.cgroup_id}
    return bool(traced_killed_process(evidence, event)) or (event.limit == CGROUP and event.cgroup_id in groups)


def _all_kills(evidence: Evidence) -> Iterator[HostEvent]:
    """All OOM kills in the window. Only their seconds are read: other host events may be many."""
    rows = evidence.events(evidence.window, (Source.HOST,))
    for start_ns in rows["start_ns"][rows["op"] == HostOp.OOM_KILL].tolist():
        at_kill = Window(begin_ns=start_ns, end_ns=start_ns + 1)
        events = evidence.reader.host_events(at_kill, source=Source.HOST)
        yield from (kill for kill in events if kill.op == HostOp.OOM_KILL)


def traced_killed_process(evidence: Evidence, event: HostEvent) -> Process | None:
    """The traced process that was killed; None where it was an untraced one."""
    process = evidence.processes.get(event.process or 0)
    return process if process and process.is_traced else None


def oom_finding(evidence: Evidence, event: HostEvent, cause: str, *, whose: str, fixes: tuple[Fix, ...]) -> Finding:
    """A finding about one OOM kill. whose: the memory that was used up, in words."""
    killed = traced_killed_process(evidence, event)
    name = event.comm or (killed.name if killed else "")
    used = f" with {format_bytes(event.size_bytes)} in memory" if event.size_bytes else ""
    role = "" if killed is None else _role(evidence, killed)
    shared = affects_traced_job(evidence, event)
    others_text = "; it shared the cgroup of a traced process" if shared else "; no traced process was affected"
    others_text = "" if killed else others_text
    asked_text = (
        "" if event.pid == event.other_pid else f", while {_process_text(evidence, event.pid)} asked for memory"
    )
    return Finding(
        cause=cause,
        resource="memory",
        root=str(event.other_pid),
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL if killed else Severity.LOW,
        window=Window(begin_ns=event.start_ns, end_ns=event.start_ns + SECOND_NS),
        summary=f"{name} [{event.other_pid}]{role} was killed{used}: {whose} was used up{asked_text}{others_text}",
        culprits=(Culprit(pid=event.pid, name=_culprit_name(evidence, event.pid, event)),),
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
            "killed process": event.other_pid,
            "killed process resident (bytes)": event.size_bytes,
            "asked for memory": event.pid,
            "limit": event.limit or "unknown",
        },
    )


def _role(evidence: Evidence, killed: Process) -> str:
    parent = evidence.process_at(killed.parent_pid or 0)
    return f", a worker of {parent.name} [{parent.pid}]," if parent else ""


def _culprit_name(evidence: Evidence, pid: int, event: HostEvent) -> str:
    return event.comm if pid == event.other_pid else evidence.name_of_pid(pid)


def _process_text(evidence: Evidence, pid: int) -> str:
    return f"{evidence.name_of_pid(pid) or 'pid'} [{pid}]"
