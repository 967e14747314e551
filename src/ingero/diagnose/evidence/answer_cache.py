"""A cache of small answers about the past, which each pass of a live diagnosis asks for again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class AnswerCache:
    """Answers by their question, each kept for as long as every pass asks for it."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}
        self._of_last_pass: dict[Hashable, Any] = {}

    def get(self, key: Hashable, ask: Callable[[], Answer]) -> Answer:
        """The cached answer from this pass or the one before, else the answer of `ask`."""
        if key not in self._answers:
            self._answers[key] = self._of_last_pass[key] if key in self._of_last_pass else ask()
        found: Answer = self._answers[key]
        return found

    def end_pass(self) -> None:
        """Drops the answers that this pass did not ask for."""
        self._of_last_pass, self._answers = self._answers, {}
