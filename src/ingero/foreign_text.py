"""Sanitizes text of other processes, files and hosts: one decoder, and an escape for each output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

# Names of threads have 16 bytes, paths 4 KiB. What is longer is a program's argument or a mangled C++ name; nobody
# reads it to its end, and a recording of many must stay small.
MAX_CHARACTERS = 8 << 10
_CUT = "…"

_SAFE_WORD = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_PLAIN = str.maketrans("µ–…▁▂▃▄▅▆▇█", "u-..:-=+*%#")  # our own characters, for terminals that lack them: one for one
_SPACES = "\u00a0\u2007\u202f\u3000"  # not printable to Python, and harmless


def decoded(raw: bytes, *, most: int = MAX_CHARACTERS) -> str:
    """Decodes foreign bytes: invalid UTF-8 is replaced, long text is cut."""
    text = raw[: 4 * most].decode("utf-8", "replace")
    return text if len(text) <= most and len(raw) <= 4 * most else text[:most] + _CUT


def visible(text: str, *, keeps_lines: bool = False) -> str:
    r"""Escapes control, invisible and bidirectional characters for display (`\x1b`, `\u202e`).

    keeps_lines: line breaks that are ours, between the lines of a stack.
    """
    if text.isprintable():
        return text
    kept = "\n" if keeps_lines else ""
    return "".join(char if char.isprintable() or char in kept or char in _SPACES else _escape(char) for char in text)


def encodable(text: str, encoding: str) -> str:
    """Replaces characters that an output cannot encode: `us` for `µs`, plain marks for blocks, else `?`."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def label(text: str) -> str:
    """A visible, shortened name for files in which it may occur 100,000 times."""
    return visible(text) if len(text) <= MAX_CHARACTERS else f"{visible(text[:MAX_CHARACTERS])}{_CUT}"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def shell_word(name: str | Path) -> str:
    """Quotes a name as one shell word for commands that users paste."""
    text = str(name)
    if text and _SAFE_WORD.fullmatch(text):
        return text
    if text.isprintable():
        return shlex.quote(text)
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{''.join(char if char.isprintable() else _shell_escape(char) for char in quoted)}'"


def operand(text: str) -> str:
    """A shell word that the program does not take for an option either."""
    return f"-- {shell_word(text)}" if text.startswith("-") else shell_word(text)


def _shell_escape(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
