"""Ranks called different collectives at the same position of one communicator, and hang."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.nccl.collective_counts import CountedDisagreement, counted_disagreement
from ingero.diagnose.causes.nccl.hung_ranks import HungRanks, disagreement, hung_ranks, other_order
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link
from ingero.diagnose.lost_time.ended import has_ended, severity_of_stop
from ingero.store.records import Collective, Window
from ingero.units import format_bytes, format_ns

CAUSE = "nccl-mismatch"
_FIX = Fix(text="make every rank call the same collectives in the same order, also in if-branches")


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Hung ranks whose collectives differ in operation, type, root or size."""
    for ranks in hung_ranks(evidence):
        pair = disagreement(evidence, ranks)
        if pair:
            first, second = pair
            length, inside = ranks.seen_ns - ranks.since_ns, next(iter(ranks.inside))
            is_over = has_ended(evidence, inside, ranks.seen_ns)
            yield Finding(
                cause=CAUSE,
                resource="collective",
                root=f"{first.comm_id_hash}:{first.sequence}",
                kind=FindingKind.EVENT,
                severity=severity_of_stop(evidence, length, is_over=is_over),
                window=Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns + 1),
                summary=f"ranks hang for {format_ns(length)}; they disagree about collective "
                f"{first.sequence}: {_text(evidence, first)}, but {_text(evidence, second)}",
                culprits=tuple(_culprit(evidence, collective) for collective in pair),
                line=evidence.own_line(second.stack_hash) if second.stack_hash else None,
                chain=(
                    Link(
                        text=f"{_text(evidence, first)} and {_text(evidence, second)} are the same place in the order",
                        seen_ns=length,
                        structure="one communicator, one sequence number",
                        order="neither has returned since",
                    ),
                ),
                fixes=(_FIX,),
                evidence={"sequence": first.sequence or 0},
            )
        elif latest := other_order(evidence, ranks):
            yield _in_other_order(evidence, ranks, latest)
        elif counted := counted_disagreement(evidence, ranks):
            yield _counted_finding(evidence, ranks, counted)


def _in_other_order(evidence: Evidence, ranks: HungRanks, latest: tuple[Collective, Collective]) -> Finding:
    """Two ranks that have called two communicators in opposite orders. latest: the last collective of each rank."""
    length, call = ranks.seen_ns - ranks.since_ns, ranks.inside[latest[1].process]
    is_over = has_ended(evidence, call.process, ranks.seen_ns)
    places = " and ".join(
        f"{_text(evidence, collective)} in communicator {_shown(collective.comm_id_hash)}" for collective in latest
    )
    text = f"they call two communicators in opposite orders: last, {places}"
    return Finding(
        cause=CAUSE,
        resource="collective",
        root=",".join(str(evidence.processes[collective.process].pid) for collective in latest),
        kind=FindingKind.EVENT,
        severity=severity_of_stop(evidence, length, is_over=is_over),
        window=Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns + 1),
        summary=f"ranks hang for {format_ns(length)}; {text}",
        culprits=tuple(_culprit(evidence, collective) for collective in latest),
        line=evidence.own_line(call.stack_hash) if call.stack_hash else None,
        chain=(
            Link(
                text=text,
                seen_ns=length,
                structure="how many collectives each rank has called in each communicator, and which it called last",
                order="neither has returned since",
            ),
        ),
        fixes=(_FIX,),
        evidence={"sequence": latest[0].sequence, "sequence of the other rank": latest[1].sequence},
    )


def _shown(comm_id_hash: int | None) -> str:
    return f"{(comm_id_hash or 0) & (1 << 64) - 1:#x}"


def _counted_finding(evidence: Evidence, ranks: HungRanks, counted: CountedDisagreement) -> Finding:
    """Ranks whose counts differ, for collectives that were not recorded individually."""
    length, call = ranks.seen_ns - ranks.since_ns, ranks.inside[counted.second]
    is_over = has_ended(evidence, call.process, ranks.seen_ns)
    pair = [evidence.processes[process] for process in (counted.first, counted.second)]
    return Finding(
        cause=CAUSE,
        resource="collective",
        root=",".join(str(process.pid) for process in pair),
        kind=FindingKind.EVENT,
        severity=severity_of_stop(evidence, length, is_over=is_over),
        window=Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns + 1),
        summary=f"ranks hang for {format_ns(length)}; they disagree about a collective: {counted.text}",
        culprits=tuple(Culprit(pid=process.pid, name=process.name) for process in pair),
        line=evidence.own_line(call.stack_hash) if call.stack_hash else None,
        chain=(
            Link(
                text=counted.text,
                seen_ns=length,
                structure="exact counts and bytes of all collectives, as many in each communicator on both ranks",
                order="neither has returned since",
            ),
        ),
        fixes=(_FIX,),
        evidence={"counted": counted.text},
    )


def _text(evidence: Evidence, collective: Collective) -> str:
    rank, size = evidence.rank_name(collective.process), format_bytes(collective.bytes or 0)
    return f"{rank} calls {collective.op} of {size} {collective.datatype}"


def _culprit(evidence: Evidence, collective: Collective) -> Culprit:
    process = evidence.processes[collective.process]
    return Culprit(pid=process.pid, name=process.name)


RULE = Rule(
    cause=CAUSE,
    title="ranks disagree about a collective",
    order=18,
    needs=("in_flight", "communicators", "NCCL"),
    shows="operation, type, root and bytes of each rank at the same place of one communicator, of recorded collectives "
    "and of the latest of each communicator; two communicators that ranks call in opposite orders; the exact counts "
    "and bytes of each operation, of ranks with as many collectives in each communicator",
    limits="only for communicators whose creation was traced; of collectives that were not recorded one by one, and "
    "are not the latest, another type or root is not visible",
    find_events=find_events,
)
