"""What must be said of a situation, what must not, and whether it was."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def at(*functions: str) -> str:
    """A pattern of a line of one of these: `step() at train.py:7` in sentences, `train.py:7 in step` in lists."""
    names = f"(?:{'|'.join(functions)})"
    return rf"\b{names}(?:\.<locals>\.\S+)?\(\) at |:\d+ in (?:\w+\.)*{names}\b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is right.

    answer: the right answer, and wrong ones, in words. wanted: patterns that one and the same incident must all match.
    never: patterns that no incident may match. They are searched without regard to case; <name> in any of these is the
    pid of that program. slower: by what factor steps must have become rarer, or the situation was not there.
    """

    answer: str
    wanted: tuple[str, ...]
    never: tuple[str, ...] = ()
    slower: float = 1.3

    def problems(self, said: Sequence[str], pids: Mapping[str, int]) -> list[str]:
        """What is lacking in the incident that fits best, and what was said and must not be."""
        wanted, never = ([_compiled(one, pids) for one in patterns] for patterns in (self.wanted, self.never))
        lacking = [[one.pattern for one in wanted if not one.search(text)] for text in said]
        best = min(lacking, key=len, default=[one.pattern for one in wanted])
        wrong = [one.pattern for one in never if any(one.search(text) for text in said)]
        return [f"lacks {one}" for one in best] + [f"says {one}" for one in wrong]

    def in_words(self, pids: Mapping[str, int]) -> str:
        """The answer in one line."""
        text = " ".join(self.answer.split())
        for name, pid in pids.items():
            text = text.replace(f"<{name}>", str(pid))
        return text


def _compiled(pattern: str, pids: Mapping[str, int]) -> re.Pattern[str]:
    for name, pid in pids.items():
        pattern = pattern.replace(f"<{name}>", rf"\[{pid}\]")
    return re.compile(pattern, re.IGNORECASE)
