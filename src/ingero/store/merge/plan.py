"""Plans a merged recording: every session once, each with its own number, node and ranges of ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ingero.store.errors import StoreError
from ingero.store.merge.nodes import Machine, SourceSession, machines, names
from ingero.store.narrowing import ID_STEP
from ingero.store.writing.recording import CGROUP_BASE_STEP

_MAX_CGROUP_BASES = (1 << 63) // CGROUP_BASE_STEP - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSession:
    """The place of a session. number: 0 if it is taken from another file. *_add: offsets added to its ids."""

    source: SourceSession
    number: int
    node: str
    seq_base: int
    cgroup_base: int

    @property
    def id_add(self) -> int:
        """Offset for columns `id`."""
        return self.seq_base - self.source.seq_base

    @property
    def cgroup_add(self) -> int:
        """Offset for columns `cgroup_id`."""
        return self.cgroup_base - self.source.cgroup_base


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a merge. files: in the order in which they are read. sessions: by file. notes: for the user.

    id_adds: by file, the offset for ids of rows without a session.
    """

    files: tuple[int, ...]
    sessions: Mapping[int, tuple[PlannedSession, ...]]
    id_adds: Mapping[int, int]
    nodes: tuple[str, ...]
    repeated: int
    notes: tuple[str, ...]

    def is_needed(self, file: int) -> bool:
        """Whether anything of a file is not in another as well."""
        return any(session.number for session in self.sessions[file])


def plan(sessions: Sequence[SourceSession], files: int) -> Plan:
    """The plan for the sessions of so many files, in whatever order they are given.

    Raises:
        StoreError: they are of more boots than control groups' ids have room for.
    """
    chosen = _chosen(sessions)
    wanted = {(session.file, session.session) for session in sessions if chosen[session.identity] == session.file}
    machine_of = machines(sessions)
    name_of = names(machine_of[key] for key in wanted)
    node_of = {key: name_of.get(machine, machine.name) for key, machine in machine_of.items()}
    order = sorted(range(files), key=lambda file: min(_place(one, node_of) for one in _of_file(sessions, file)))
    bases: dict[tuple[int, int], int] = {}
    groups: dict[tuple[object, ...], int] = {}
    planned: dict[int, tuple[PlannedSession, ...]] = {}
    id_adds: dict[int, int] = {}
    number = 0
    for file in order:
        mine = []
        for one in sorted(_of_file(sessions, file), key=lambda session: session.session):
            is_wanted = (file, one.session) in wanted
            number += is_wanted
            machine = machine_of[one.file, one.session]
            # of one boot of one machine a kernel's id is one group; without a boot's id that holds within a file only
            boot = (machine, one.boot_id) if one.boot_id else (file, one.cgroup_base)
            mine.append(
                PlannedSession(
                    source=one,
                    number=number if is_wanted else 0,
                    node=node_of[one.file, one.session],
                    seq_base=bases.setdefault((file, one.id_space), len(bases) * ID_STEP),
                    cgroup_base=groups.setdefault(boot, len(groups)) * CGROUP_BASE_STEP,
                )
            )
        planned[file] = tuple(mine)
        id_adds[file] = bases.setdefault((file, 0), len(bases) * ID_STEP)
    if len(groups) > _MAX_CGROUP_BASES:
        raise StoreError("these recordings are of more than 32,000 boots", hint="merge fewer of them")
    return Plan(
        files=tuple(order),
        sessions=planned,
        id_adds=id_adds,
        nodes=tuple(sorted(name_of.values())),
        repeated=len(sessions) - len(wanted),
        notes=tuple(_namesakes(name_of)),
    )


def _chosen(sessions: Iterable[SourceSession]) -> dict[tuple[str, int], int]:
    """The file that each session is taken from: of several copies the one made last has the most of it."""
    newest: dict[tuple[str, int], SourceSession] = {}
    for one in sessions:
        if one.last_seen_ns > newest.setdefault(one.identity, one).last_seen_ns:
            newest[one.identity] = one
    return {identity: one.file for identity, one in newest.items()}


def _of_file(sessions: Iterable[SourceSession], file: int) -> list[SourceSession]:
    return [session for session in sessions if session.file == file]


def _place(session: SourceSession, node_of: Mapping[tuple[int, int], str]) -> tuple[str, int, str, int]:
    """Files of one node one after the other, so that its rows lie together."""
    return (node_of[session.file, session.session], session.started_ns, session.uuid, -session.last_seen_ns)


def _namesakes(name_of: Mapping[Machine, str]) -> Iterable[str]:
    by_name: dict[str, list[str]] = {}
    for machine, name in name_of.items():
        by_name.setdefault(machine.name, []).append(name)
    for name, given in sorted(by_name.items()):
        if len(given) > 1:
            yield f"{len(given)} hosts are named {name}: here they are {', '.join(sorted(given))}"
