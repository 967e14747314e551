"""ncclCommSplit: ranks follow the keys, equal keys the old ranks; nothing is said before all have taken part."""

from __future__ import annotations

from ingero.decode.splits import MAX_OPEN_SPLITS, ChildRank, CommunicatorSplits, SplitMember

PARENT = (77, 1)


def member(rank: int, color: int, key: int, *, takes_part: bool = True) -> SplitMember:
    return SplitMember(parent_rank=rank, color=color, key=key, owner=(0, 10 + rank) if takes_part else None)


def test_a_split_is_told_only_when_its_last_rank_has_been_seen() -> None:
    splits = CommunicatorSplits()
    assert splits.add(PARENT, 3, member(0, 0, 5)) == []
    assert splits.add(PARENT, 3, member(2, 0, 1)) == []
    assert sorted(splits.add(PARENT, 3, member(1, 0, 1)), key=lambda place: place.rank) == [
        ChildRank(owner=(0, 11), rank=0, nranks=3),
        ChildRank(owner=(0, 12), rank=1, nranks=3),
        ChildRank(owner=(0, 10), rank=2, nranks=3),
    ]


def test_colors_are_communicators_of_their_own_and_no_color_is_none() -> None:
    splits = CommunicatorSplits()
    splits.add(PARENT, 4, member(0, 3, 0))
    splits.add(PARENT, 4, member(1, -1, 0, takes_part=False))
    splits.add(PARENT, 4, member(2, 4, 0))
    places = splits.add(PARENT, 4, member(3, 3, -1))
    assert {(place.owner[1], place.rank, place.nranks) for place in places} == {(13, 0, 2), (10, 1, 2), (12, 0, 1)}


def test_splits_that_never_become_whole_make_room() -> None:
    splits = CommunicatorSplits()
    for child in range(MAX_OPEN_SPLITS + 1):
        splits.add((77, child), 2, member(0, 0, 0))
    assert splits.add((77, 0), 2, member(1, 0, 0)) == [], "the oldest was given up"
    assert splits.add((77, MAX_OPEN_SPLITS), 2, member(1, 0, 0))
