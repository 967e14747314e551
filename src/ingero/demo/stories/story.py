"""A demo's story: what it shows, how it is played on a GPU and scripted without one, and what it must end in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingero.demo.scene import Scene
from ingero.demo.stage import Stage
from ingero.demo.stories.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The story's own number, in words and as it is."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One demo.

    causes: the verdict it must end in, or one of them where a cause with stronger proof may own the same time.
    play: on a GPU, simulated or not. script: the same in a recording of `seconds` made by hand. number: of either;
    scripted_between: what the script's number is, which a real one need not be.
    """

    name: str
    title: str
    shows: str
    causes: tuple[str, ...]
    seconds: float
    play: Callable[[Stage], None]
    script: Callable[[Scene], None]
    number: Callable[[Measured], Number]
    scripted_between: tuple[float, float]
