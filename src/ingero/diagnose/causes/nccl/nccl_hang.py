"""Ranks wait in communication for a rank that does not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.nccl.collective_counts import do_disagree
from ingero.diagnose.causes.nccl.hung_init import Meeting, hung_meetings
from ingero.diagnose.causes.nccl.hung_ranks import FIRST_HANGS_NS, HungRanks, hung_ranks
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import CodeLine, Culprit, Finding, FindingKind, Fix, Link, Part, Severity
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.diagnose.lost_time.ended import has_passed, severity_of_stop
from ingero.identity import ending
from ingero.store.records import Process, Window
from ingero.units import format_ns

CAUSE = "nccl-hang"
_MOST_NAMED = 8
HANGS_LONGER = 1.5  # than it was seen to: open calls are looked at once a second


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Hung ranks that agree, with those that are missing and what those are doing."""
    for ranks in hung_ranks(evidence):
        if not do_disagree(evidence, ranks):
            yield _finding(evidence, ranks)
    for meeting in hung_meetings(evidence):
        yield _alone(evidence, meeting)


def find(case: Case) -> Iterator[Finding]:
    """What such a rank lost, once it went on."""
    number = case.process.process
    for ranks in hung_ranks(case.evidence):
        is_here = (
            number in ranks.inside and ranks.since_ns < case.window.end_ns and ranks.seen_ns > case.window.begin_ns
        )
        length = ranks.seen_ns - ranks.inside[number].since_ns if is_here else 0
        claims = case.take((Part.GPU,), (DEVICE,), HANGS_LONGER * length) if is_here else {}
        if claims and not do_disagree(case.evidence, ranks):
            yield replace(_finding(case.evidence, ranks), claims=claims)


def _or_order(evidence: Evidence, ranks: HungRanks) -> str:
    """What equal counts do not show, where ranks share several communicators."""
    shared = {one.comm_id_hash for one in evidence.communicators if one.process in ranks.inside and one.collectives}
    return f", or they call their {len(shared)} communicators in different orders" if len(shared) > 1 else ""


def _finding(evidence: Evidence, ranks: HungRanks) -> Finding:
    inside = [evidence.rank_name(one) for one in ranks.inside]
    missing = [evidence.rank_name(one) for one in ranks.missing]
    length = ranks.seen_ns - ranks.since_ns
    first = next(iter(ranks.inside.values()))
    is_over = has_passed(evidence, first.process, ranks.seen_ns)
    last = ranks.last.get(first.process)
    collective = f" after {last.op}" if last else ""
    hangs = f"all ranks are inside: a GPU or a link hangs{_or_order(evidence, ranks)}"
    who = f"{' and '.join(missing)} never arrived" if missing else hangs
    return Finding(
        cause=CAUSE,
        resource="collective",
        root=",".join(missing) or "device",
        kind=FindingKind.EVENT,
        severity=severity_of_stop(evidence, length, is_over=is_over),
        window=Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns + 1),
        summary=f"{' and '.join(inside)} waited inside {first.name}{collective} for {format_ns(length)}; "
        f"{who}{_doing(evidence, ranks)}",
        culprits=tuple(
            Culprit(pid=evidence.processes[one].pid, name=evidence.processes[one].name) for one in ranks.missing
        ),
        line=_line(evidence, ranks),
        chain=(
            Link(
                text=f"{' and '.join(inside)} wait in {first.name}",
                seen_ns=length,
                structure="in-flight calls of ranks that share a communicator",
                order="the last of them entered, then no rank made progress",
            ),
        ),
        fixes=(
            Fix(text="show where the missing rank is", command=f"py-spy dump --pid {_pid(evidence, ranks)}"),
            Fix(text="make NCCL log what it waits for", command="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 NCCL_DEBUG=INFO"),
        ),
        absorbs=ranks.missing,
        evidence={"inside": len(inside), "missing": len(missing), "open (ns)": length},
    )


def _alone(evidence: Evidence, meeting: Meeting) -> Finding:
    """Ranks that wait for others to make a communicator with."""
    length = meeting.seen_ns - meeting.since_ns
    first = next(iter(meeting.inside.values()))
    inside = [evidence.rank_name(one) for one in meeting.inside]
    of = f" of {meeting.world_size}" if meeting.world_size is not None else ""
    missing = [*map(_absent, meeting.outside), *_unseen(meeting)]
    who = "; ".join(missing) if missing else _nobody_missing(meeting)
    line = evidence.own_line(first.stack_hash) if first.stack_hash else None
    place = f" at {line}" if line else ""
    alone = " alone" if len(inside) == 1 and missing else ""
    is_late = length >= FIRST_HANGS_NS or bool(meeting.outside)
    return Finding(
        cause=CAUSE,
        resource="communicator",
        root=",".join(inside),
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL if is_late else Severity.HIGH,
        window=Window(begin_ns=meeting.since_ns, end_ns=meeting.seen_ns + 1),
        process=first.process,
        summary=f"{' and '.join(inside)}{of} waited{alone} inside {first.name} for {format_ns(length)}{place}; {who}",
        culprits=tuple(Culprit(pid=one.pid, name=one.name) for one in meeting.outside),
        line=line,
        chain=(
            Link(
                text=f"{' and '.join(inside)} wait in {first.name}, which returns when every rank is in it",
                seen_ns=length,
                structure="in-flight calls, and ranks and world size from the environments of the processes",
                order="the last of them entered, then no other rank came",
            ),
        ),
        fixes=(
            Fix(
                text="check whether the missing ranks were started, with the same MASTER_ADDR, MASTER_PORT and "
                "WORLD_SIZE"
            ),
            Fix(
                text="make NCCL log which rank it waits for", command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP"
            ),
        ),
        absorbs=tuple(one.process for one in meeting.outside),
        evidence={
            "inside": len(inside),
            "missing": len(meeting.outside) + len(meeting.unseen),
            "world size": meeting.world_size,
            "open (ns)": length,
        },
    )


def _absent(process: Process) -> str:
    how = f"it {ending(process.exit_code)}" if process.exit_ns is not None else f"{process.name} [{process.pid}] runs"
    return f"rank {process.rank} has not arrived: {how}"


def _unseen(meeting: Meeting) -> list[str]:
    ranks = meeting.unseen
    if not ranks:
        return []
    are, have = ("ranks", "have") if len(ranks) > 1 else ("rank", "has")
    names = ", ".join(map(str, ranks[:_MOST_NAMED])) + (
        f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    )
    return [f"{are} {names} {have} not been seen on this host: not started, or elsewhere"]


def _nobody_missing(meeting: Meeting) -> str:
    if meeting.world_size is None:
        return "the missing rank is unknown: the environment has no rank and world size"
    return "all ranks are inside: they cannot reach each other"


def _pid(evidence: Evidence, ranks: HungRanks) -> int:
    return evidence.processes[(*ranks.missing, *ranks.inside)[0]].pid


def _doing(evidence: Evidence, ranks: HungRanks) -> str:
    """What is known of the first missing rank."""
    if not ranks.missing:
        return ""
    process = evidence.processes[ranks.missing[0]]
    if process.exit_ns is not None:
        return f": it {ending(process.exit_code)}"
    if any(stop.end_ns > ranks.since_ns for stop in evidence.stopped_seconds(ranks.missing[0])):
        return ": it was stopped"
    line = _line(evidence, ranks)
    return f": it was last seen in {line}" if line else ""


def _line(evidence: Evidence, ranks: HungRanks) -> CodeLine | None:
    """Where the missing rank is, from its samples; else where the first one inside waits."""
    if ranks.missing:
        return evidence.sampled_line(Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns), ranks.missing[0])
    stack = next(iter(ranks.inside.values())).stack_hash
    return evidence.own_line(stack) if stack else None


RULE = Rule(
    cause=CAUSE,
    title="a rank is missing in a collective",
    order=19,
    needs=("in_flight", "communicators", "NCCL"),
    shows="which ranks are inside, since when, which are missing, and the line where a missing one is; the same of "
    "ranks that wait in ncclCommInitRank for 8 s (30 s where no rank is missing)",
    limits="ranks on nodes whose recordings are not merged are not seen; which ranks are missing in "
    "ncclCommInitRank is known from the ranks and world sizes in the processes' environments",
    find=find,
    watch=watch,
)
