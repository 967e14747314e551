"""Answers about many nodes for an AI assistant: at most 8 kB for any number of nodes, always with what is missing.

Every text that a node sent is marked as data, its name included: what traced programs chose stands in it, and a node
may itself be hostile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlencode

import msgspec

from ingero.errors import IngeroError
from ingero.fleet.access import Access, client_context
from ingero.fleet.client import NodeClient
from ingero.fleet.clocks import QUERY_SKEW_NS, Clock, warnings, with_changes_since
from ingero.fleet.explanations import Explanation, ask_explanation, fleet_explanation, nodes_without_chains
from ingero.fleet.fan_out import Answered, FleetAnswer, Missing, Reach, ask_nodes
from ingero.fleet.names import names_of
from ingero.fleet.node_lists import Node
from ingero.fleet.planned_rows import fleet_rows
from ingero.fleet.relays import Via
from ingero.serve.mcp.untrusted import RULE, traced
from ingero.serve.structured.row_lines import Identity
from ingero.units import format_count, format_ns

Object: TypeAlias = "dict[str, Any]"  # becomes JSON at once; no module reads it

MAX_BYTES = 8000  # of a whole answer, text and members: little enough for an assistant to read at once
_MEMBERS_BYTES, _TEXT_BYTES, _REST_BYTES = 3000, 1900, 600  # of lists, of the text, of notes and of what is missing
_WARNINGS_BYTES = 300
_MAX_CELL, _MAX_SENTENCE = 160, 240
_NODE_S = 10.0


class FleetQuestionError(IngeroError):
    """The question to the nodes is incomplete."""


class _Op(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(max_length=4096)]
    pid: int
    count: int
    sum_ns: int
    max_ns: int
    p99_ns: float | None = None


class _Ops(msgspec.Struct, frozen=True):
    ops: list[_Op]


class _Overview(msgspec.Struct, frozen=True):
    is_live: bool
    event_count: int
    chain_count: int
    session_count: int
    calls: int


@dataclass(frozen=True, slots=True)
class _Named:
    """A node's answer to a question of /api/v1, and the identity of its recording."""

    node: Identity
    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestions:
    """The nodes that an assistant may query. skew_ns: clocks that are off by more are reported first."""

    nodes: tuple[Node, ...]
    access: Access
    timeout_s: float = _NODE_S
    via: Via | None = None
    skew_ns: int = QUERY_SKEW_NS
    _clocks: dict[str, Clock] = field(default_factory=dict, init=False, repr=False, compare=False)

    def ask(self, action: str, *, since: str, pid: int | None, query: str, limit: int) -> tuple[Object, str]:
        """The answer's members, and its text.

        Raises:
            FleetQuestionError: sql is asked without a statement.
            AccessError: a certificate cannot be used.
        """
        if action == "sql":
            return self._sql(query, limit)
        if action == "chains":
            return self._chains(since, pid, limit)
        return self._ops(since, pid, limit) if action == "ops" else self._overview(since)

    def states(self) -> tuple[Object, str]:
        """The nodes and whether they answer; those that do not come first."""
        found = self._asked(_asks("/api/v1/overview", _Overview))
        named = self._names(found)
        rows: list[Object] = [
            {
                "node": traced(label),
                "address": str(one.node),
                "answers": True,
                "is_live": one.answer.answer.is_live,
                "clock_offset_ns": one.clock.offset_ns if one.clock else None,
                "clock_bound_ns": one.clock.bound_ns if one.clock else None,
            }
            for label, one in named.items()
        ]
        missing: list[Object] = [
            {
                "address": str(missing_node.node),
                "answers": False,
                "reason": traced(missing_node.reason, most=_MAX_SENTENCE),
            }
            for missing_node in found.missing
        ]
        listed = _fitting([*missing, *rows], _MEMBERS_BYTES)
        body = {"nodes": listed, "more": len(missing) + len(rows) - len(listed)}
        lines = [f"{one['address']}: {one.get('reason') or one['node']}" for one in listed]
        return self._answer("nodes", body, lines, found.missing, (), len(found.answered), _clocks(named))

    def _chains(self, since: str, pid: int | None, limit: int) -> tuple[Object, str]:
        async def ask(client: NodeClient) -> Explanation:
            return await ask_explanation(client, since=since, pid=pid, cause="")

        found = fleet_explanation(self._asked(ask))
        every = [
            {
                "node": traced(node),
                "severity": traced(chain.severity, most=_MAX_CELL),
                "root_cause": traced(chain.root_cause, most=_MAX_CELL),
                "summary": traced(chain.summary, most=_MAX_SENTENCE),
                "lost_ns": chain.lost_ns,
                "fix": traced("; ".join(chain.recommendations[:2]), most=_MAX_SENTENCE),
            }
            for node, chain in found.chains[:limit]
        ]
        chains = _fitting(every, _MEMBERS_BYTES)
        quiet = [
            {
                "said": traced(headline, most=_MAX_SENTENCE),
                "count": len(names),
                "nodes": [traced(name) for name in names[:3]],
            }
            for headline, names in nodes_without_chains(found).items()
        ]
        body: Object = {
            "chains": chains,
            "more": len(found.chains) - len(chains),
            "without_chains": _fitting(quiet, _REST_BYTES),
        }
        lines = [
            f"{chain['severity']} on {chain['node']}: {chain['root_cause']}: {chain['summary']}" for chain in chains
        ]
        lines += [f"{one['count']} node(s), such as {one['nodes'][0]}: {one['said']}" for one in body["without_chains"]]
        return self._answer("chains", body, lines, found.missing, found.notes, len(found.explained), found.clocks)

    def _sql(self, query: str, limit: int) -> tuple[Object, str]:
        if not query:
            raise FleetQuestionError(
                "the action sql needs a statement", hint="query=SELECT node, count(*) FROM events ..."
            )

        found = fleet_rows(self._reach(), query, limit=limit)
        cells = [[_cell(value) for value in row] for row in found.rows]
        rows = _fitting(cells, _MEMBERS_BYTES)
        body = {
            "columns": [traced(name, most=_MAX_CELL) for name in found.columns],
            "rows": rows,
            "more": len(found.rows) - len(rows),
            "is_truncated": found.is_cut or len(rows) < len(found.rows),
        }
        lines = ["\t".join("NULL" if cell is None else str(cell) for cell in row) for row in [body["columns"], *rows]]
        return self._answer("sql", body, lines, found.missing, found.notes, len(found.nodes), found.clocks)

    def _ops(self, since: str, pid: int | None, limit: int) -> tuple[Object, str]:
        found = self._asked(_asks(f"/api/v1/ops?{urlencode({'since': since})}", _Ops))
        named = self._names(found)
        every = [(label, op) for label, one in named.items() for op in one.answer.answer.ops if pid in (None, op.pid)]
        every.sort(key=lambda each: -each[1].sum_ns)
        rows = [
            {"node": traced(label), "op": traced(op.name, most=_MAX_CELL), "pid": op.pid, "count": op.count,
             "sum_ns": op.sum_ns, "max_ns": op.max_ns, "p99_ns": op.p99_ns}
            for label, op in every[:limit]
        ]  # fmt: skip
        ops = _fitting(rows, _MEMBERS_BYTES)
        lines = [f"{op['node']} {op['op']}: {format_count(op['count'])} calls, {format_ns(op['sum_ns'])}" for op in ops]
        body = {"ops": ops, "more": len(every) - len(ops)}
        return self._answer("ops", body, lines, found.missing, (), len(found.answered), _clocks(named))

    def _overview(self, since: str) -> tuple[Object, str]:
        found = self._asked(_asks(f"/api/v1/overview?{urlencode({'since': since})}", _Overview))
        named = dict(sorted(self._names(found).items(), key=lambda each: -each[1].answer.answer.chain_count))
        rows = [
            {"node": traced(label), "chains": answer.chain_count, "calls": answer.calls, "events": answer.event_count,
             "sessions": answer.session_count, "is_live": answer.is_live}
            for label, answer in ((label, one.answer.answer) for label, one in named.items())
        ]  # fmt: skip
        listed = _fitting(rows, _MEMBERS_BYTES)
        body = {"overview": listed, "more": len(rows) - len(listed)}
        lines = [f"{one['node']}: {one['chains']} chains, {format_count(one['calls'])} calls" for one in listed]
        return self._answer("overview", body, lines, found.missing, (), len(found.answered), _clocks(named))

    def _warnings(self, clocks: Mapping[str, Clock]) -> list[str]:
        """Warnings about clocks that are off, and about their changes since a node was last queried."""
        now = {name: with_changes_since(self._clocks.get(name), clock) for name, clock in clocks.items()}
        self._clocks.update(clocks)
        return list(warnings(now, self.skew_ns))

    def _asked(self, ask: Callable[[NodeClient], Any]) -> FleetAnswer[Any]:
        return ask_nodes(self._reach(), ask)

    def _reach(self) -> Reach:
        context = client_context(self.access)
        return Reach(nodes=self.nodes, access=self.access, context=context, timeout_s=self.timeout_s, via=self.via)

    @staticmethod
    def _names(found: FleetAnswer[_Named]) -> dict[str, Answered[_Named]]:
        """The answers by name of the node."""
        label = names_of([(reply.node, reply.answer.node) for reply in found.answered]).label
        return {label[reply.node]: reply for reply in found.answered if reply.node in label}

    def _answer(
        self,
        action: str,
        body: Object,
        lines: Sequence[str],
        missing: Sequence[Missing],
        notes: Sequence[str],
        count: int,
        clocks: Mapping[str, Clock],
    ) -> tuple[Object, str]:
        """The answer with remarks on it as a whole before it; first of all the nodes whose times cannot be compared."""
        wrong = [traced(text, most=_MAX_SENTENCE) for text in self._warnings(clocks)]
        groups = _fitting(list(_missing(missing)), _REST_BYTES)
        about: Object = {
            "warnings": _fitting(wrong, _WARNINGS_BYTES),
            "action": action,
            "nodes_asked": len(self.nodes),
            "nodes_answered": count,
            "partial": bool(missing),
            "missing": groups,
            "notes": _fitting([traced(note, most=_MAX_SENTENCE) for note in notes], _REST_BYTES),
        }
        head = [f"warning: {text}" for text in about["warnings"]]
        head += [f"and {more:,} more warnings of clocks"] if (more := len(wrong) - len(head)) else []
        head += [f"{count} of {len(self.nodes)} nodes answered."]
        head += [
            f"missing: {group['count']} node(s), such as {group['nodes'][0]}: {group['reason']}" for group in groups
        ]
        shown = _fitting([*head, *lines], _TEXT_BYTES)
        if left := len(head) + len(lines) - len(shown) + int(body.get("more", 0)):
            shown.append(f"and {left:,} more, of which some are among the members")
        return about | body | {"note": RULE}, "\n".join(shown)


def _clocks(named: Mapping[str, Answered[Any]]) -> dict[str, Clock]:
    return {label: one.clock for label, one in named.items() if one.clock is not None}


def _asks(path: str, kind: type[Any]) -> Callable[[NodeClient], Any]:
    async def ask(client: NodeClient) -> _Named:
        answer = await client.json(path, kind)
        return _Named(await client.json("/api/v2/node", Identity), answer)

    return ask


def _missing(missing: Iterable[Missing]) -> Iterator[Mapping[str, Any]]:
    """Missing nodes grouped by reason, largest group first."""
    by_reason: dict[str, list[str]] = {}
    for missing_node in missing:
        by_reason.setdefault(missing_node.reason, []).append(str(missing_node.node))
    for reason, nodes in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        yield {"reason": traced(reason, most=_MAX_SENTENCE), "count": len(nodes), "nodes": nodes[:3]}


def _fitting(items: Sequence[Any], room_bytes: int) -> list[Any]:
    """The first items that fit into the room, as JSON."""
    found = []
    for item in items:
        room_bytes -= len(json.dumps(item, ensure_ascii=False).encode()) + 2
        if room_bytes < 0:
            break
        found.append(item)
    return found


def _cell(value: object) -> object:
    if isinstance(value, bytes):
        return traced(value.hex(), most=_MAX_CELL)
    return traced(value, most=_MAX_CELL) if isinstance(value, str) else value
