"""Collectives as the GPUs of several ranks ran them: which rank came last to each, and how long the others waited.

A collective's kernel runs from when its rank arrives until all have, so that the rank with the shortest kernel arrived
last: true without a common clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.profile.recording import ProfiledProcess
from ingero.store.records import Process

_NCCL_KERNEL = re.compile(r"^(void )?nccl", re.IGNORECASE)
_COLLECTIVE_NAME = re.compile(
    r"AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|SendRecv|Reduce|Send|Recv", re.IGNORECASE
)

# Ends of one collective's kernels on different ranks: 1 to 7 us apart where clocks agree (real-recordings).
_MAX_END_SPREAD_NS = 20_000
# Arrivals closer than two profilers' clocks, and than kernels begin once launched: nobody was waited for.
_MIN_LATE_NS = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """One rank in one collective; waited_ns: how much longer its kernel ran than that of the rank that arrived last."""

    process: int
    rank: int | None
    start_ns: int
    duration_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective. last: the process that the others waited for; None where all arrived together."""

    number: int
    name: str
    start_ns: int
    end_ns: int
    last: int | None
    parts: tuple[RankPart, ...]

    @property
    def wait_ns(self) -> int:
        """How long the rank that arrived first waited."""
        return max(part.waited_ns for part in self.parts)

    def rank_of(self, process: int | None) -> int | None:
        """The rank of a process that took part; None: not known."""
        return next((part.rank for part in self.parts if part.process == process), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    process: Process
    group: int  # what all ranks of its communicator share (`ProfiledProcess.groups`); 0: not known
    name: str
    start_ns: int
    end_ns: int


def collectives(profiles: Sequence[ProfiledProcess]) -> tuple[Collective, ...]:
    """The collectives that two or more of these processes took part in, by their begin."""
    kernels = [_kernels(profile) for profile in profiles]
    communicators = {kernel.group for mine in kernels for kernel in mine}
    matched = [together for group in communicators for together in _matched(kernels, group)]
    matched.sort(key=lambda together: min(kernel.start_ns for kernel in together))
    return tuple(_collective(number, together) for number, together in enumerate(matched, 1))


def _matched(kernels: Sequence[Sequence[_Kernel]], group: int) -> Iterator[list[_Kernel]]:
    """The kernels of each collective of one communicator."""
    ranks = [[kernel for kernel in mine if kernel.group == group] for mine in kernels]
    ranks = [mine for mine in ranks if mine]
    yield from _match_by_order(ranks) if _ran_same_sequence(ranks) else _match_by_end(ranks)


def arrived_last_counts(found: Sequence[Collective]) -> Mapping[int, int]:
    """How many collectives each process arrived last to."""
    counts: dict[int, int] = defaultdict(int)
    for collective in found:
        if collective.last is not None:
            counts[collective.last] += 1
    return dict(counts)


def wait_ns_by_process(found: Sequence[Collective]) -> Mapping[int, int]:
    """How long each process waited in all collectives together."""
    waits: dict[int, int] = defaultdict(int)
    for part in (part for collective in found for part in collective.parts):
        waits[part.process] += part.waited_ns
    return dict(waits)


def _kernels(profile: ProfiledProcess) -> list[_Kernel]:
    """The NCCL kernels of one rank, by their begin."""
    nccl = [function for function, (name, _) in profile.kernels.items() if _NCCL_KERNEL.match(name)]
    mine = profile.activities[np.isin(profile.activities["function"], nccl) & (profile.activities["function"] != 0)]
    return [
        _Kernel(
            process=profile.process,
            group=profile.groups.get(int(row["communicator"]), 0),
            name=profile.kernels[int(row["function"])][0],
            start_ns=int(row["start_ns"]),
            end_ns=int(row["end_ns"]),
        )
        for row in mine
    ]


def _ran_same_sequence(ranks: Sequence[Sequence[_Kernel]]) -> bool:
    """Whether all ranks ran the same collectives in one order."""
    return len({tuple(kernel.name for kernel in kernels) for kernels in ranks}) == 1


def _match_by_order(ranks: Sequence[Sequence[_Kernel]]) -> Iterator[list[_Kernel]]:
    if len(ranks) > 1:
        yield from (list(group) for group in zip(*ranks, strict=True))


def _match_by_end(ranks: Sequence[Sequence[_Kernel]]) -> Iterator[list[_Kernel]]:
    """The collectives of ranks with different sequences: kernels that ended together, one of each rank."""
    names = sorted({kernel.name for kernels in ranks for kernel in kernels})
    groups = [group for name in names for group in _ended_together(ranks, name)]
    yield from sorted(groups, key=lambda group: group[0].end_ns)


def _ended_together(ranks: Sequence[Sequence[_Kernel]], name: str) -> Iterator[list[_Kernel]]:
    group: list[_Kernel] = []
    mine = (kernel for kernels in ranks for kernel in kernels if kernel.name == name)
    for kernel in sorted(mine, key=lambda kernel: kernel.end_ns):
        is_other = kernel.process not in [known.process for known in group]
        if group and (kernel.end_ns - group[0].end_ns > _MAX_END_SPREAD_NS or not is_other):
            if len(group) > 1:
                yield group
            group = []
        group.append(kernel)
    if len(group) > 1:
        yield group


def _collective(number: int, group: Sequence[_Kernel]) -> Collective:
    lasted = {kernel.process.process: kernel.end_ns - kernel.start_ns for kernel in group}
    shortest = min(lasted, key=lambda process: lasted[process])
    is_late = max(lasted.values()) - lasted[shortest] >= _MIN_LATE_NS
    kind = _COLLECTIVE_NAME.search(group[0].name)
    return Collective(
        number=number,
        name=kind.group() if kind else group[0].name,
        start_ns=min(kernel.start_ns for kernel in group),
        end_ns=max(kernel.end_ns for kernel in group),
        last=shortest if is_late else None,
        parts=tuple(
            RankPart(
                process=kernel.process.process,
                rank=kernel.process.rank,
                start_ns=kernel.start_ns,
                duration_ns=lasted[kernel.process.process],
                waited_ns=lasted[kernel.process.process] - lasted[shortest],
            )
            for kernel in group
        ),
    )
