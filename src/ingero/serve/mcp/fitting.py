"""Limits answers for an assistant to 90 kB, with a note on what was cut and how to get it.

Clients cut or refuse what is larger, some without a word (25,000 tokens in one of them).
"""

from __future__ import annotations

import json
from typing import Any

MAX_BYTES = 90_000  # of an answer's members and its text together, as they are sent
MAX_TEXT_BYTES = 30_000
_FOR_NOTES = 1_000
SKIPPABLE = frozenset({"incidents", "stacks", "ops", "rates", "calls"})  # of which a tool gives the next with `skip`


def json_bytes(value: object) -> int:
    """How many bytes it is as JSON."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))


def fitted(content: dict[str, Any], text: str, *, skipped: int | None = None) -> tuple[dict[str, Any], str]:
    """The answer with as much of its lists as fits, from the first on, and what of which is missing in `rest`.

    skipped: how many the tool has left out at the begin of its main list, None where it cannot.
    """
    kept, notes = cut_text(text)
    room = MAX_BYTES - _FOR_NOTES - json_bytes(kept)
    content = dict(content)
    for holder, name in _lists(content):
        over = json_bytes(content) - room
        if over <= 0:
            break
        had = holder[name]
        holder[name] = _shortened(had, json_bytes(had) - over)
        way = "ask with pid, or a shorter since"
        if skipped is not None and name in SKIPPABLE:
            way = f"ask again with skip={skipped + len(holder[name])}"
        notes.append(f"{name}: {len(holder[name])} of {len(had)} are here, an answer has no room for more; {way}")
    if not notes:
        return content, text
    return {**content, "rest": notes}, "\n".join([kept, *notes])


def cut_text(text: str) -> tuple[str, list[str]]:
    """The lines of a text that fit, and the note on the others."""
    if json_bytes(text) <= MAX_TEXT_BYTES:
        return text, []
    kept: list[str] = []
    left = MAX_TEXT_BYTES
    lines = text.split("\n")
    for line in lines:
        left -= json_bytes(line)
        if left < 0:
            break
        kept.append(line)
    return "\n".join(kept), [f"text: {len(kept)} of {len(lines)} lines are here; the members of the answer have more"]


def _lists(content: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Lists and maps of the answer, and of the one incident in it, the largest first; copied, for they are cut."""
    found = []
    holders = [content]
    if isinstance(content.get("incident"), dict):
        content["incident"] = dict(content["incident"])
        holders.append(content["incident"])
    for holder in holders:
        found += [(holder, name) for name, value in holder.items() if isinstance(value, (list, dict)) and value]
    return sorted(
        ((holder, name) for holder, name in found if holder[name] is not content.get("incident")),
        key=lambda one: -json_bytes(one[0][one[1]]),
    )


def _shortened(value: Any, most_bytes: int) -> Any:  # a list or a map
    """The first members of a list or map, as many as fit."""
    left = most_bytes - 2
    members = list(value.items()) if isinstance(value, dict) else list(value)
    count = 0
    for member in members:
        left -= json_bytes(member) + 2
        if left < 0:
            break
        count += 1
    return dict(members[:count]) if isinstance(value, dict) else members[:count]
