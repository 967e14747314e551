"""Checks that rows joined by FROM are always of one node."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.fleet.statements.clauses import Select, Table
from ingero.fleet.statements.errors import NotSplitError
from ingero.fleet.statements.names import names
from ingero.fleet.statements.tokens import Tokens, conditions

_ACROSS = "a join may put rows of two nodes together"


def require_one_node(select: Select) -> None:
    """Require that each table after the first is joined by a per-node number, by node, or is the same on every node.

    Raises:
        NotSplitError: rows of two nodes may meet.
    """
    of_nodes = [table for table in select.tables if table.view not in names().constant]
    if not of_nodes:
        raise NotSplitError("what it asks is the same on every node")
    if any(table.how & {"right", "full", "natural"} for table in select.tables):
        raise NotSplitError(_ACROSS)
    if select.tables[0] is not of_nodes[0] and any(table.is_outer for table in select.tables):
        raise NotSplitError("rows that are the same on every node would be there once for each")
    if len({table.alias for table in select.tables}) < len(select.tables):
        raise NotSplitError("two of its tables have one name")
    bound = {of_nodes[0].alias}
    while rest := [one for one in of_nodes if one.alias not in bound]:
        joined = [one for one in rest if _is_bound(select, one, bound)]
        if not joined:
            raise NotSplitError(_ACROSS)
        bound |= {one.alias for one in joined}


def _is_bound(select: Select, table: Table, bound: set[str]) -> bool:
    mine = select.tables.index(table)
    before = [table for table in select.tables[:mine] if table.alias in bound]
    if any(
        (link := names().link(table.view, column)) and any(names().link(one.view, column) == link for one in before)
        for column in table.using
    ):
        return True
    return any({table.alias} < pair and pair - {table.alias} <= bound for pair in _pairs(select))


def _pairs(select: Select) -> Iterator[set[str]]:
    """Pairs of tables whose rows join only within one node."""
    for condition in conditions(select.where):
        yield from _pair(select, condition)
    for table in select.tables:
        for condition in conditions(table.on):
            # of an outer join, rows of the tables before it stay whatever it says of them
            yield from (pair for pair in _pair(select, condition) if table.alias in pair or not table.is_outer)


def _pair(select: Select, condition: Tokens) -> Iterator[set[str]]:
    refs = list(select.refs(condition))
    if len(refs) != 2 or refs[0].first or refs[1].end != len(condition) or refs[0].end + 1 != refs[1].first:
        return
    if condition[refs[0].end].word not in {"=", "=="}:
        return
    links = {names().link(ref.table.view, ref.column) for ref in refs}
    if len(links) == 1 and "" not in links:
        yield {refs[0].table.alias, refs[1].table.alias}
