"""A demo's scenario: what it shows, how it runs on a GPU, how it is scripted without one, and its verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingero.demo.scenarios.measured import Measured
from ingero.demo.stage import LiveRun
from ingero.demo.whole_scene import FullScriptedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The figure that a scenario reports, as a value and as text."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One demo.

    cause: the verdict it must end in, in every mode. play: runs it on a real or simulated GPU. script: writes it as a
    scripted recording of `seconds`. number: measures it in either; scripted_between: bounds of the number of the
    script, which a real run need not meet.
    """

    name: str
    title: str
    shows: str
    cause: str
    seconds: float
    play: Callable[[LiveRun], None]
    script: Callable[[FullScriptedRun], None]
    number: Callable[[Measured], Number]
    scripted_between: tuple[float, float]
