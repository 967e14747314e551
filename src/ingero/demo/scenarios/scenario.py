"""A demo's scenario: what it shows, how it runs on a GPU, how it is scripted without one, and its verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingero.demo.scenarios.measured import Measured
from ingero.demo.stage import Stage
from ingero.demo.whole_scene import WholeScene


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The scenario's own number, in words and as it is."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One demo.

    cause: the verdict it must end in, in every mode. play: on a GPU, simulated or not. script: the same in a recording
    of `seconds` made by hand. number: of either; scripted_between: what the script's number is, which a real one need
    not be.
    """

    name: str
    title: str
    shows: str
    cause: str
    seconds: float
    play: Callable[[Stage], None]
    script: Callable[[WholeScene], None]
    number: Callable[[Measured], Number]
    scripted_between: tuple[float, float]
