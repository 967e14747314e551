"""Ranks that disagree about collectives, by exact counts: what is not recorded one by one is counted all the same.

All ranks of a communicator call the same collectives. Where two have called as many in each of their communicators, and
all of these were traced from the first on, their calls of each operation and their bytes are the same, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ingero.diagnose.causes.nccl.hung_ranks import HungRanks, disagreement
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
    """Two ranks, and what one has called otherwise than the other."""

    first: int
    second: int
    text: str


def counted_disagreement(evidence: Evidence, ranks: HungRanks) -> CountedDisagreement | None:
    """Of ranks that are all inside; None where they agree, or where not all that they called was counted."""
    first, *others = sorted(ranks.inside)
    if ranks.missing or not others or evidence.reader.removed():
        return None
    mine = _calls(evidence, first, ranks.seen_ns)
    for other in others:
        theirs = _calls(evidence, other, ranks.seen_ns)
        if mine is None or theirs is None or _places(evidence, first) != _places(evidence, other):
            continue
        names = evidence.rank_name(first), evidence.rank_name(other)
        if texts := list(_differences(mine, theirs, names)):
            return CountedDisagreement(first=first, second=other, text="; ".join(texts))
    return None


def do_disagree(evidence: Evidence, ranks: HungRanks) -> bool:
    """Whether hung ranks have called different collectives, by what was recorded of them or by their counts."""
    return disagreement(evidence, ranks) is not None or counted_disagreement(evidence, ranks) is not None


def _places(evidence: Evidence, process: int) -> dict[int | None, int]:
    """How many collectives a rank has called in each of its communicators."""
    return {one.comm_id_hash: one.collectives for one in evidence.communicators if one.process == process}


def _calls(evidence: Evidence, process: int, until_ns: int) -> dict[str, OpShare] | None:
    """A rank's collectives by operation; None where not all of those of its communicators are among them."""
    places = _places(evidence, process)
    whole = (Window(begin_ns=0, end_ns=until_ns),)
    shares = evidence.reader.op_shares(whole, process=process)
    mine = {one.name: one for one in shares if one.source == int(Source.NCCL) and one.op in _COLLECTIVES}
    is_whole = round(sum(one.count for one in mine.values())) == sum(places.values())
    return mine if places and None not in places and is_whole else None


def _differences(mine: Mapping[str, OpShare], theirs: Mapping[str, OpShare], names: tuple[str, str]) -> Iterator[str]:
    for op in sorted(mine.keys() | theirs.keys()):
        counts = [round(one[op].count) if op in one else 0 for one in (mine, theirs)]
        sizes = [round(one[op].bytes) if op in one else 0 for one in (mine, theirs)]
        if counts[0] != counts[1]:
            yield f"{names[0]} called {op} {format_counted(counts[0], 'time')}, {names[1]} {format_count(counts[1])}"
        elif sizes[0] != sizes[1]:
            more, less = names if sizes[0] > sizes[1] else names[::-1]
            yield f"{more} called {op} for {format_bytes(abs(sizes[0] - sizes[1]))} more than {less}, as often"
