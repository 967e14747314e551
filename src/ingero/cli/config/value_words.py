"""Words that a shell offers as the value of an option or argument; other values are taken, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import rich_click as click


def starting_with(words: Iterable[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Click's callback: those words that go on from what is typed already."""

    def offered(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offered
