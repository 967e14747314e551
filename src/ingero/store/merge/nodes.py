"""Finds the machine of each session, and a distinct name for each machine in a merged recording."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_TAG_DIGITS = 8  # of a machine's id, where a name alone does not tell two machines apart
_MARK = re.compile(r"@[0-9a-f]{8}'*$")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSession:
    """A session of a file to be merged. file: index of the file; session: its number there. Times: Unix ns.

    id_space: equal for sessions of the file whose rows never have one `id` twice.
    """

    file: int
    session: int
    uuid: str
    node: str
    machine_id: str
    boot_id: str
    started_ns: int
    last_seen_ns: int
    cgroup_base: int
    seq_base: int
    id_space: int

    @property
    def identity(self) -> tuple[str, int]:
        """A key that is equal in every copy of the session."""
        return (self.uuid, self.started_ns)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a node. mark: distinguishes machines of one name; "" for a session without machine id."""

    name: str
    mark: str


def machines(sessions: Sequence[SourceSession]) -> dict[tuple[int, int], Machine]:
    """The machine of each session, by (file, session).

    Sessions of one name are of one machine if their machine ids are equal and no two of its boots overlap: copied
    disk images share their machine id. Those that say no machine id are of one machine within a file, and across
    files where they have a boot or a session in common: what cannot be proven equal is not mixed.
    """
    found: dict[tuple[int, int], Machine] = {}
    by_id: dict[tuple[str, str], list[SourceSession]] = defaultdict(list)
    by_name: dict[str, list[SourceSession]] = defaultdict(list)
    for one in sessions:
        if one.machine_id:
            by_id[_plain(one.node), one.machine_id].append(one)
        else:
            by_name[_plain(one.node)].append(one)
    for (name, machine_id), mine in by_id.items():
        are_several = _has_overlapping_boots(mine)
        for one in mine:
            mark = _digest(machine_id + one.boot_id) if are_several else machine_id
            found[one.file, one.session] = Machine(name, mark)
    for name, alike in by_name.items():
        for mine in _connected(alike):
            first = min(mine, key=lambda one: (one.started_ns, one.uuid))
            for one in mine:
                found[one.file, one.session] = Machine(name, _digest(f"{first.uuid} {first.started_ns}"))
    return found


def _connected(sessions: Sequence[SourceSession]) -> Iterable[list[SourceSession]]:
    """Sessions of one name in groups that a file, a boot or a session in common holds together."""
    above: dict[tuple[object, ...], tuple[object, ...]] = {}

    def top(key: tuple[object, ...]) -> tuple[object, ...]:
        while above.setdefault(key, key) != key:
            above[key] = above[above[key]]
            key = above[key]
        return key

    for one in sessions:
        boot = [("boot", one.boot_id)] if one.boot_id else []
        for shared in (*boot, ("session", *one.identity)):
            above[top(shared)] = top(("file", one.file, one.node))
    groups: dict[tuple[object, ...], list[SourceSession]] = defaultdict(list)
    for one in sessions:
        groups[top(("file", one.file, one.node))].append(one)
    return groups.values()


def names(found: Iterable[Machine]) -> Mapping[Machine, str]:
    """A distinct name for each machine: its own if no other machine has it."""
    by_name: dict[str, set[Machine]] = defaultdict(set)
    for one in found:
        by_name[one.name].add(one)
    given: dict[Machine, str] = {}
    for name, alike in sorted(by_name.items(), key=lambda item: (len(item[1]), item[0])):
        for one in sorted(alike, key=lambda machine: machine.mark):
            wanted = name if len(alike) == 1 else f"{name}@{one.mark[:_TAG_DIGITS]}"
            while wanted in given.values():  # a file may say any name
                wanted += "'"
            given[one] = wanted
    return given


def name_of_file(stem: str) -> str:
    """A node name for a recording without one, from its file name."""
    return _NO_NAME.sub("-", stem)[:100].strip("-") or "node"


def _plain(node: str) -> str:
    """The name that the node gave itself: an earlier merge may have added a mark, which no such name can hold."""
    return _MARK.sub("", node)


def _has_overlapping_boots(sessions: Sequence[SourceSession]) -> bool:
    spans: dict[str, list[int]] = {}
    for session in sessions:
        begin, end = spans.get(session.boot_id, [session.started_ns, session.last_seen_ns])
        spans[session.boot_id] = [min(begin, session.started_ns), max(end, session.last_seen_ns)]
    ordered = sorted(spans.values())
    return any(after[0] < before[1] for before, after in pairwise(ordered))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
