"""Ranks called different collectives at the same position of one communicator, and hang."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    """Hung ranks whose collectives differ in operation, type, root, size or order."""
    for ranks in hung_ranks(evidence):
        if pair := disagreement(evidence, ranks):
            yield _at_one_place(evidence, ranks, *pair)
        elif latest := other_order(evidence, ranks):
            yield _in_other_order(evidence, ranks, latest)
        elif counted := counted_disagreement(evidence, ranks):
            yield _counted(evidence, ranks, counted)


def _at_one_place(evidence: Evidence, ranks: HungRanks, first: Collective, second: Collective) -> Finding:
    """Two collectives that differ although they have the same position in one communicator."""
    texts = _text(evidence, first), _text(evidence, second)
    return replace(
        _finding(
            evidence,
            ranks,
            (first.process, second.process),
            f"they disagree about collective {first.sequence}: {texts[0]}, but {texts[1]}",
            Link(
                text=f"{texts[0]} and {texts[1]} are the same place in the order",
                structure="one communicator, one sequence number",
            ),
            stack_hash=second.stack_hash,
        ),
        root=f"{first.comm_id_hash}:{first.sequence}",
        evidence={"sequence": first.sequence or 0},
    )


def _in_other_order(evidence: Evidence, ranks: HungRanks, latest: tuple[Collective, Collective]) -> Finding:
    """Two ranks that have called two communicators in opposite orders. latest: the last collective of each rank."""
    first, second = latest
    places = " and ".join(
        f"{_text(evidence, collective)} in communicator {_shown(collective.comm_id_hash)}" for collective in latest
    )
    text = f"they call two communicators in opposite orders: last, {places}"
    counts = "how many collectives each rank has called in each communicator, and which it called last"
    finding = _finding(evidence, ranks, (first.process, second.process), text, Link(text=text, structure=counts))
    return replace(finding, evidence={"sequence": first.sequence, "sequence of the other rank": second.sequence})


def _shown(comm_id_hash: int | None) -> str:
    return f"{(comm_id_hash or 0) & (1 << 64) - 1:#x}"


def _counted(evidence: Evidence, ranks: HungRanks, counted: CountedDisagreement) -> Finding:
    """Ranks whose counts differ, for collectives that were not recorded individually."""
    text = f"they disagree about a collective: {counted.text}"
    counts = "exact counts and bytes of all collectives, as many in each communicator on both ranks"
    link = Link(text=counted.text, structure=counts)
    finding = _finding(evidence, ranks, (counted.first, counted.second), text, link)
    return replace(finding, evidence={"counted": counted.text})


def _finding(
    evidence: Evidence, ranks: HungRanks, pair: tuple[int, int], text: str, link: Link, *, stack_hash: int = 0
) -> Finding:
    """What all findings of hung ranks share.

    pair: numbers of the two processes that differ. stack_hash: of the second one's collective; 0: that it hangs in is
    taken.
    """
    length_ns = ranks.seen_ns - ranks.since_ns
    call = ranks.inside.get(pair[1]) or next(iter(ranks.inside.values()))
    stack_hash = stack_hash or call.stack_hash
    processes = [evidence.processes[number] for number in pair]
    is_over = has_ended(evidence, call.process, ranks.seen_ns)
    return Finding(
        cause=CAUSE,
        resource="collective",
        root=",".join(str(process.pid) for process in processes),
        kind=FindingKind.EVENT,
        severity=severity_of_stop(evidence, length_ns, is_over=is_over),
        window=Window(begin_ns=ranks.since_ns, end_ns=ranks.seen_ns + 1),
        summary=f"ranks hang for {format_ns(length_ns)}; {text}",
        culprits=tuple(Culprit(pid=process.pid, name=process.name) for process in processes),
        line=evidence.own_line(stack_hash) if stack_hash else None,
        chain=(replace(link, seen_ns=length_ns, order="neither has returned since"),),
        fixes=(_FIX,),
    )


def _text(evidence: Evidence, collective: Collective) -> str:
    rank, size = evidence.rank_name(collective.process), format_bytes(collective.bytes or 0)
    return f"{rank} calls {collective.op} of {size} {collective.datatype}"


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
