"""Shell completion for an option or argument whose values are words; other values are accepted, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import rich_click as click


def starting_with(words: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A callback of click that returns the words that start with the typed text."""

    def offered(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offered
