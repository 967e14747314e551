"""Names for the nodes of an answer: their own, made distinct where two machines share one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ingero.fleet.fan_out import Missing
from ingero.fleet.node_lists import Node
from ingero.serve.structured.row_lines import Identity

_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_TAG_DIGITS = 8  # digits of the machine id, as in a merged recording (store/merge/nodes.py)
_MACHINE_ID = re.compile(r"[0-9a-f]{16,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Distinct names of nodes. label: name by node. mark: suffix of a name that several machines use, else the name.

    repeated: nodes whose recording another node already answered from. notes: machines that share a name.
    """

    label: dict[Node, str]
    mark: dict[Node, str]
    repeated: tuple[Missing, ...]
    notes: tuple[str, ...]


def names_of(found: Sequence[tuple[Node, Identity]]) -> Names:
    """Names for nodes that answered, all different."""
    first: dict[str, Node] = {}
    repeated = []
    by_name: dict[str, list[tuple[Node, Identity]]] = defaultdict(list)
    for node, who in found:
        same = first.setdefault(who.recording, node) if who.recording else node
        if same is not node:
            reason = f"it has the same recording as {same}, which is counted once"
            repeated.append(Missing(node=node, reason=reason, hint=f"name only one of {same} and {node}"))
        else:
            by_name[_name(node, who)].append((node, who))
    label: dict[Node, str] = {}
    mark: dict[Node, str] = {}
    notes = []
    for name, same_name in by_name.items():
        for node, who in same_name:
            mark[node] = name if len(same_name) == 1 else _mark(node, who, same_name)
            label[node] = name if len(same_name) == 1 else f"{name}@{mark[node]}"
        if len(same_name) > 1:
            where = ", ".join(f"{label[node]} is {node}" for node, _ in same_name)
            notes.append(f"{len(same_name)} hosts call themselves {name}: {where}")
    return Names(label=label, mark=mark, repeated=tuple(repeated), notes=tuple(notes))


def _name(node: Node, who: Identity) -> str:
    """The node's own name, if it has a valid one; its address for a merged recording."""
    return who.nodes[0] if len(who.nodes) == 1 and _NAME.fullmatch(who.nodes[0]) else str(node)


def _mark(node: Node, who: Identity, same_name: Sequence[tuple[Node, Identity]]) -> str:
    ids = [other.machine_id[:_TAG_DIGITS] for _, other in same_name]
    is_own = _MACHINE_ID.fullmatch(who.machine_id) and ids.count(who.machine_id[:_TAG_DIGITS]) == 1
    return who.machine_id[:_TAG_DIGITS] if is_own else str(node)
