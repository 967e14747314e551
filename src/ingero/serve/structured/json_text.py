"""JSON with untrusted texts: control characters are made visible for pages, and escaped for programs."""

from __future__ import annotations

import re

import msgspec

# What the encoder leaves as it is and a terminal or a page would obey: C1 controls, marks of direction, what is
# invisible. C0 controls are escaped by every encoder.
_RAW = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# Escapes in pairs from the left, so that an escaped backslash before `u001b` is not taken for the begin of one.
_ESCAPE = re.compile(r"\\(u00[01][0-9a-f]|.)")
_KEPT = ("u000a", "u0009")

_encode = msgspec.json.Encoder().encode


def for_pages(body: object) -> bytes:
    r"""JSON whose texts show each control character as an escape, `\x1b`, once they are on a page. Lines stay."""
    text = _encode(body).decode()
    if "\\u00" in text:
        text = _ESCAPE.sub(lambda match: _shown(match[1]) if match[1] not in _KEPT else match[0], text)
    return text.encode() if text.isascii() else _RAW.sub(lambda match: f"\\{_escape(match[0])}", text).encode()


def _shown(escape: str) -> str:
    return rf"\\x{escape[3:]}" if escape.startswith("u00") else f"\\{escape}"


def for_programs(text: str) -> str:
    """JSON with the same values and no control sequence that a terminal would obey."""
    return text if text.isascii() and "\x7f" not in text else _RAW.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(rf"\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
