"""Process groups of PyTorch, as kernels of NCCL and the file's properties name them."""

from __future__ import annotations

from typing import Any

import msgspec

from ingero.profiles.columns import cleaned
from ingero.profiles.kineto_event import GpuArgs, integer
from ingero.profiles.model import UNKNOWN, Group

MAX_GROUPS = 4096  # a job of 1,000 GPUs with groups for tensors, pipelines and experts has some tens per rank
MAX_RANKS = 1 << 20
_RANKS: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(list[int])


class Groups:
    """The distinct groups of one process."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._groups: list[Group] = []

    def number(self, args: GpuArgs) -> int:
        """The index of the group that a kernel belongs to; UNKNOWN where it does not say."""
        name = cleaned(str(args.group_name if args.group_name is not None else ""))
        known = self._numbers.get(name)
        if known is not None:
            return known
        ranks = _ranks(args.group_ranks)
        size = integer(args.group_size, len(ranks)) or len(ranks)
        if size <= 0 or size > MAX_RANKS:
            return UNKNOWN
        return self._add(Group(name, ranks if len(ranks) == size else (), size))

    def add_configured(self, configured: object) -> None:
        """Adds the groups of the property `pg_config`, which also lists unused groups."""
        for entry in configured if isinstance(configured, list) else ():
            if isinstance(entry, dict) and str(entry.get("pg_name", "")) not in self._numbers:
                ranks = _ranks(entry.get("ranks"))
                size = integer(entry.get("pg_size"), len(ranks)) or len(ranks)
                if 0 < size <= MAX_RANKS:
                    self._add(Group(cleaned(str(entry.get("pg_name", ""))), ranks if len(ranks) == size else (), size))

    def all(self) -> tuple[Group, ...]:
        """All groups, by number."""
        return tuple(self._groups)

    def _add(self, group: Group) -> int:
        if len(self._groups) >= MAX_GROUPS:
            return UNKNOWN
        self._groups.append(group)
        return self._numbers.setdefault(group.name, len(self._groups) - 1)


def _ranks(value: Any) -> tuple[int, ...]:
    """Ranks as Kineto writes them: a list, or its text, which is cut with "..." where there are many."""
    if isinstance(value, str):
        try:
            value = _RANKS.decode(value)
        except msgspec.MsgspecError:
            return ()
    is_list = isinstance(value, list) and len(value) <= MAX_RANKS
    return tuple(value) if is_list and all(isinstance(rank, int) and 0 <= rank <= MAX_RANKS for rank in value) else ()
