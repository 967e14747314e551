"""Ranks after ncclCommSplit, known once all ranks of the parent have been seen to take part.

Source: NCCL user guide, ncclCommSplit: ranks follow the keys, and their rank in the parent where keys are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_OPEN_SPLITS = 1024  # splits whose other ranks are on other nodes never become whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMember:
    """One rank of the parent in one split. owner: of its new communicator, None for a rank that takes no part."""

    parent_rank: int
    color: int
    key: int
    owner: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRank:
    """The rank of an owner in its new communicator of `nranks`."""

    owner: tuple[int, int]
    rank: int
    nranks: int


class CommunicatorSplits:
    """Splits that some ranks have entered, by (hash of the parent, number of the child)."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], dict[int, SplitMember]] = {}

    def add(self, split: tuple[int, int], parent_nranks: int, member: SplitMember) -> list[ChildRank]:
        """Adds one rank; after the last one, returns the ranks of all."""
        members = self._open.setdefault(split, {})
        members[member.parent_rank] = member
        if len(members) < parent_nranks:
            if len(self._open) > MAX_OPEN_SPLITS:
                del self._open[next(iter(self._open))]
            return []
        del self._open[split]
        return [place for color in {one.color for one in members.values()} for place in _places(members, color)]


def _places(members: dict[int, SplitMember], color: int) -> list[ChildRank]:
    mine = sorted((one for one in members.values() if one.color == color), key=lambda one: (one.key, one.parent_rank))
    return [
        ChildRank(owner=one.owner, rank=rank, nranks=len(mine))
        for rank, one in enumerate(mine)
        if one.owner is not None
    ]
