"""A statement as SQLite's own tokens, and how parts of it are put together again.

Statements are cut and joined at their tokens, never printed from a tree: between the cuts a node runs what was asked,
word for word (docs/adr/0052-statements-for-many-nodes.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ingero.store.user_sql.errors import SqlRefusedError

_TOKEN = re.compile(
    r"""(?P<gap>\s+|--[^\n]*|/\*.*?(?:\*/|$))
      | (?P<text>'(?:[^']|'')*')
      | (?P<blob>[xX]'[0-9a-fA-F]*')
      | (?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])
      | (?P<number>0[xX][0-9a-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?)
      | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
      | (?P<sign>->>|->|\|\||<<|>>|<=|>=|<>|!=|==|[-+*/%<>=&|~(),.;])""",
    re.DOTALL | re.VERBOSE,
)
FOLDED = "folded "  # kind of a token that stands for a SELECT in brackets, before the kind of number that it selects
_OPEN = frozenset({"(", "case"})
_CLOSE = frozenset({")", "end"})


@dataclass(frozen=True, slots=True)
class Token:
    """kind: text, blob, name (in quotes), number, word, sign, `FOLDED`. text: as written."""

    kind: str
    text: str

    @property
    def word(self) -> str:
        """A keyword, a name without quotes or a sign, in lower case; "" for a name in quotes, which is no keyword."""
        return self.text.lower() if self.kind in {"word", "number", "sign"} else ""

    @property
    def is_name(self) -> bool:
        """Whether it may name something."""
        return self.kind in {"word", "name"}

    @property
    def name(self) -> str:
        """The token's name in lower case and without quotes, which SQLite ignores."""
        if self.kind == "name":
            quote = self.text[0]
            inner = self.text[1:-1]
            return (inner if quote == "[" else inner.replace(quote * 2, quote)).lower()
        return self.text.lower() if self.kind == "word" else ""


Tokens: TypeAlias = "tuple[Token, ...]"


def tokens_of(sql: str) -> Tokens:
    """The tokens of one statement, without comments and without its semicolon.

    Raises:
        SqlRefusedError: there is something in it that is no token of SQLite's.
    """
    found: list[Token] = []
    place = 0
    while place < len(sql):
        match = _TOKEN.match(sql, place)
        if match is None:
            raise SqlRefusedError(
                f"{sql[place : place + 20]!r} cannot stand in a statement for many nodes",
                hint="write the values into it",
            )
        if match.lastgroup != "gap":
            found.append(Token(str(match.lastgroup), match[0]))
        place = match.end()
    while found and found[-1].text == ";":
        found.pop()
    return tuple(found)


def text_of(tokens: Sequence[Token], edits: Sequence[tuple[int, int, str]] = ()) -> str:
    """The tokens as text. edits: (first, end, text) of places where another text stands, in order, not overlapping."""
    pieces: list[str] = []
    place = 0
    for first, end, text in edits:
        pieces += [token.text for token in tokens[place:first]]
        pieces.append(text)
        place = end
    pieces += [token.text for token in tokens[place:]]
    return " ".join(pieces)


def depths(tokens: Sequence[Token]) -> Iterator[tuple[int, Token, int]]:
    """Each token with its place and how many brackets, CASE .. END among them, it stands in."""
    depth = 0
    for place, token in enumerate(tokens):
        if token.word in _CLOSE:
            depth -= 1
        yield place, token, depth
        if token.word in _OPEN:
            depth += 1


def closing(tokens: Sequence[Token], opening: int) -> int:
    """The place of the bracket that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(tokens)):
        depth += (tokens[place].word == "(") - (tokens[place].word == ")")
        if not depth:
            return place
    raise AssertionError("SQLite takes no statement whose brackets do not match")


def split(tokens: Tokens, *, at: str) -> tuple[Tokens, ...]:
    """The parts between commas (or ANDs) outside of brackets; none for no tokens. The AND of a BETWEEN is no cut."""
    parts: list[Tokens] = []
    begin, betweens = 0, 0
    for place, token, depth in depths(tokens):
        if depth:
            continue
        if token.word == "between":
            betweens += 1
        elif token.word == "and" and betweens:
            betweens -= 1
        elif token.word == at:
            parts.append(tokens[begin:place])
            begin = place + 1
    return (*parts, tokens[begin:]) if tokens else ()


def conditions(tokens: Tokens) -> tuple[Tokens, ...]:
    """What a condition needs to be true each; none where an OR makes any of it needless."""
    if any(token.word == "or" and not depth for _, token, depth in depths(tokens)):
        return ()
    return split(tokens, at="and")
