"""What must be said of a situation, what must not, and whether it was; of a healthy program: nothing, or what is so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


def at(*functions: str) -> str:
    """A pattern of a line of one of these: `step() at train.py:7` in sentences, `train.py:7 in step` in lists."""
    names = f"(?:{'|'.join(functions)})"
    return rf"\b{names}(?:\.<locals>\.\S+)?\(\) at |:\d+ in (?:\w+\.)*{names}\b"


class Expected(Protocol):
    """What is right. Patterns are searched without regard to case; <name> in any text is the pid of that program."""

    @property
    def answer(self) -> str:
        """The right answer, and wrong ones, in words."""

    def is_there(self, before: float, after: float) -> bool:
        """Whether these rates of steps, without the situation and with it, show the situation."""

    def problems(self, said: Sequence[str], pids: Mapping[str, int]) -> list[str]:
        """What is lacking in these incidents, and what was said and must not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is right where something is wrong.

    wanted: patterns that one and the same incident must all match. never: patterns that no incident may match. slower:
    by what factor steps must have become rarer, or the situation was not there.
    """

    answer: str
    wanted: tuple[str, ...]
    never: tuple[str, ...] = ()
    slower: float = 1.3

    def is_there(self, before: float, after: float) -> bool:
        """Whether steps became rare enough."""
        return before > 0 and before >= self.slower * after

    def problems(self, said: Sequence[str], pids: Mapping[str, int]) -> list[str]:
        """What is lacking in the incident that fits best, and what was said and must not be."""
        wanted = _compiled(self.wanted, pids)
        lacking = [[one.pattern for one in wanted if not one.search(text)] for text in said]
        best = min(lacking, key=len, default=[one.pattern for one in wanted])
        return [f"lacks {one}" for one in best] + _wrong(self.never, said, pids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthy:
    """What is right where nothing is wrong: no incident.

    allowed: patterns of incidents that are true and harmless; each incident must match one. never: patterns that no
    incident may match, an allowed one neither. steady: by this factor steps may not become rarer, or something else
    disturbed the program; None: they do by design.
    """

    answer: str
    allowed: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    steady: float | None = 1.3

    def is_there(self, before: float, after: float) -> bool:
        """Whether the program made its steps as it should."""
        return before > 0 and (self.steady is None or before < self.steady * after)

    def problems(self, said: Sequence[str], pids: Mapping[str, int]) -> list[str]:
        """What was said and must not be."""
        allowed = _compiled(self.allowed, pids)
        alarms = [text for text in said if not any(one.search(text) for one in allowed)]
        return [f"reports {text.partition(':')[0]}" for text in alarms] + _wrong(self.never, said, pids)


def in_words(answer: str, pids: Mapping[str, int]) -> str:
    """The answer in one line."""
    text = " ".join(answer.split())
    for name, pid in pids.items():
        text = text.replace(f"<{name}>", str(pid))
    return text


def _wrong(never: Sequence[str], said: Sequence[str], pids: Mapping[str, int]) -> list[str]:
    return [f"says {one.pattern}" for one in _compiled(never, pids) if any(one.search(text) for text in said)]


def _compiled(patterns: Sequence[str], pids: Mapping[str, int]) -> list[re.Pattern[str]]:
    return [_with_pids(pattern, pids) for pattern in patterns]


def _with_pids(pattern: str, pids: Mapping[str, int]) -> re.Pattern[str]:
    for name, pid in pids.items():
        pattern = pattern.replace(f"<{name}>", rf"\[{pid}\]")
    return re.compile(pattern, re.IGNORECASE)
