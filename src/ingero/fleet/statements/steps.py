"""A SELECT in a condition: asked first where it is of all nodes, left in place where it never leaves one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ingero.fleet.statements.answers import Result
from ingero.fleet.statements.clauses import Select, parse_select
from ingero.fleet.statements.errors import NotSplitError
from ingero.fleet.statements.joins import require_one_node
from ingero.fleet.statements.names import judge, names
from ingero.fleet.statements.split import split_select
from ingero.fleet.statements.tokens import FOLDED, Token, Tokens, closing, text_of, tokens_of
from ingero.store.sql_text import Value
from ingero.store.user_sql.errors import SizeLimitError, SqlError
from ingero.store.user_sql.guard import Guard

_MAX_VALUES = 1000  # of a list that goes into a statement
_OF_ROWS = frozenset({"from", "join", "exists", "as", ",", ""})  # before these brackets stand rows, not a value


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A statement that waits for values. places: of its tokens, first and end, and whether a list stands there."""

    tokens: Tokens
    places: tuple[tuple[int, int, bool], ...]

    @property
    def first(self) -> tuple[str, ...]:
        """A statement to run before."""
        return tuple(text_of(self.tokens[begin + 1 : end - 1]) for begin, end, _ in self.places)

    def filled(self, results: Sequence[Result]) -> Tokens:
        """The statement with the values.

        Raises:
            SizeLimitError: there are too many.
        """
        texts = []
        for result, (_, _, is_list) in zip(results, self.places, strict=True):
            values = [row[-1] for row in result.rows]  # the first may be a node that was not asked for
            if is_list and len(values) > _MAX_VALUES:
                raise SizeLimitError(f"a SELECT behind IN has more than {_MAX_VALUES:,} values")
            texts.append(", ".join(map(_literal, values)) if is_list else _literal(values[0] if values else None))
        edits = [(begin, end, f"({text})") for text, (begin, end, _) in zip(texts, self.places, strict=True)]
        return tokens_of(text_of(self.tokens, edits))


def later(tokens: Tokens, guard: Guard) -> Later | None:
    """The statement, if nodes can answer it once values stand in place of each SELECT in it."""
    places: list[tuple[int, int, bool]] = []
    place = 0
    while place < len(tokens):
        if tokens[place].word == "(" and place + 1 < len(tokens) and tokens[place + 1].word == "select":
            end = closing(tokens, place) + 1
            before = tokens[place - 1].word if place else ""
            if before in _OF_ROWS or not _is_one_column(tokens[place + 1 : end - 1], guard):
                return None
            places.append((place, end, before == "in"))
            place = end
        else:
            place += 1
    waiting = Later(tokens=tokens, places=tuple(places))
    empty = Result(columns=(), rows=[], nodes=())
    with suppress(NotSplitError):
        split_select(parse_select(waiting.filled([empty] * len(places))), max_rows=1)
        return waiting if places else None
    return None


def _is_one_column(tokens: Tokens, guard: Guard) -> bool:
    """Whether nodes can answer it each for itself, and its values mean the same on every node."""
    sql = text_of(tokens)
    with suppress(NotSplitError, SqlError):  # one that names a column around it is no statement by itself
        judge().check(sql, guard)
        split_select(parse_select(tokens), max_rows=1)
        columns = judge().columns(sql)
        return len(columns) == 1 and not names().identity(*columns[0][1:])
    return False


def folded(tokens: Tokens, guard: Guard) -> Tokens:
    """The statement with one token for each `IN (SELECT ..)` that selects numbers of the node which looks for them."""
    found: list[Token] = []
    place = 0
    while place < len(tokens):
        is_select = tokens[place].word == "(" and tokens[place + 1 : place + 2] and tokens[place + 1].word == "select"
        if is_select and place and tokens[place - 1].word == "in":
            end = closing(tokens, place) + 1
            link = _link(tokens[place + 1 : end - 1], guard)
            if link:
                found.append(Token(FOLDED + link, text_of(tokens[place:end])))
                place = end
                continue
        found.append(tokens[place])
        place += 1
    return tuple(found)


def _link(tokens: Tokens, guard: Guard) -> str:
    with suppress(NotSplitError, SqlError):
        judge().check(text_of(tokens), guard)
        select = parse_select(folded(tokens, guard))
        require_one_node(select)
        refs = list(select.refs(select.items[0].tokens)) if len(select.items) == 1 else []
        if select.limit or len(refs) != 1 or refs[0].first or refs[0].end != len(select.items[0].tokens):
            return ""
        link = names().link(refs[0].table.view, refs[0].column)
        return link if not _joins_nodes(select, link) else ""
    return ""


def _joins_nodes(select: Select, link: str) -> bool:
    """Whether it counts rows of several nodes: a group has the number in it, or there is none."""
    split = split_select(select, max_rows=1)
    grouped = {names().link(ref.table.view, ref.column) for term in select.group for ref in select.refs(term)}
    return not split.is_list and link not in grouped


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float) and math.isinf(value):
        return "9e999" if value > 0 else "-9e999"
    return repr(value)
