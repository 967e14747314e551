"""Runs one statement over many nodes: its plan's questions go to each node, and the answers become one table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ingero.fleet.client import NodeClient, NodeRows
from ingero.fleet.clocks import Clock, with_changes_since
from ingero.fleet.fan_out import Answered, FleetAnswer, Missing, Reach, ask_nodes
from ingero.fleet.names import names_of
from ingero.fleet.node_lists import Node
from ingero.fleet.statements import Plan, Result, plan
from ingero.foreign_text import visible
from ingero.serve.sql import first_rows_note
from ingero.serve.structured.row_lines import MAX_ROWS, MAX_SECONDS, Identity
from ingero.store.sql_text import Row

_EXACT = " Exact: "
_MAX_NOTES = 8
_NUMBER = re.compile(r"[0-9][0-9,.]*")
_STATEMENT_TIME_RATIO = 0.9  # of the node's time limit for a statement, so that the node can still report it


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRows:
    """One table of many nodes.

    nodes: names of the nodes whose rows are in it. missing: the other nodes, and why. truncated: names of nodes with
    more rows. is_cut: there are more rows than these. notes: what to know about the numbers. clocks: those of the nodes
    in it that report theirs.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    nodes: tuple[str, ...]
    missing: tuple[Missing, ...]
    truncated: tuple[str, ...]
    is_cut: bool
    notes: tuple[str, ...]
    clocks: Mapping[str, Clock]

    @property
    def is_partial(self) -> bool:
        """Whether nodes are missing."""
        return bool(self.missing)


def fleet_rows(reach: Reach, sql: str, *, limit: int | None) -> FleetRows:
    """Ask all nodes a statement. limit: how many rows of the answer are wanted.

    A node that fails once is not asked the rest, so that all parts of an answer are of the same nodes.

    Raises:
        SqlError: the statement is refused, means nothing over several nodes, or needs too much.
    """
    whole = plan(sql, limit=limit)
    asking = _Asking(reach)
    while whole.first:
        whole = whole.after([asking.result(each) for each in whole.first])
    result = asking.result(whole)
    return FleetRows(
        columns=result.columns,
        rows=result.rows if result.nodes else [],  # without nodes there is no total
        nodes=result.nodes,
        missing=tuple(asking.missing),
        truncated=result.truncated,
        is_cut=result.is_truncated,
        notes=(*asking.notes, *result.notes),
        clocks={name: asking.clocks[name] for name in result.nodes if name in asking.clocks},
    )


class _Asking:
    """The nodes that have answered everything so far, and the others with the reason."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._nodes: tuple[Node, ...] = reach.nodes
        self.missing: list[Missing] = []
        self._names_notes: tuple[str, ...] = ()
        self._said: list[str] = []
        self._clocks: dict[Node, Clock] = {}
        self._label: dict[Node, str] = {}

    @property
    def clocks(self) -> dict[str, Clock]:
        """Clocks by name at the last question; a clock set since the first question has that among its steps."""
        return {self._label[node]: clock for node, clock in self._clocks.items() if node in self._label}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on machines that share a name, and the nodes' notes on their numbers."""
        return (*self._names_notes, *self._said)

    def result(self, part: Plan) -> Result:
        """Ask the nodes the questions of a plan."""
        while part.first:
            part = part.after([self.result(each) for each in part.first])
        found = self._ask(part)
        names = names_of([(reply.node, reply.answer.who) for reply in found.answered])
        self._label = names.label
        for reply in found.answered:
            if reply.clock is not None:
                before = self._clocks.get(reply.node)
                now = with_changes_since(before, reply.clock)
                steps = (*before.steps, *now.steps) if before else now.steps
                self._clocks[reply.node] = replace(now, steps=steps)
        node_of = {mark: node for node, mark in names.mark.items()}
        result = part.combine(
            {names.mark[reply.node]: reply.answer.rows for reply in found.answered if reply.node in names.mark}
        )
        refused = [Missing(node=node_of[mark], reason=reason) for mark, reason in result.refused.items()]
        self.missing += [*found.missing, *names.repeated, *refused]
        self._names_notes = names.notes
        self._said += [note for note in _notes(found.answered) if note not in self._said]
        missing_nodes = {missing_node.node for missing_node in self.missing}
        self._nodes = tuple(node for node in self._nodes if node not in missing_nodes)
        return _labelled(result, {mark: names.label[node] for mark, node in node_of.items()}, has_node=part.adds_node)

    def _ask(self, part: Plan) -> FleetAnswer[_Answer]:
        node_s = min(MAX_SECONDS, self._reach.timeout_s * _STATEMENT_TIME_RATIO)
        questions = [(question.sql, min(question.max_rows + 1, MAX_ROWS)) for question in part.questions]

        async def ask(client: NodeClient) -> _Answer:
            found = [await client.rows(sql, limit=most, timeout_s=node_s) for sql, most in questions]
            who = found[0].header.node if found else await client.json("/api/v2/node", Identity)
            return _Answer(who, [one.rows for one in found], [note for one in found for note in _own_notes(one)])

        return ask_nodes(replace(self._reach, nodes=self._nodes), ask)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A node's answer to the questions of a plan, which may have none. who: identity of its recording."""

    who: Identity
    rows: list[list[Row]]
    notes: list[str]


def _labelled(result: Result, label: Mapping[str, str], *, has_node: bool) -> Result:
    """The result with the nodes' names."""
    rows = [(label.get(str(row[0]), row[0]), *row[1:]) for row in result.rows] if has_node else result.rows
    nodes, truncated = ([label[mark] for mark in marks] for marks in (result.nodes, result.truncated))
    return replace(result, rows=rows, nodes=tuple(nodes), truncated=tuple(truncated))


def _own_notes(found: NodeRows) -> Iterator[str]:
    """A node's notes on its numbers, except those made for the answer as a whole."""
    for note in found.header.notes:
        if note != first_rows_note(found.header.rows):
            yield note.partition(_EXACT)[0]  # the statement that is exact is that of a part of this one


def _notes(answered: Sequence[Answered[_Answer]]) -> list[str]:
    """Notes of the nodes; of notes that differ only in numbers, the first one with their count."""
    notes_by_text: dict[str, dict[Node, str]] = {}
    for reply in answered:
        for note in reply.answer.notes:
            notes_by_text.setdefault(_NUMBER.sub("#", note), {}).setdefault(reply.node, note)
    found = []
    for notes in sorted(notes_by_text.values(), key=len, reverse=True)[:_MAX_NOTES]:
        others = f" ({len(notes)} nodes say this; the numbers are those of one)" if len(notes) > 1 else ""
        found.append(visible(next(iter(notes.values()))) + others)
    return found
