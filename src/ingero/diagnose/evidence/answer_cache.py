"""Small answers about what is over, which each look at a recording that goes on asks for again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class KeptAnswers:
    """By what was asked; as long as each look asks for them."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}
        self._of_last_look: dict[Hashable, Any] = {}

    def get(self, key: Hashable, ask: Callable[[], Answer]) -> Answer:
        """What is kept of this question, from this look or the one before, else what `ask` answers."""
        if key not in self._answers:
            self._answers[key] = self._of_last_look[key] if key in self._of_last_look else ask()
        found: Answer = self._answers[key]
        return found

    def end_look(self) -> None:
        """Lets go of what this look did not ask for."""
        self._of_last_look, self._answers = self._answers, {}
