"""The definition of a labeled run: a workload, its disturbances and their schedule, and the right answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from bench.incidents.price import Price
from ingero.demo.faults.model import Recipe

Sched = Literal["block", "spin", "yield"]
Workload = Literal["train", "ddp", "serve", "infer"]
INJECTED = "<injected>"  # a culprit's name: the processes that the disturbance started
NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A Python function: the end of its file's path, and its name."""

    file: str
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The right answer for one incident.

    causes: any of them is right; `why` says why there are several. culprits: any of these names must head the list
    (INJECTED: one of the disturbing processes); empty: not asked. facts: values that the incident's evidence must have.
    is_event: true at any dose, because it needs no lost time. blind: why it may stay unsaid, or "".
    """

    causes: frozenset[str]
    why: str = ""
    culprits: tuple[str, ...] = ()
    place: Place | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    is_event: bool = False
    blind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of disturbance.

    recipe: makes it for a dose (the share of wall time that is to be lost, 0-1) and a way of waiting. expected: the
    right answer, None where nothing is lost. arguments: of the workload, with and without the disturbance. knobs: host
    knobs that stand for the whole run, for a dose. drifts: it can be applied again and again in growing doses.
    ends_workload: the workload fails of it, as without memory; another that fails spoils its run.
    """

    recipe: Callable[[float, Sched], Recipe]
    expected: Expected | None
    workload: Workload = "train"
    arguments: tuple[str, ...] = ()
    knobs: Callable[[float], Mapping[str, float]] = lambda _dose: NOTHING
    allowed: frozenset[str] = frozenset()
    drifts: bool = False
    ends_workload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """A kind by its name (plan/kinds.py), in a dose."""

    kind: str
    dose: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Seconds before, with and after the disturbance; `on_s` and `off_s` in turn where it comes and goes.

    drifts: the dose grows in steps to its full size. is_from_start: it is there before the recording begins.
    """

    before_s: float = 5.0
    with_s: float = 6.0
    after_s: float = 2.0
    on_s: float = 0.0
    off_s: float = 0.0
    drifts: bool = False
    is_from_start: bool = False

    @property
    def total_s(self) -> float:
        """Length of the recording."""
        return self.before_s + self.with_s + self.after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One labeled run.

    expected: the incidents there must be; empty: silence. allowed: further causes that would be true, too. hidden: what
    would be true if the disturbance cost anything, where the plan says that it does not. cpus: the workload is kept
    there. traffic: arguments of serve_load, for the workload "serve". program: of those that do not wait for their main
    stream once a step (plan/programs.py), "" for the others. own: bottlenecks that the program has by itself.
    """

    name: str
    group: str
    workload: Workload = "train"
    arguments: tuple[str, ...] = ()
    sched: Sched = "block"
    disturbances: tuple[Disturbance, ...] = ()
    schedule: Schedule = Schedule()
    expected: tuple[Expected, ...] = ()
    allowed: frozenset[str] = frozenset()
    hidden: tuple[Expected, ...] = ()
    cpus: frozenset[int] = frozenset()
    traffic: tuple[str, ...] = ()
    program: str = ""
    own: frozenset[str] = frozenset()
    is_cold: bool = False  # recorded from the workload's first call on
    is_control: bool = False  # the same without its disturbances
    is_fast: bool = False  # belongs to the subset of `make test`

    @property
    def dose(self) -> float:
        """The share of wall time that is to be lost."""
        return max((one.dose for one in self.disturbances), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A scenario with a seed, and where its files go."""

    scenario: Scenario
    seed: int
    price: Price = Price.MEASURED

    @property
    def key(self) -> str:
        """The name of the run in the results."""
        return f"{self.scenario.name}.s{self.seed}" + (f"@{self.price.value}" if self.price.value else "")

    def folder(self, keep: Path) -> Path:
        """The folder of its recording."""
        return keep / self.key
