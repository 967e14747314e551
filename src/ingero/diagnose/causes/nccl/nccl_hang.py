"""Ranks wait in communication for a rank that does not arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.nccl.collective_counts import do_disagree
from ingero.diagnose.causes.nccl.hung_init import HungInit, hung_inits
from ingero.diagnose.causes.nccl.hung_ranks import FIRST_HANGS_NS, HungRanks, hung_ranks, latest_collectives
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import CodeLine, Culprit, Finding, FindingKind, Fix, Link, Part, Severity
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.diagnose.lost_time.ended import has_ended, severity_of_stop
from ingero.identity import ending
from ingero.store.records import Process, Window
from ingero.units import format_ns

CAUSE = "nccl-hang"
_MAX_NAMED = 8  # ranks listed
HANGS_LONGER = 1.5  # times the observed duration: in-flight calls are recorded once per second


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Hung ranks whose calls agree, with the missing ranks and what those are doing."""
    for ranks in hung_ranks(evidence):
        if not do_disagree(evidence, ranks):
            yield _finding(evidence, ranks)
    for hung_init in hung_inits(evidence):
        yield _init_finding(evidence, hung_init)


def explain(case: Case) -> Iterator[Finding]:
    """Lost time of a rank that hung and has continued."""
    number = case.process.process
    for ranks in hung_ranks(case.evidence):
        is_here = (
            number in ranks.inside and ranks.since_ns < case.window.end_ns and ranks.seen_ns > case.window.begin_ns
        )
        length = ranks.seen_ns - ranks.inside[number].since_ns if is_here else 0
        claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), HANGS_LONGER * length) if is_here else {}
        if claims and not do_disagree(case.evidence, ranks):
            yield replace(_finding(case.evidence, ranks), claims=claims)


def _or_order(evidence: Evidence, ranks: HungRanks) -> str:
    """The possibility of opposite call orders, in words; "" where `other_order` could have proven them and did not."""
    used = [
        communicator
        for communicator in evidence.communicators
        if communicator.process in ranks.inside and communicator.collectives
    ]
    shared = {communicator.comm_id_hash for communicator in used}
    if len(shared) < 2:
        return ""
    latest = latest_collectives(evidence, ranks)
    tids = {
        (collective.process, collective.communicator): collective.tid for collective in latest if collective.sequence
    }
    callers = {(communicator.process, tids.get((communicator.process, communicator.number))) for communicator in used}
    is_ruled_out = all(tid for _, tid in callers) and len(callers) == len({process for process, _ in callers})
    return "" if is_ruled_out else f", or they call their {len(shared)} communicators in different orders"


def _finding(evidence: Evidence, ranks: HungRanks) -> Finding:
    inside = [evidence.rank_name(number) for number in ranks.inside]
    missing = [evidence.rank_name(number) for number in ranks.missing]
    length = ranks.seen_ns - ranks.since_ns
    first = next(iter(ranks.inside.values()))
    is_over = has_ended(evidence, first.process, ranks.seen_ns)
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
        f"{who}{_missing_rank_text(evidence, ranks)}",
        culprits=tuple(
            Culprit(pid=evidence.processes[number].pid, name=evidence.processes[number].name)
            for number in ranks.missing
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
        absorbed_processes=ranks.missing,
        evidence={"inside": len(inside), "missing": len(missing), "open (ns)": length},
    )


def _init_finding(evidence: Evidence, hung_init: HungInit) -> Finding:
    """Ranks that wait for others to initialize a communicator."""
    length = hung_init.seen_ns - hung_init.since_ns
    first = next(iter(hung_init.inside.values()))
    inside = [evidence.rank_name(number) for number in hung_init.inside]
    of = f" of {hung_init.world_size}" if hung_init.world_size is not None else ""
    missing = [*map(_absent_text, hung_init.outside), *_unseen_texts(hung_init)]
    who = "; ".join(missing) if missing else _complete_text(hung_init)
    line = evidence.own_line(first.stack_hash) if first.stack_hash else None
    place = f" at {line}" if line else ""
    alone = " alone" if len(inside) == 1 and missing else ""
    is_late = length >= FIRST_HANGS_NS or bool(hung_init.outside)
    return Finding(
        cause=CAUSE,
        resource="communicator",
        root=",".join(inside),
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL if is_late else Severity.HIGH,
        window=Window(begin_ns=hung_init.since_ns, end_ns=hung_init.seen_ns + 1),
        process=first.process,
        summary=f"{' and '.join(inside)}{of} waited{alone} inside {first.name} for {format_ns(length)}{place}; {who}",
        culprits=tuple(Culprit(pid=process.pid, name=process.name) for process in hung_init.outside),
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
        absorbed_processes=tuple(process.process for process in hung_init.outside),
        evidence={
            "inside": len(inside),
            "missing": len(hung_init.outside) + len(hung_init.unseen),
            "world size": hung_init.world_size,
            "open (ns)": length,
        },
    )


def _absent_text(process: Process) -> str:
    how = f"it {ending(process.exit_code)}" if process.exit_ns is not None else f"{process.name} [{process.pid}] runs"
    return f"rank {process.rank} has not arrived: {how}"


def _unseen_texts(hung_init: HungInit) -> list[str]:
    ranks = hung_init.unseen
    if not ranks:
        return []
    are, have = ("ranks", "have") if len(ranks) > 1 else ("rank", "has")
    names = ", ".join(map(str, ranks[:_MAX_NAMED])) + (
        f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    )
    return [f"{are} {names} {have} not been seen on this host: not started, or elsewhere"]


def _complete_text(hung_init: HungInit) -> str:
    if hung_init.world_size is None:
        return "the missing rank is unknown: the environment has no rank and world size"
    return "all ranks are inside: they cannot reach each other"


def _pid(evidence: Evidence, ranks: HungRanks) -> int:
    return evidence.processes[(*ranks.missing, *ranks.inside)[0]].pid


def _missing_rank_text(evidence: Evidence, ranks: HungRanks) -> str:
    """What is known about the first missing rank."""
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
    """Where the missing rank is, from its samples; otherwise where the first rank inside waits."""
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
    explain=explain,
    find_events=find_events,
)
