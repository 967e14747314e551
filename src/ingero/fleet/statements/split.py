"""Splits a SELECT into one that every node answers for its own rows, and one that combines their answers.

The second is the first with other names in it: SQLite groups, filters, orders and limits here as it does there. Partial
results of aggregate functions become columns, and so does each column outside of an aggregate function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ingero.fleet.statements import percentiles
from ingero.fleet.statements.answers import Question
from ingero.fleet.statements.clauses import Item, Ref, Select, Term
from ingero.fleet.statements.errors import NotSplitError
from ingero.fleet.statements.joins import require_one_node
from ingero.fleet.statements.names import names, typed
from ingero.fleet.statements.tokens import Token, Tokens, closing, split, text_of
from ingero.store.sql_text import quoted

PARTIAL, SOURCE = "ingero partial", "ingero source"  # names that no statement can have meant otherwise

_ADDED = frozenset({"count", "sum", "total", "avg", "min", "max", "group_concat", "string_agg"})
_WHOLE = frozenset({"json_group_array", "json_group_object"})  # their order and form are of one statement
_AGGREGATES = _ADDED | _WHOLE | percentiles.NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """question: what each node runs. sql: what is asked of the table `PARTIAL` of their rows, here.

    table: columns of that table, with types. has_source: the last column of the answer is the node that a row is of.
    shows_source: it is to be shown. is_list: rows are shown as they come, so that some of them are better than none.
    nodes: columns of the question that hold the recorded name of a node.
    """

    question: Question
    sql: str
    table: str
    has_source: bool
    shows_source: bool
    is_list: bool
    nodes: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an aggregate function. where: the condition of FILTER."""

    first: int
    end: int
    name: str
    arguments: tuple[Tokens, ...]
    is_distinct: bool
    where: Tokens


class _Columns:
    """The columns that a node answers, each once."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.counts: set[int] = set()

    def add(self, text: str, of: str = "", *, is_count: bool = False) -> str:
        """The name that an expression has in the table of answers, as SQL writes it."""
        if text not in self.texts and is_count:
            self.counts.add(len(self.texts))
        self.texts.setdefault(text, of)
        return quoted(f"ingero {list(self.texts).index(text)}")

    def question(self, head: str, tail: str, max_rows: int) -> Question:
        listed = [f"{text} AS {quoted(f'ingero {place}')}" for place, text in enumerate(self.texts)]
        return Question(
            sql=f"{head} {', '.join(listed)} {tail}",
            columns=tuple(f"ingero {place}" for place in range(len(self.texts))),
            max_rows=max_rows,
            counts=frozenset(self.counts),
        )

    def table(self) -> str:
        return typed({SOURCE: "TEXT"} | {f"ingero {place}": of for place, of in enumerate(self.texts.values())})


def split_select(select: Select, *, max_rows: int, limit: int | None = None) -> Split:
    """Split a SELECT among nodes. max_rows: of one node. limit: how many rows of a list are wanted at most.

    Raises:
        NotSplitError: they cannot.
    """
    require_one_node(select)
    select.require_folds()
    parts = [*(item.tokens for item in select.items), select.having, *(term.tokens for term in select.order)]
    is_aggregate = bool(select.group) or any(True for part in parts for _ in _calls(part))
    if is_aggregate or select.having:
        return _aggregate(select, max_rows)
    # rows that OFFSET leaves out are not among those wanted: all that a node has up to there are needed
    return _list(select, max_rows if limit is None or select.offset else min(max_rows, limit))


def _list(select: Select, max_rows: int) -> Split:
    columns = _Columns()
    items = [columns.add(text_of(item.tokens)) for item in select.items]
    if select.is_distinct and any(token.word == "collate" for item in select.items for token in item.tokens):
        raise NotSplitError("DISTINCT with COLLATE takes values as equal that are not")
    asked = len(columns.texts)
    ordered = [(text_of(_ordered_by(select, term)), term.how) for term in select.order]
    here = ", ".join(f"{columns.add(text)} {how}" for text, how in ordered)
    is_whole = not select.is_distinct or asked == len(columns.texts)
    wanted = _wanted(select) if is_whole else None
    tail = [f"FROM {text_of(select.source)}", _clause("WHERE", text_of(select.expanded(select.where)))]
    tail.append(_clause("ORDER BY", here))
    tail.append(f"LIMIT {max_rows + 1 if wanted is None else min(wanted, max_rows + 1)}")
    has_source = not select.is_distinct or _has_identity(select, _all_items(select))
    listed = [*items, quoted(SOURCE)] if has_source else items
    head = "SELECT DISTINCT" if select.is_distinct else "SELECT"
    return Split(
        question=columns.question(head, " ".join(filter(None, tail)), max_rows),
        sql=" ".join(
            filter(
                None,
                (
                    f"{head} {', '.join(listed)} FROM {quoted(PARTIAL)}",
                    _clause("ORDER BY", here),
                    _limit(select),
                ),
            )
        ),
        table=columns.table(),
        has_source=has_source,
        shows_source=has_source and not _shows_node(select),
        is_list=not select.offset,
        nodes=_node_columns(select, columns),
    )


def _aggregate(select: Select, max_rows: int) -> Split:
    columns = _Columns()
    items_meant = [select.item_of(term) for term in select.group]
    terms = [meant.tokens if meant else term for meant, term in zip(items_meant, select.group, strict=True)]
    grouped = _listed(terms)
    # a constant groups nothing
    keys = [text_of(key) for key in map(select.expanded, terms) if any(True for _ in select.refs(key))]
    here = _Here(select, columns, keys)
    items = [here.text(item.tokens) + (f" AS {quoted(item.alias)}" if item.alias else "") for item in select.items]
    group = [text_of(term) if select.item_of(term) else here.text(term) for term in select.group]
    having = here.text(select.having)
    order = ", ".join(f"{_order_here(select, term, here)} {term.how}" for term in select.order)
    source = here.source_of(grouped)
    has_source = bool(source) and (not select.is_distinct or _has_identity(select, _all_items(select)))
    if source:
        group.append(source)
    if has_source:
        items.append(source)
    if not columns.texts:
        columns.add("1")
    tail = [f"FROM {text_of(select.source)}", _clause("WHERE", text_of(select.expanded(select.where)))]
    # without a group there is a row of nothing for no rows
    tail += [_clause("GROUP BY", ", ".join(dict.fromkeys(keys))) or "HAVING count(*) > 0", f"LIMIT {max_rows + 1}"]
    final = [f"SELECT {'DISTINCT ' * select.is_distinct}{', '.join(items)} FROM {quoted(PARTIAL)}"]
    final += [_clause("GROUP BY", ", ".join(group)), _clause("HAVING", having), _clause("ORDER BY", order)]
    return Split(
        question=columns.question("SELECT", " ".join(filter(None, tail)), max_rows),
        sql=" ".join(filter(None, (*final, _limit(select)))),
        table=columns.table(),
        has_source=has_source,
        shows_source=has_source and not _shows_node(select),
        is_list=False,
        nodes=_node_columns(select, columns),
        notes=tuple(_notes(select, grouped)),
    )


class _Here:
    """Rewrites parts of the statement into expressions on the nodes' answers."""

    def __init__(self, select: Select, columns: _Columns, keys: list[str]) -> None:
        self._select, self._columns, self._keys = select, columns, keys

    def text(self, tokens: Tokens) -> str:
        """A part of the statement, its aggregate functions and columns replaced by what the nodes answer for them."""
        calls = list(_calls(tokens))
        edits = [(call.first, call.end, self._final(call)) for call in calls]
        edits += [
            (ref.first, ref.end, self._bare(tokens, ref))
            for ref in self._select.refs(tokens)
            if not any(call.first <= ref.first < call.end for call in calls)
        ]
        return text_of(tokens, sorted(edits))

    def source_of(self, tokens: Tokens) -> str:
        """SQL for the node of the per-node numbers in some tokens; NULL where they are 0 or NULL; "": none."""
        wanted = self._select.expanded(tokens)
        refs = [ref for ref in self._select.refs(wanted) if names().identity(ref.table.view, ref.column)]
        known = dict.fromkeys(self._bare(wanted, ref) for ref in refs)
        return f"CASE WHEN {' OR '.join(f'{name} <> 0' for name in known)} THEN {quoted(SOURCE)} END" if known else ""

    def _bare(self, tokens: Tokens, ref: Ref) -> str:
        of = names().columns[ref.table.view][ref.column]
        return self._columns.add(text_of(tokens[ref.first : ref.end]), of)

    def _final(self, call: _Call) -> str:
        if call.name in _WHOLE:
            raise NotSplitError(f"{call.name}() puts rows of all nodes into one value")
        if any(token.word == "collate" for part in call.arguments for token in part):
            raise NotSplitError("COLLATE in an aggregate function takes values as equal that are not")
        arguments = [text_of(self._select.expanded(part)) for part in call.arguments]
        if call.is_distinct:
            return self._distinct(call, arguments)
        if call.name in percentiles.NAMES:
            return self._percentile(call, arguments)
        where = f" FILTER (WHERE {text_of(self._select.expanded(call.where))})" if call.where else ""
        if call.name == "count":
            column = self._columns.add(f"count({', '.join(arguments)}){where}", is_count=True)
            return f"coalesce(sum({column}), 0)"
        if call.name == "avg":
            total = self._columns.add(f"total({arguments[0]}){where}")
            count = self._columns.add(f"count({arguments[0]}){where}", is_count=True)
            return f"(total({total}) / nullif(sum({count}), 0))"
        self._require_constant(call.arguments[1:])
        column = self._columns.add(f"{call.name}({', '.join(arguments)}){where}")
        return f"{call.name}({', '.join([column, *arguments[1:]])})"

    def _distinct(self, call: _Call, arguments: list[str]) -> str:
        """Different values are a key of the nodes' groups: a value that two nodes have is one."""
        if call.name in percentiles.NAMES or len(arguments) != 1:
            raise NotSplitError(f"{call.name}(DISTINCT ..) takes values of all nodes")
        column = self._key(call, arguments[0])
        if call.name == "count" and _has_identity(self._select, call.arguments[0]):
            return f"count(DISTINCT iif({column} = 0, 0, {quoted(SOURCE)} || char(0) || {column}))"
        return f"{call.name}(DISTINCT {column})"

    def _percentile(self, call: _Call, arguments: list[str]) -> str:
        self._require_constant(call.arguments[1:])
        value = self._filtered(call, arguments[0])
        bucket = self._columns.add(percentiles.bucket_sql(value))
        self._keys.append(bucket)
        ends = [self._columns.add(f"{end}({value})") for end in ("min", "max")]
        count = self._columns.add(f"count({value})", is_count=True)
        name, where = ("percentile", "50") if call.name == "median" else (call.name, arguments[1])
        return f"{name}({bucket}, {ends[0]}, {ends[1]}, {count}, {where})"

    def _key(self, call: _Call, argument: str) -> str:
        column = self._columns.add(self._filtered(call, argument))
        self._keys.append(column)
        return column

    def _filtered(self, call: _Call, argument: str) -> str:
        where = text_of(self._select.expanded(call.where))
        return f"CASE WHEN {where} THEN {argument} END" if where else argument

    def _require_constant(self, arguments: Sequence[Tokens]) -> None:
        if any(True for part in arguments for _ in self._select.refs(self._select.expanded(part))):
            raise NotSplitError("an aggregate function has a second argument that is a column")


def _calls(tokens: Tokens) -> Iterator[_Call]:
    place = 0
    while place < len(tokens):
        call = _call(tokens, place)
        if call is not None:
            yield call
        place = call.end if call else place + 1


def _call(tokens: Tokens, place: int) -> _Call | None:
    name = tokens[place].name
    if name not in _AGGREGATES or place + 1 >= len(tokens) or tokens[place + 1].word != "(":
        return None
    if place and tokens[place - 1].word == ".":
        return None
    end = closing(tokens, place + 1)
    inner = tokens[place + 2 : end]
    is_distinct = bool(inner) and inner[0].word == "distinct"
    arguments = split(inner[is_distinct:], at=",")
    if name in {"min", "max"} and len(arguments) > 1:
        return None  # of its arguments, not of rows
    if any(token.word == "order" and after.word == "by" for token, after in pairwise(inner)):
        raise NotSplitError(f"{name}(.. ORDER BY ..) puts rows of all nodes in order")
    where: Tokens = ()
    if end + 2 < len(tokens) and tokens[end + 1].word == "filter" and tokens[end + 2].word == "(":
        filtered = closing(tokens, end + 2)
        where, end = tokens[end + 4 : filtered], filtered
    return _Call(place, end + 1, name, arguments, is_distinct, where)


def _ordered_by(select: Select, term: Term) -> Tokens:
    """Resolve a term of ORDER BY: the number or name of an answer column takes precedence over a table's column."""
    item = select.item_of(term.tokens) or _aliased(select, term)
    return item.tokens if item else select.expanded(term.tokens)


def _order_here(select: Select, term: Term, here: _Here) -> str:
    if select.item_of(term.tokens):
        return text_of(term.tokens)
    item = _aliased(select, term)
    return quoted(item.alias) if item else here.text(term.tokens)


def _aliased(select: Select, term: Term) -> Item | None:
    name = term.tokens[0].name if len(term.tokens) == 1 else ""
    return next((item for item in select.items if name and item.alias == name), None)


def _wanted(select: Select) -> int | None:
    """How many first rows of each node can be in the answer; None: all of them."""
    numbers = [select.limit, select.offset or select.limit[:0]]
    if not select.limit or any(len(part) > 1 or (part and not part[0].text.isdigit()) for part in numbers):
        return None
    return sum(int(part[0].text) for part in numbers if part)


def _limit(select: Select) -> str:
    return " ".join(filter(None, (_clause("LIMIT", text_of(select.limit)), _clause("OFFSET", text_of(select.offset)))))


def _clause(word: str, text: str) -> str:
    return f"{word} {text}" if text else ""


def _all_items(select: Select) -> Tokens:
    return _listed([item.tokens for item in select.items])


def _listed(parts: Sequence[Tokens]) -> Tokens:
    """Parts as one, a comma after each: a name before a bracket would be a function."""
    return tuple(token for part in parts for token in (*part, Token("sign", ",")))


def _has_identity(select: Select, tokens: Tokens) -> bool:
    """Whether some tokens refer to a per-node number."""
    return any(names().identity(ref.table.view, ref.column) for ref in select.refs(select.expanded(tokens)))


def _shows_node(select: Select) -> bool:
    return any(_is_node(select, item.tokens) for item in select.items)


def _is_node(select: Select, tokens: Tokens) -> bool:
    refs = list(select.refs(tokens))
    return len(refs) == 1 and refs[0].end == len(tokens) and not refs[0].first and refs[0].column == "node"


def _node_columns(select: Select, columns: _Columns) -> tuple[int, ...]:
    written: set[str] = set()
    order = (term.tokens for term in select.order)
    for part in (*(item.tokens for item in select.items), *select.group, select.having, *order):
        written |= {text_of(part[ref.first : ref.end]) for ref in select.refs(part) if ref.column == "node"}
    return tuple(place for place, text in enumerate(columns.texts) if text in written)


def _notes(select: Select, grouped: Tokens) -> Iterator[str]:
    named = {ref.column for ref in select.refs(select.expanded(grouped))}
    for column in sorted(named & {"pid", "tid"}):
        if "node" not in named:
            yield f"one {column} may be of processes on several nodes: group by node as well to distinguish them"
