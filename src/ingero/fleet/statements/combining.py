"""Combines the rows of all nodes: one database in memory, and the statement that computes the answer from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import apsw

from ingero.fleet.statements import percentiles
from ingero.fleet.statements.answers import MAX_BYTES, MAX_ROWS, Answers, Question, checked
from ingero.fleet.statements.errors import NodeAnswerError, NotSplitError, TooManyRowsError
from ingero.fleet.statements.fetch import Fetch, Part, Wanted
from ingero.fleet.statements.names import judge, local_database
from ingero.fleet.statements.split import PARTIAL, Split
from ingero.store.opening.distrust import distrust
from ingero.store.sql_text import Row, Value, quoted
from ingero.store.user_sql.errors import SizeLimitError, SqlError, SqlSyntaxError
from ingero.store.user_sql.guard import Guard

ByNode = Mapping[str, list[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The nodes' rows as received.

    rows: per question, by node. refused: why a node is not used, by node. truncated: nodes that have more rows.
    """

    rows: tuple[ByNode, ...]
    nodes: tuple[str, ...]
    refused: Mapping[str, str]
    truncated: tuple[str, ...]


def received(questions: Sequence[Question], answers: Answers, reason: str, *, is_list: bool) -> Received:
    """The rows of valid answers, nodes by name.

    Raises:
        TooManyRowsError: there are more than this may take, or fewer than the answer would have to be made of.
    """
    rows: tuple[dict[str, list[Row]], ...] = tuple({} for _ in questions)
    refused: dict[str, str] = {}
    truncated: set[str] = set()
    size_bytes = 0
    for node in sorted(answers):
        try:
            mine = _of_node(questions, answers[node])
        except NodeAnswerError as error:
            refused[node] = str(error)
            continue
        for question, known, (come, weighs) in zip(questions, rows, mine, strict=True):
            if len(come) > question.max_rows and not is_list:
                raise TooManyRowsError(f"{node} has more than {question.max_rows:,} rows for it", reason)
            if len(come) > question.max_rows:
                truncated.add(node)
            known[node] = come[: question.max_rows]
            size_bytes += weighs
            if sum(map(len, known.values())) > MAX_ROWS:
                raise TooManyRowsError(f"the nodes have more than {MAX_ROWS:,} rows for it", reason)
        if size_bytes > MAX_BYTES:
            raise TooManyRowsError(f"the nodes' rows for it weigh more than {MAX_BYTES >> 20} MiB", reason)
    nodes = tuple(node for node in sorted(answers) if node not in refused)
    return Received(rows=rows, nodes=nodes, refused=refused, truncated=tuple(sorted(truncated)))


def _of_node(questions: Sequence[Question], answers: object) -> list[tuple[list[Row], int]]:
    if not isinstance(answers, list | tuple) or len(answers) != len(questions):
        raise NodeAnswerError(f"it answered something else than the {len(questions)} questions")
    return [checked(question, rows) for question, rows in zip(questions, answers, strict=True)]


def require_sound(how: Split, guard: Guard) -> None:
    """Require that the parts of a statement are valid: one for the nodes, the other for SQLite here.

    Raises:
        NotSplitError: they are not, so that it has to run as a whole.
    """
    db = apsw.Connection(":memory:")
    try:
        judge().check(how.question.sql, guard)
        _make_partial(db, how)
        list(db.cursor().execute(how.sql, explain=2))
    except (apsw.Error, SqlError) as error:
        raise NotSplitError(f"its parts are not statements: {error}") from error
    finally:
        db.close()


def _make_partial(db: apsw.Connection, how: Split) -> None:
    distrust(db)
    percentiles.register(db)
    db.execute(f"CREATE TABLE {quoted(PARTIAL)} ({how.table})")


def of_split(how: Split, rows: ByNode, guard: Guard) -> list[Row]:
    """The answer to a split statement; the node, if shown, is the first column."""
    found = _split_rows(how, rows, guard)
    if how.shows_source:
        return [(row[-1], *row[:-1]) for row in found]
    return [row[:-1] for row in found] if how.has_source else found


def _split_rows(how: Split, rows: ByNode, guard: Guard) -> list[Row]:
    db = apsw.Connection(":memory:")
    try:
        _make_partial(db, how)
        marks = ", ".join("?" * (1 + len(how.question.columns)))
        labelled_rows = _with_node(rows, how.nodes)
        _insert(db, f"INSERT INTO {quoted(PARTIAL)} VALUES ({marks})", ((node, *row) for node, row in labelled_rows))
        return _run(db, how.sql, guard)
    finally:
        db.close()


def of_fetch(how: Fetch, rows: Sequence[ByNode], guard: Guard) -> tuple[list[Row], tuple[str, ...]]:
    """The answer to a statement that runs here on fetched rows, and notes on it."""
    numbers = _Numbers()
    db = local_database()
    try:
        for part, mine in zip(how.parts, rows, strict=False):
            _insert_answer(db, part, _split_rows(part.split, mine, guard), numbers)
        for one, mine in zip(how.wanted, rows[len(how.parts) :], strict=True):
            _insert_rows(db, one, mine, numbers)
        found = [numbers.own(row, how.shown) for row in _run(db, how.sql, guard)]
    finally:
        db.close()
    notes = ("numbers that each node gives itself, as process, are shown as that node gives them: select node as well",)
    return found, notes if how.shown else ()


def _insert_answer(db: apsw.Connection, part: Part, rows: Iterable[Row], numbers: _Numbers) -> None:
    db.execute(f"CREATE TEMP TABLE {quoted(part.table)} AS SELECT * FROM ({part.sql}) LIMIT 0")
    columns = [str(name) for (name,) in db.execute("SELECT name FROM pragma_table_info(?, 'temp')", (part.table,))]
    kinds = {place: part.identities.get(name.lower(), "") for place, name in enumerate(columns)}
    kinds = {place: kind for place, kind in kinds.items() if kind}
    _insert(
        db,
        f"INSERT INTO {quoted(part.table)} VALUES ({', '.join('?' * len(columns))})",
        (numbers.given(str(row[-1]), row[: len(columns)], kinds) for row in rows),
    )


def _insert_rows(db: apsw.Connection, wanted: Wanted, rows: ByNode, numbers: _Numbers) -> None:
    columns = ", ".join(map(quoted, wanted.columns))
    _insert(
        db,
        f"INSERT INTO temp.{quoted(wanted.view)}({columns}) VALUES ({', '.join('?' * len(wanted.columns))})",
        (numbers.given(node, row, wanted.identities) for node, row in _with_node(rows, wanted.nodes)),
    )


class _Numbers:
    """Numbers assigned by nodes, replaced by globally unique ones, so that a join never mixes nodes."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str, Value], int] = {}
        self._own: dict[tuple[str, Value], Value] = {}

    def given(self, node: str, row: Row, kinds: Mapping[int, str]) -> Row:
        """A row with its node's numbers replaced by unique ones. 0 and NULL belong to no node."""
        return tuple(
            self._number(kinds[place], node, value) if place in kinds and value else value
            for place, value in enumerate(row)
        )

    def own(self, row: Row, kinds: Mapping[int, str]) -> Row:
        """A row with the original numbers of the nodes."""
        return tuple(
            self._own.get((kinds[place], value), value) if place in kinds else value for place, value in enumerate(row)
        )

    def _number(self, kind: str, node: str, value: Value) -> int:
        number = self._given.setdefault((kind, node, value), len(self._given) + 1)
        self._own[kind, number] = value
        return number


def _with_node(rows: ByNode, places: Sequence[int]) -> Iterator[tuple[str, Row]]:
    """Rows with their node. A recorded name of several nodes gets the node as suffix, a missing one is the node."""
    named: defaultdict[Value, set[str]] = defaultdict(set)
    for node, mine in rows.items():
        for place in places:
            for value in {row[place] for row in mine}:
                named[value].add(node)
    shared = {value for value, nodes in named.items() if value == "" or (len(nodes) > 1 and value is not None)}
    for node, mine in rows.items():
        for row in mine:
            if shared and any(row[place] in shared for place in places):
                own = {
                    place: f"{row[place]!s}@{node}" if row[place] else node for place in places if row[place] in shared
                }
                yield node, tuple(own.get(place, value) for place, value in enumerate(row))
            else:
                yield node, row


def _insert(db: apsw.Connection, sql: str, rows: Iterable[Row]) -> None:
    try:
        with db:
            db.executemany(sql, rows)
    except apsw.NoMemError as error:
        raise SizeLimitError("the nodes' rows need more memory than there is") from error


def _run(db: apsw.Connection, sql: str, guard: Guard) -> list[Row]:
    try:
        with guard.on(db):
            return list(db.cursor().execute(sql, can_cache=False))
    except apsw.Error as error:
        raise _error(guard, error) from error


def _error(guard: Guard, error: apsw.Error) -> SqlError:
    return guard.error_of(error) or SqlSyntaxError(str(error))
