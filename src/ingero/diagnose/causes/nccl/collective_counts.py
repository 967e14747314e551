"""Ranks that disagree about collectives, by exact counts, which include calls that were not recorded individually.

All ranks of a communicator call the same collectives. Two ranks that have called equally many in each of their
communicators, all traced from the start, must also agree in calls and bytes of each operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ingero.diagnose.causes.nccl.hung_ranks import HungRanks, disagreement, other_order
from ingero.diagnose.evidence.evidence import Evidence
from ingero.ops import OPS, Kind, Source
from ingero.store.records import OpShare, Window
from ingero.units import format_bytes, format_count, format_counted

_COLLECTIVES = {
    op.code
    for op in OPS
    if op.source is Source.NCCL and op.kind & Kind.COLLECTIVE and op.name not in {"ncclSend", "ncclRecv"}
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDisagreement:
    """Two ranks, and how their calls differ."""

    first: int
    second: int
    text: str


def counted_disagreement(evidence: Evidence, ranks: HungRanks) -> CountedDisagreement | None:
    """A disagreement among ranks that are all inside; None where they agree, or where not every call was counted."""
    first, *others = sorted(ranks.inside)
    if ranks.missing or not others or evidence.reader.pruned():
        return None
    own_calls = _calls_by_op(evidence, first, ranks.seen_ns)
    for other in others:
        other_calls = _calls_by_op(evidence, other, ranks.seen_ns)
        if (
            own_calls is None
            or other_calls is None
            or _collectives_by_communicator(evidence, first) != _collectives_by_communicator(evidence, other)
        ):
            continue
        names = evidence.rank_name(first), evidence.rank_name(other)
        if texts := list(_differences(own_calls, other_calls, names)):
            return CountedDisagreement(first=first, second=other, text="; ".join(texts))
    return None


def do_disagree(evidence: Evidence, ranks: HungRanks) -> bool:
    """Whether hung ranks have called different collectives, by records or by counts."""
    proofs = (disagreement, other_order, counted_disagreement)
    return any(proof(evidence, ranks) is not None for proof in proofs)


def _collectives_by_communicator(evidence: Evidence, process: int) -> dict[int | None, int]:
    """How many collectives a rank has called in each of its communicators."""
    return {
        communicator.comm_id_hash: communicator.collectives
        for communicator in evidence.communicators
        if communicator.process == process
    }


def _calls_by_op(evidence: Evidence, process: int, until_ns: int) -> dict[str, OpShare] | None:
    """A rank's collectives by operation; None where they do not cover all collectives of its communicators."""
    places = _collectives_by_communicator(evidence, process)
    whole_time = (Window(begin_ns=0, end_ns=until_ns),)
    shares = evidence.reader.op_shares(whole_time, process=process)
    by_op = {share.name: share for share in shares if share.source == int(Source.NCCL) and share.op in _COLLECTIVES}
    is_complete = round(sum(share.count for share in by_op.values())) == sum(places.values())
    return by_op if places and None not in places and is_complete else None


def _differences(
    own_calls: Mapping[str, OpShare], other_calls: Mapping[str, OpShare], names: tuple[str, str]
) -> Iterator[str]:
    for op in sorted(own_calls.keys() | other_calls.keys()):
        counts = [round(calls[op].count) if op in calls else 0 for calls in (own_calls, other_calls)]
        sizes = [round(calls[op].bytes) if op in calls else 0 for calls in (own_calls, other_calls)]
        if counts[0] != counts[1]:
            yield f"{names[0]} called {op} {format_counted(counts[0], 'time')}, {names[1]} {format_count(counts[1])}"
        elif sizes[0] != sizes[1]:
            more, less = names if sizes[0] > sizes[1] else names[::-1]
            yield f"{more} called {op} for {format_bytes(abs(sizes[0] - sizes[1]))} more than {less}, as often"
