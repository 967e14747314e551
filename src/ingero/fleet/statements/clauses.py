"""Parses one SELECT into its clauses, and resolves its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ingero.fleet.statements.errors import NotSplitError
from ingero.fleet.statements.names import names
from ingero.fleet.statements.tokens import FOLDED, Token, Tokens, depths, split, text_of

_CLAUSES = ("select", "from", "where", "group", "having", "window", "order", "limit")
_COMPOUND = frozenset({"union", "intersect", "except"})
_JOIN_WORDS = frozenset({"join", "left", "right", "full", "inner", "outer", "cross", "natural"})
# A word after one of these is no alias, even without AS between.
_OPERATOR_WORDS = """
and or not is in like glob match regexp between case when then else collate distinct all from escape
"""
_OPERATORS = frozenset(_OPERATOR_WORDS.split())
_POSTFIX = frozenset({"isnull", "notnull", "null", "end", "true", "false", "current_time", "current_date"})


@dataclass(frozen=True, slots=True)
class Item:
    """One column of the answer. alias: in lower case; "": it has none."""

    tokens: Tokens
    alias: str


@dataclass(frozen=True, slots=True)
class Table:
    """A view or table in FROM.

    alias: what its columns are named after. how: the words of its JOIN. on, using: its condition.
    """

    view: str
    alias: str
    how: frozenset[str] = frozenset()
    on: Tokens = ()
    using: tuple[str, ...] = ()

    @property
    def is_outer(self) -> bool:
        """Whether rows of the tables before it are kept if they match none of its own."""
        return bool(self.how & {"left", "right", "full"})


@dataclass(frozen=True, slots=True)
class Term:
    """A term of ORDER BY. how: what follows its expression: COLLATE, DESC, NULLS."""

    tokens: Tokens
    how: str


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a column. first, end: its tokens. table: index of its table in FROM."""

    first: int
    end: int
    table: Table
    column: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """A SELECT over published views without a nested SELECT."""

    is_distinct: bool
    items: tuple[Item, ...]
    source: Tokens
    tables: tuple[Table, ...]
    where: Tokens
    group: tuple[Tokens, ...]
    having: Tokens
    order: tuple[Term, ...]
    limit: Tokens
    offset: Tokens

    @classmethod
    def of_tables(cls, tables: tuple[Table, ...]) -> Select:
        """A SELECT of which only the tables are known, to look names up."""
        return cls(
            is_distinct=False,
            items=(),
            source=(),
            tables=tables,
            where=(),
            group=(),
            having=(),
            order=(),
            limit=(),
            offset=(),
        )

    def refs(self, tokens: Tokens) -> Iterator[Ref]:
        """The columns referenced in some tokens, from left to right."""
        place = 0
        while place < len(tokens):
            ref = self._ref(tokens, place)
            if ref is not None:
                yield ref
            place = ref.end if ref else place + 1

    def _ref(self, tokens: Tokens, place: int) -> Ref | None:
        token, after = tokens[place], tokens[place + 1 : place + 3]
        if not token.is_name or (place and tokens[place - 1].word in {".", "as", "collate"}):
            return None
        if after and after[0].word == ".":
            named = [table for table in self.tables if table.alias == token.name]
            if not named or len(after) < 2 or after[1].name not in names().columns[named[0].view]:
                raise NotSplitError(f"{text_of(tokens[place : place + 3])} is not a column of its tables")
            return Ref(place, place + 3, named[0], after[1].name)
        if after and after[0].word == "(":
            return None
        for table in self.tables:
            if token.name in names().columns[table.view]:
                return Ref(place, place + 1, table, token.name)
        return None

    def expanded(self, tokens: Tokens) -> Tokens:
        """Some tokens with the names of answer columns replaced by their expressions."""
        found: list[Token] = []
        aliases = {item.alias: item.tokens for item in reversed(self.items) if item.alias}
        own = {place for ref in self.refs(tokens) for place in range(ref.first, ref.end)}
        for place, token in enumerate(tokens):
            is_call = tokens[place + 1 : place + 2] and tokens[place + 1].word == "("
            is_type = place and tokens[place - 1].word in {"as", "collate"}
            if token.is_name and token.name in aliases and place not in own and not is_call and not is_type:
                found += [Token("sign", "("), *aliases[token.name], Token("sign", ")")]
            else:
                found.append(token)
        return tuple(found)

    def require_folds(self) -> None:
        """Require that folded tokens follow a number of the kind that they select, where nodes expect them.

        Raises:
            NotSplitError: it does not.
        """
        here = [*(item.tokens for item in self.items), self.having, *self.group, *(term.tokens for term in self.order)]
        if any(token.kind.startswith(FOLDED) for part in here for token in part):
            raise NotSplitError("it holds a SELECT in a SELECT")
        for part in (self.where, *(table.on for table in self.tables)):
            links = {ref.end: names().link(ref.table.view, ref.column) for ref in self.refs(part)}
            for place, token in enumerate(part):
                if token.kind.startswith(FOLDED):
                    before = place - 2 if part[place - 2].word == "not" else place - 1
                    if links.get(before) != token.kind.removeprefix(FOLDED):
                        raise NotSplitError("it holds a SELECT in a SELECT")

    def item_of(self, tokens: Tokens) -> Item | None:
        """The column of the answer that a term of ORDER BY or GROUP BY means by its number, if it does."""
        if len(tokens) == 1 and tokens[0].kind == "number" and tokens[0].text.isdigit():
            return self.items[int(tokens[0].text) - 1]
        return None


def parse_select(tokens: Tokens) -> Select:
    """Parse one SELECT that SQLite has accepted already.

    Raises:
        NotSplitError: it holds others, or what has no meaning on one node alone.
    """
    parts = clauses_of(tokens)
    _require_one_scope(tokens)
    head = parts["select"]
    is_distinct = bool(head) and head[0].word == "distinct"
    if head and head[0].word in {"distinct", "all"}:
        head = head[1:]
    tables = tables_of(parts["from"])
    limit, offset = _limit(parts["limit"])
    return Select(
        is_distinct=is_distinct,
        items=tuple(item for one in split(head, at=",") for item in _items(one, tables)),
        source=parts["from"],
        tables=tables,
        where=parts["where"],
        group=split(parts["group"][1:], at=","),
        having=parts["having"],
        order=tuple(_term(one) for one in split(parts["order"][1:], at=",")),
        limit=limit,
        offset=offset,
    )


def clauses_of(tokens: Tokens) -> dict[str, Tokens]:
    """The clauses of one SELECT by their first word, without it; () for missing ones.

    Raises:
        NotSplitError: it is not one alone.
    """
    if not tokens or tokens[0].word != "select":
        raise NotSplitError("it does not begin with SELECT")
    begins: list[tuple[str, int]] = []
    for place, token, depth in depths(tokens):
        if depth:
            continue
        if token.word in _COMPOUND or (place and token.word == "select"):
            raise NotSplitError("it puts several SELECTs together")
        if token.word in _CLAUSES and (not begins or _is_later(token, tokens, place, begins[-1][0])):
            begins.append((token.word, place))
    ends = [place for _, place in begins[1:]] + [len(tokens)]
    parts = {name: tokens[place + 1 : end] for (name, place), end in zip(begins, ends, strict=True)}
    if "from" not in parts:
        raise NotSplitError("it asks nothing of a recording")
    return {name: parts.get(name, ()) for name in _CLAUSES}


def _require_one_scope(tokens: Tokens) -> None:
    for before, token in pairwise(tokens):
        if token.word in {"select", "values"} and before.word != ".":
            raise NotSplitError("it holds a SELECT in a SELECT")
        if token.word in {"over", "window"} and before.word != ".":
            raise NotSplitError("a window function needs rows of all nodes")


def _is_later(token: Token, tokens: Tokens, place: int, last: str) -> bool:
    """Whether a word begins a clause: GROUP and ORDER only before BY, and WINDOW may be a column's name."""
    follows = tokens[place + 1].word if place + 1 < len(tokens) else ""
    if token.word in {"group", "order"} and follows != "by":
        return False
    return _CLAUSES.index(token.word) > _CLAUSES.index(last) and tokens[place - 1].word != "."


def _items(tokens: Tokens, tables: tuple[Table, ...]) -> Iterator[Item]:
    if tokens[-1].word == "*" and (len(tokens) == 1 or tokens[-2].word == "."):
        if any(table.using or "natural" in table.how for table in tables):
            raise NotSplitError("* of a JOIN .. USING leaves columns out")
        wanted = tables if len(tokens) == 1 else [table for table in tables if table.alias == tokens[0].name]
        if not wanted:
            raise NotSplitError(f"{text_of(tokens)} is none of its tables")
        for table in wanted:
            for column in names().columns[table.view]:
                yield Item((_quoted(table.alias), Token("sign", "."), _quoted(column)), "")
        return
    if len(tokens) > 2 and tokens[-2].word == "as":
        yield Item(tokens[:-2], _alias(tokens[-1]))
    elif len(tokens) > 1 and _is_alias(tokens[-1], tokens[-2]):
        yield Item(tokens[:-1], _alias(tokens[-1]))
    else:
        yield Item(tokens, "")


def _is_alias(token: Token, before: Token) -> bool:
    """Whether a last token names its column without AS: then it is not part of the expression before it."""
    if not (token.is_name or token.kind == "text") or token.word in _POSTFIX:
        return False
    ends_operand = before.kind in {"name", "text", "blob", "number"} or before.word in {")", "end"}
    return ends_operand or (before.kind == "word" and before.word not in _OPERATORS)


def _alias(token: Token) -> str:
    return token.name or token.text[1:-1].replace("''", "'").lower()


def _quoted(name: str) -> Token:
    return Token("name", '"' + name.replace('"', '""') + '"')


def tables_of(tokens: Tokens) -> tuple[Table, ...]:
    """The tables of a FROM.

    Raises:
        NotSplitError: something else is in it.
    """
    cuts = [0]
    for place, token, depth in depths(tokens):
        begins_join = token.word in _JOIN_WORDS and not (place and tokens[place - 1].word in _JOIN_WORDS)
        if place and not depth and (token.word == "," or begins_join):
            cuts.append(place)
    return tuple(_table(tokens[first:end]) for first, end in zip(cuts, [*cuts[1:], len(tokens)], strict=True))


def _table(tokens: Tokens) -> Table:
    place = 0
    while place < len(tokens) and tokens[place].word in {*_JOIN_WORDS, ","}:
        place += 1
    how, rest = frozenset(token.word for token in tokens[:place]), tokens[place:]
    if not rest or rest[0].name not in names().columns or (len(rest) > 1 and rest[1].word in {"(", "."}):
        raise NotSplitError(f"{text_of(rest[:3]) or 'nothing'} in FROM is not a published view")
    view, alias, rest = rest[0].name, rest[0].name, rest[1:]
    if rest and rest[0].word == "as":
        alias, rest = _alias(rest[1]), rest[2:]
    elif rest and rest[0].word not in {"on", "using", "indexed", "not"}:
        alias, rest = _alias(rest[0]), rest[1:]
    if rest and rest[0].word == "using":
        return Table(view, alias, how, using=tuple(one.name for one in rest if one.is_name and one.word != "using"))
    if rest and rest[0].word != "on":
        raise NotSplitError(f"{text_of(rest[:3])} in FROM has no meaning on a node")
    return Table(view, alias, how, on=rest[1:])


def _term(tokens: Tokens) -> Term:
    end = len(tokens)
    if end > 1 and tokens[end - 2].word == "nulls":
        end -= 2
    if tokens[end - 1].word in {"asc", "desc"}:
        end -= 1
    if end > 2 and tokens[end - 2].word == "collate":
        end -= 2
    return Term(tokens[:end], text_of(tokens[end:]))


def _limit(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """LIMIT and OFFSET; in `LIMIT a, b` the second one is the limit."""
    for place, token, depth in depths(tokens):
        if not depth and token.word == "offset":
            return tokens[:place], tokens[place + 1 :]
        if not depth and token.word == ",":
            return tokens[place + 1 :], tokens[:place]
    return tokens, ()
