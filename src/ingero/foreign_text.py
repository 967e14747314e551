"""Text of other processes, files and machines, made harmless: one way in, and what every way out is built from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

# Names of threads have 16 bytes, paths 4 KiB. What is longer is a program's argument or a mangled C++ name; nobody
# reads it to its end, and a recording of many must stay small.
MOST_CHARACTERS = 8 << 10
_CUT = "…"

_SAFE_WORD = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_PLAIN = str.maketrans("µ–…▁▂▃▄▅▆▇█", "u-..:-=+*%#")  # our own characters, for terminals that lack them: one for one
_SPACES = "\u00a0\u2007\u202f\u3000"  # not printable to Python, and harmless


def decoded(raw: bytes, *, most: int = MOST_CHARACTERS) -> str:
    """The one way in: bytes that somebody else chose as text, what is no UTF-8 replaced, cut where it is too long."""
    text = raw[: 4 * most].decode("utf-8", "replace")
    return text if len(text) <= most and len(raw) <= 4 * most else text[:most] + _CUT


def visible(text: str, *, keeps_lines: bool = False) -> str:
    r"""For people: what acts on a terminal, hides or turns text around is shown as an escape (`\x1b`, `\u202e`).

    keeps_lines: line breaks that are ours, between the lines of a stack.
    """
    if text.isprintable():
        return text
    kept = "\n" if keeps_lines else ""
    return "".join(char if char.isprintable() or char in kept or char in _SPACES else _escape(char) for char in text)


def encodable(text: str, encoding: str) -> str:
    """For an output that may lack characters of ours: `us` for `µs`, and plain marks for blocks; the rest as `?`."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def label(text: str) -> str:
    """For a file in which a name may stand a hundred thousand times: visible, and cut where it is too long."""
    return visible(text) if len(text) <= MOST_CHARACTERS else f"{visible(text[:MOST_CHARACTERS])}{_CUT}"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shell_word(name: str | Path) -> str:
    """For a command that people paste: one word that the shell takes as it is, whatever is in it."""
    text = str(name)
    if text and _SAFE_WORD.fullmatch(text):
        return text
    if text.isprintable():
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{''.join(char if char.isprintable() else _shell_escape(char) for char in quoted)}'"


def operand(text: str) -> str:
    """A word that the program after it must not take for an option either."""
    return f"-- {shell_word(text)}" if text.startswith("-") else shell_word(text)


def _shell_escape(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
