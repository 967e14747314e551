"""The rows of all nodes below each other, each node's as it answered them, with the column `node` exactly once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ingero.fleet.client import NodeClient, NodeRows
from ingero.fleet.fan_out import Answered, FleetAnswer, Missing
from ingero.fleet.names import names_of, renamed
from ingero.fleet.node_lists import listed
from ingero.foreign_text import visible
from ingero.serve.sql import first_rows_note
from ingero.store.sql_text import Row

NODE = "node"
_MOST_NOTES = 8
_NUMBER = re.compile(r"[0-9][0-9,.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRows:
    """One table of many nodes.

    nodes: names of those whose rows are in it. missing: those whose are not, and why. truncated: names of those that
    have more rows. is_cut: rows that were answered are left out, too. notes: what to know of the numbers.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    nodes: tuple[str, ...]
    missing: tuple[Missing, ...]
    truncated: tuple[str, ...]
    is_cut: bool
    notes: tuple[str, ...]

    @property
    def is_partial(self) -> bool:
        """Whether nodes are missing."""
        return bool(self.missing)


async def ask_rows(client: NodeClient, sql: str, *, limit: int, timeout_s: float) -> list[NodeRows]:
    """What a node answers to one statement, as the only question of several that a plan may have."""
    return [await client.rows(sql, limit=limit, timeout_s=timeout_s)]


def plain_rows(found: FleetAnswer[list[NodeRows]], *, limit: int | None) -> FleetRows:
    """The table. limit: of rows in all; None: as many as there are."""
    names = names_of([(one.node, one.answer[0].header.node) for one in found.answered])
    answered = [one for one in found.answered if one.node in names.label]
    columns, odd = _columns(answered)
    kept = [one for one in answered if one not in odd]
    has_node = any(name.lower() == NODE for name in columns)
    rows: list[Row] = []
    for one in kept:
        rows += _rows(one, names.label[one.node], columns, has_node=has_node)
    return FleetRows(
        columns=columns if has_node else (NODE, *columns),
        rows=rows if limit is None else rows[:limit],
        nodes=tuple(names.label[one.node] for one in kept),
        missing=(*found.missing, *names.repeated, *(_odd(one, columns) for one in odd)),
        truncated=tuple(names.label[one.node] for one in kept if one.answer[0].header.is_truncated),
        is_cut=limit is not None and len(rows) > limit,
        notes=(*names.notes, *_notes(kept)),
    )


def _columns(
    answered: Sequence[Answered[list[NodeRows]]],
) -> tuple[tuple[str, ...], list[Answered[list[NodeRows]]]]:
    """The columns that most nodes answered with, and the nodes that answered with others."""
    counts = Counter(tuple(one.answer[0].header.columns) for one in answered)
    if not counts:
        return (), []
    usual = counts.most_common(1)[0][0]
    return usual, [one for one in answered if tuple(one.answer[0].header.columns) != usual]


def _odd(answered: Answered[list[NodeRows]], usual: Sequence[str]) -> Missing:
    own = answered.answer[0].header.columns
    other = [name for name in own if name not in usual] or [name for name in usual if name not in own]
    about = visible(listed(other)) if other else "their order"
    return Missing(
        node=answered.node,
        reason=f"its columns are not those of most nodes ({about})",
        hint="name the columns instead of *, or update it",
    )


def _rows(answered: Answered[list[NodeRows]], label: str, columns: Sequence[str], *, has_node: bool) -> list[Row]:
    rows = answered.answer[0].rows
    if not has_node:
        return [(label, *row) for row in rows]
    told_apart = renamed(answered.answer[0].header.node, label)
    if not told_apart:
        return rows
    places = [place for place, name in enumerate(columns) if name.lower() == NODE]
    return [
        tuple(
            told_apart.get(value, value) if place in places and isinstance(value, str) else value
            for place, value in enumerate(row)
        )
        for row in rows
    ]


def _notes(answered: Sequence[Answered[list[NodeRows]]]) -> list[str]:
    """What nodes say of their numbers; where they say the same with other numbers, the first, and how many do."""
    said: dict[str, list[str]] = {}
    for one in answered:
        for note in one.answer[0].header.notes:
            if not _is_about_rows(one, note):
                said.setdefault(_NUMBER.sub("#", note), []).append(note)
    return [
        visible(notes[0]) + (f" (so or with other numbers on {len(notes)} nodes)" if len(notes) > 1 else "")
        for notes in sorted(said.values(), key=len, reverse=True)[:_MOST_NOTES]
    ]


def _is_about_rows(answered: Answered[list[NodeRows]], note: str) -> bool:
    """Whether it only says that rows were cut, which is said of all nodes at once."""
    header = answered.answer[0].header
    return header.is_truncated and note == first_rows_note(header.rows)
