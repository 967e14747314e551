"""Removes secrets from command lines before they leave the host: passwords, tokens and keys.

They are known by the name they are given under, by the form that issuers give them, or by looking like chance. What has
none of these marks stays, and whoever sends a recording to others is told so.
"""

from __future__ import annotations

import re

HIDDEN = "[secret]"

_NAME = (
    r"(?:[\w.-]*[_.-]|(?-i:[\w.-]*[a-z](?=[A-Z])))?"  # hf-token, WANDB_API_KEY, openaiApiKey; no tokens, no tokenizer
    r"(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|"
    r"auth|authorization|credentials?)"
)
_SCHEME = r"(?:(?:bearer|basic)\s+)?"
_NAMED = re.compile(  # what stands in quotes is hidden up to the next one, so that JSON stays JSON
    rf"""(?<![\w.-])((?:--?)?{_NAME}(?:\\?["']?\s*[=:]\s*|\s+(?=[^\s-])))"""
    rf"""((?:\\?["'])?{_SCHEME})((?<=["'])[^"'\\]+|[^\s"'\\,;&]+)""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(\w[\w+.-]*://)[^\s/@\"']+@")
_ISSUED = re.compile(
    r"\b(?:hf_\w{16,}|sk-[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{12,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
# A word of 32 characters or more, of hexadecimal digits or of digits, small and large letters. A path has slashes.
_CHANCE = re.compile(
    r"(?<![\w/+.-])(?:[0-9a-f]{32,}|(?=[\w+-]*\d)(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])[\w+-]{32,}={0,2})(?![\w/.+-])"
)


def without_secrets(text: str) -> str:
    """The text with every recognized secret replaced by a mark."""
    text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    text = _NAMED.sub(rf"\1\2{HIDDEN}", text)
    return _CHANCE.sub(HIDDEN, _ISSUED.sub(HIDDEN, text))
