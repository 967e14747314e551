"""Statements that cannot be split: the nodes' rows are fetched, and the statement runs here, word for word.

Only referenced columns are fetched, and only rows that pass the conditions on their own table; a nested SELECT that
nodes can answer is answered by them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import apsw

from ingero.fleet.statements.answers import Question
from ingero.fleet.statements.clauses import Select, clauses_of, parse_select, tables_of
from ingero.fleet.statements.errors import NotSplitError
from ingero.fleet.statements.names import answer_columns, judge, local_database, names
from ingero.fleet.statements.split import Split, split_select
from ingero.fleet.statements.tokens import Token, Tokens, closing, conditions, text_of
from ingero.store.sql_text import quoted
from ingero.store.user_sql.errors import SqlError, SqlRefusedError, SqlSyntaxError
from ingero.store.user_sql.guard import Guard

# Words that a condition may hold beside columns, functions and values. With any other it stays here.
_KNOWN_WORDS = """
and or not is null in like glob between case when then else end cast as integer text real numeric blob escape collate
nocase binary rtrim true false distinct isnull notnull from
"""
_WORDS = frozenset(_KNOWN_WORDS.split())
_COMPARING_SIGNS = "= == <> != < > <= >= is in between + - * / % & | << >>"
_COMPARING = frozenset(_COMPARING_SIGNS.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A nested SELECT that nodes answer. table: holds the answer. identities: kind of number by column."""

    table: str
    sql: str
    split: Split
    identities: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Rows to fetch from a view. identities: the kind of per-node number in a column, by the column's index."""

    view: str
    columns: tuple[str, ...]
    question: Question
    identities: Mapping[int, str]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A fetch plan. sql: the statement, run here. shown: the kind of per-node number in the answer, by column index."""

    sql: str
    parts: tuple[Part, ...]
    wanted: tuple[Wanted, ...]
    shown: Mapping[int, str]


def fetch(tokens: Tokens, guard: Guard, *, max_rows: int) -> Fetch:
    """Plan the fetch for a statement.

    Raises:
        SqlRefusedError: its answer would be of one node's numbers.
    """
    db = local_database()
    try:
        return _fetch(tokens, db, guard, max_rows)
    finally:
        db.close()


def _fetch(tokens: Tokens, db: apsw.Connection, guard: Guard, max_rows: int) -> Fetch:
    parts: tuple[Part, ...] = ()
    if not _gives_views_names(tokens):
        tokens, parts = _parts(tokens, db, guard, max_rows)
    sql = text_of(tokens)
    read = _read(db, sql)
    wanted = tuple(
        _wanted(view, columns, tokens, max_rows)
        for view, columns in sorted(read.items())
        if view in names().columns and view not in names().constant
    )
    kinds = {(one.view, one.columns[place]): kind for one in wanted for place, kind in one.identities.items()}
    kinds |= {(part.table, column): kind for part in parts for column, kind in part.identities.items()}
    _refuse_numbers_of_one_node(tokens, {column for _, column in kinds})
    shown = {
        place: kinds[table, column]
        for place, (_, table, column) in enumerate(answer_columns(db, sql))
        if (table, column) in kinds
    }
    return Fetch(sql=sql, parts=parts, wanted=wanted, shown=shown)


def _gives_views_names(tokens: Tokens) -> bool:
    """Whether WITH makes a table of a published name: then what a name means depends on where it stands."""
    return any(
        token.name in names().columns and after.word in {"as", "("} and before.word in {"with", "recursive", ","}
        for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False)
    )


def _parts(tokens: Tokens, db: apsw.Connection, guard: Guard, max_rows: int) -> tuple[Tokens, tuple[Part, ...]]:
    """The statement with tables of answers in place of what nodes can answer, the outermost first."""
    found: list[Part] = []
    rest: list[Token] = []
    place = 0
    while place < len(tokens):
        rest.append(tokens[place])
        if tokens[place].word == "(" and place + 1 < len(tokens) and tokens[place + 1].word == "select":
            end = closing(tokens, place)
            part = _part(tokens[place + 1 : end], f"ingero part {len(found)}", db, guard, max_rows)
            if part:
                found.append(part)
                name = Token("name", quoted(part.table))
                rest += [Token("word", "SELECT"), Token("sign", "*"), Token("word", "FROM"), name]
                place = end - 1
        place += 1
    return tuple(rest), tuple(found)


def _part(tokens: Tokens, table: str, db: apsw.Connection, guard: Guard, max_rows: int) -> Part | None:
    sql = text_of(tokens)
    with suppress(NotSplitError, SqlError):  # one that names a column around it is no statement by itself
        judge().check(sql, guard)
        split = split_select(parse_select(tokens), max_rows=max_rows)
        columns = judge().columns(sql)
        identities = {name.lower(): kind for name, view, own in columns if (kind := names().identity(view, own))}
        if len({name.lower() for name, _, _ in columns}) < len(columns) or (identities and not split.has_source):
            return None
        db.execute(f"CREATE TEMP TABLE {quoted(table)} AS SELECT * FROM ({sql}) LIMIT 0")
        return Part(table=table, sql=sql, split=split, identities=identities)
    return None


def _read(db: apsw.Connection, sql: str) -> Mapping[str, set[str]]:
    """The tables that a statement reads, with the columns it reads of them, as SQLite finds them."""
    read: defaultdict[str, set[str]] = defaultdict(set)

    def see(action: int, one: str | None, two: str | None, _: str | None, __: str | None) -> int:
        if action == apsw.SQLITE_READ and one:
            read[one].add(str(two or "").lower())
        return apsw.SQLITE_OK

    before, db.authorizer = db.authorizer, see
    try:
        list(db.cursor().execute(sql, explain=2))
    except apsw.Error as error:
        raise SqlSyntaxError(str(error)) from error
    finally:
        db.authorizer = before
    return read


def _wanted(view: str, read: set[str], tokens: Tokens, max_rows: int) -> Wanted:
    known = tuple(names().columns[view])
    columns = tuple(name for name in known if name in read) or known[:1]
    alias, where = _condition(view, tokens)
    listed = ", ".join(map(quoted, columns))
    tail = f"WHERE {where} LIMIT {max_rows + 1}" if where else f"LIMIT {max_rows + 1}"
    sql = f"SELECT {listed} FROM {quoted(view)} AS {quoted(alias)} {tail}"
    return Wanted(
        view=view,
        columns=columns,
        question=Question(sql=sql, columns=columns, max_rows=max_rows),
        identities={place: kind for place, name in enumerate(columns) if (kind := names().identity(view, name))},
        nodes=tuple(place for place, name in enumerate(columns) if name == "node"),
    )


def _condition(view: str, tokens: Tokens) -> tuple[str, str]:
    """The name of a view in its SELECT, and the conditions there that refer only to it."""
    if _gives_views_names(tokens) or sum(token.name == view for token in tokens) != 1:
        return view, ""
    scope = _scope(tokens, next(place for place, token in enumerate(tokens) if token.name == view))
    try:
        parts = clauses_of(scope)
        tables = tables_of(parts["from"])
    except NotSplitError:
        return view, ""
    mine = [table for table in tables if table.view == view]
    if not mine or any(table.is_outer for table in tables):
        return view, ""
    select = Select.of_tables(tables)
    found = [text_of(one) for one in conditions(parts["where"]) if _refers_only_to(select, one, view)]
    return mine[0].alias, " AND ".join(f"( {one} )" for one in found)


def _scope(tokens: Tokens, place: int) -> Tokens:
    """The tokens in the innermost brackets around a place, ignoring brackets of functions and lists."""
    begin, end, depth = 0, len(tokens), 0
    for before in range(place - 1, -1, -1):
        depth += (tokens[before].word == ")") - (tokens[before].word == "(")
        if depth < 0:
            begin, end = before + 1, closing(tokens, before)
            break
    inner = tokens[begin:end]
    if inner and inner[0].word == "with":
        depth = 0
        for at, token in enumerate(inner):
            depth += (token.word == "(") - (token.word == ")")
            if token.word == "select" and not depth:
                return inner[at:]
    return inner


def _refers_only_to(select: Select, condition: Tokens, view: str) -> bool:
    """Whether a condition names columns of one view and nothing that only means something here."""
    try:
        refs = list(select.refs(condition))
    except NotSplitError:
        return False
    own = {place for ref in refs for place in range(ref.first, ref.end)}
    for place, token in enumerate(condition):
        is_call = place + 1 < len(condition) and condition[place + 1].word == "("
        if token.is_name and place not in own and not is_call and token.word not in _WORDS:
            return False
    return bool(refs) and all(ref.table.view == view for ref in refs)


def _refuse_numbers_of_one_node(tokens: Tokens, identities: set[str]) -> None:
    """Refuse literals compared with per-node numbers: these are replaced here, because nodes assign the same ones."""
    names_of: set[str] = set(identities)
    for token, between, alias in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.name in names_of and between.word == "as" and alias.is_name:
            names_of.add(alias.name)
    for place, token in enumerate(tokens):
        if token.is_name and token.name in names_of and _is_compared_with_number(tokens, place):
            raise SqlRefusedError(
                f"{token.name} is a number that each node gives itself, and this statement needs rows of all nodes",
                hint=f"ask that node alone, or leave {token.name} out: pid and node say which process is meant",
            )


def _is_compared_with_number(tokens: Tokens, place: int) -> bool:
    def word(at: int) -> str:
        return tokens[at].word if 0 <= at < len(tokens) else ""

    def is_number(at: int) -> bool:
        return 0 <= at < len(tokens) and tokens[at].kind == "number" and tokens[at].text.strip("0") != ""

    begin = place
    while word(begin - 1) == ".":
        begin -= 2
    after = place + 2 if word(place + 1) == "not" else place + 1
    follows = after + 1
    while word(follows) in {"(", "-", "not"}:
        follows += 1
    if word(after) in _COMPARING and is_number(follows):
        return True
    return word(begin - 1) in _COMPARING and is_number(begin - 2)


def questions(plan: Fetch) -> Iterator[Question]:
    """The questions to each node, parts first."""
    yield from (part.split.question for part in plan.parts)
    yield from (one.question for one in plan.wanted)
