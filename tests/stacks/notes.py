"""What the note of a stack says is missing of it."""

from __future__ import annotations

_MARK = "native frames may be those of another call"


def missing(note: str) -> str:
    """The note without the mark of calls that came before the agent's answer to a copy: nothing is missing of those."""
    return "; ".join(part for part in note.split("; ") if not part.startswith(_MARK))
