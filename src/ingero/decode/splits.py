"""Who has which rank after ncclCommSplit: known once every rank of the parent has been seen to take part.

Source: NCCL user guide, ncclCommSplit: ranks follow the keys, and their rank in the parent where keys are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_OPEN = 1024  # splits whose other ranks are on other nodes never become whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank of the parent in one split. owner: whose communicator it is, None for a rank that takes no part."""

    parent_rank: int
    color: int
    key: int
    owner: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The rank that an owner has in its new communicator of `nranks`."""

    owner: tuple[int, int]
    rank: int
    nranks: int


class Splits:
    """Splits that some ranks have entered, by (hash of the parent, which of its children)."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], dict[int, Member]] = {}

    def add(self, split: tuple[int, int], parent_nranks: int, member: Member) -> list[Place]:
        """Takes one rank's part; once it is the last one, everybody's place."""
        members = self._open.setdefault(split, {})
        members[member.parent_rank] = member
        if len(members) < parent_nranks:
            if len(self._open) > MOST_OPEN:
                del self._open[next(iter(self._open))]
            return []
        del self._open[split]
        return [place for color in {one.color for one in members.values()} for place in _places(members, color)]


def _places(members: dict[int, Member], color: int) -> list[Place]:
    mine = sorted((one for one in members.values() if one.color == color), key=lambda one: (one.key, one.parent_rank))
    return [
        Place(owner=one.owner, rank=rank, nranks=len(mine)) for rank, one in enumerate(mine) if one.owner is not None
    ]
