"""Compares what was found in one run with the right answer.

Fixed before the scored run. Doses of 5% and more must be named, below 3 % silence is right, in between both are: 3%
is what two untraced runs of a loop on a busy machine differ by (docs/adr/0027-attributing-lost-time.md), 5% is where
the project promises an answer. A dose is what the pair measured, not what was set.
"""

from __future__ import annotations

import ast
import enum
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bench.incidents.findings import Found
from bench.incidents.price import Price
from bench.incidents.recording import Label
from bench.incidents.scenario import INJECTED, Expected, Place, Scenario
from bench.incidents.truth import Truth
from ingero.diagnose.findings import UNEXPLAINED
from ingero.units import SECOND_NS

MUST_BE_NAMED = 0.05
MUST_BE_QUIET = 0.03
_OF_THE_HOST = frozenset({"cpu-contention", "noisy-neighbor", "block-io", "major-page-faults", "network-retransmit"})
_WORKLOADS = "ingero.demo.workloads"


class Verdict(enum.Enum):
    """The verdict on one expected incident."""

    RIGHT = "right"
    WRONG = "wrong"
    ABSTAINED = "abstained"
    QUIET = "quiet"  # nothing was named, and nothing had to be
    EARLY = "early"  # true, but so little was lost that silence had been right
    UNSEEN = "not evaluated"  # nothing was named, and what it takes was not traced


UNSCORED = frozenset({Verdict.QUIET, Verdict.EARLY, Verdict.UNSEEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The judgement of one expected incident of a run; None: not asked, or not known."""

    cause: str
    verdict: Verdict
    culprit_right: bool | None = None
    line_right: bool | None = None
    loss_error: float | None = None
    delay_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judgement of one run. incidents: number of causes named for the workload. wrong: those that are not true.

    live_false: causes reported live where silence was right; None: not so here, or not recorded.
    live_wrong: false causes reported live where a report was right; None: not so here, or not recorded.
    located: for each named cause except events, whether its Where names a line of Python; None: not recorded.
    """

    parts: tuple[Part, ...]
    incidents: int
    wrong: tuple[str, ...]
    unexplained: int
    dose: float | None
    live_false: tuple[str, ...] | None = None
    live_wrong: tuple[str, ...] | None = None
    located: tuple[bool, ...] | None = None

    @property
    def is_right(self) -> bool:
        """Whether nothing is to be said against it."""
        good = {Verdict.RIGHT, *UNSCORED}
        if not self.parts and self.unexplained:
            return False
        return not self.wrong and all(part.verdict in good for part in self.parts)


def judge(
    scenario: Scenario, label: Label, truth: Truth | None, found: Iterable[Found], price: Price = Price.MEASURED
) -> Judgement:
    """Compares the expected incidents with those found. price: decides which causes could not be seen."""
    about = [one for one in found if not _is_ambient(one, label)]
    named = [one for one in about if one.is_named]
    expected = (*scenario.expected, *_surfaced(scenario, truth))
    true = (scenario.allowed | scenario.own).union(*(answer.causes for answer in expected))
    wrong = tuple(one.cause for one in named if one.cause not in true)
    counted = [one for one in named if _is_expected(one, scenario) or not _is_beside(one, scenario)]
    false_live = tuple(sorted(_false_live_causes(true, label)))
    return Judgement(
        parts=tuple(_seen(_part(one, scenario, label, truth, named, wrong), one, price) for one in scenario.expected),
        incidents=len(counted),
        wrong=wrong,
        unexplained=sum(not one.is_named for one in about),
        dose=truth.dose if truth else None,
        live_false=None if scenario.expected else false_live,
        live_wrong=tuple(cause for cause in false_live if cause != UNEXPLAINED) if scenario.expected else None,
        located=tuple(one.is_located for one in named if one.kind != "event"),
    )


def _surfaced(scenario: Scenario, truth: Truth | None) -> tuple[Expected, ...]:
    """The incidents that the plan expected to be hidden, where the pair of runs shows that they cost time."""
    return scenario.hidden if truth is not None and truth.dose >= MUST_BE_QUIET else ()


def _false_live_causes(true: frozenset[str], label: Label) -> set[str]:
    """The false causes reported live, except those of other programs on a busy host."""
    false_live = {cause for _, cause in label.live} - true
    if label.stolen_s:
        false_live.discard("cpu-steal")
    return false_live - _OF_THE_HOST if label.is_disturbed else false_live


def _is_expected(found: Found, scenario: Scenario) -> bool:
    return any(found.cause in one.causes for one in scenario.expected)


def _is_beside(found: Found, scenario: Scenario) -> bool:
    """Whether an incident is not due to the disturbance: an event, or a bottleneck of the program itself."""
    return found.kind == "event" or (found.kind == "bottleneck" and found.cause in scenario.own)


def _is_ambient(found: Found, label: Label) -> bool:
    """Whether others on a busy machine did it: true, but not about this run."""
    if found.cause == "cpu-steal":  # no scenario does it; more cannot be lost by it than was stolen
        return found.lost_ns <= label.stolen_s * SECOND_NS
    if not label.is_disturbed:
        return False
    if found.cause in _OF_THE_HOST:
        pids = [pid for pid, _ in found.culprits]
        return bool(pids) and pids[0] not in label.own_pids and not set(pids) & set(label.culprits)
    return found.evidence.get("worker was") == "runnable" and not label.culprits


def _part(
    expected: Expected,
    scenario: Scenario,
    label: Label,
    truth: Truth | None,
    named: list[Found],
    wrong: tuple[str, ...],
) -> Part:
    cause = "|".join(sorted(expected.causes))
    mine = [one for one in named if one.cause in expected.causes and _has_facts(one, expected)]
    if not mine:
        return Part(cause=cause, verdict=_without(expected, scenario, truth, named, wrong))
    lead = max(mine, key=lambda one: one.lost_ns)
    return Part(
        cause=cause,
        verdict=Verdict.WRONG if wrong else _named_in_time(expected, truth),
        culprit_right=_culprit_right(expected, lead, label),
        line_right=_line_right(expected.place, lead),
        loss_error=_loss_error(truth, mine) if len(scenario.expected) == 1 and not expected.is_event else None,
        delay_s=_delay_s(expected, label, truth),
    )


def _seen(part: Part, expected: Expected, price: Price) -> Part:
    """The part as UNSEEN where its cause could not be seen and the diagnosis abstained."""
    is_unseen = part.verdict is Verdict.ABSTAINED and price.is_out_of_sight(expected.causes)
    return replace(part, verdict=Verdict.UNSEEN) if is_unseen else part


def _named_in_time(expected: Expected, truth: Truth | None) -> Verdict:
    """The verdict on an expected incident that was found."""
    is_little = truth is not None and truth.dose < MUST_BE_QUIET
    return Verdict.EARLY if is_little and not expected.is_event else Verdict.RIGHT


def _without(
    expected: Expected, scenario: Scenario, truth: Truth | None, named: list[Found], wrong: tuple[str, ...]
) -> Verdict:
    """The verdict on an expected incident that was not found."""
    if wrong or any(one.cause in expected.causes for one in named):  # or its facts are others
        return Verdict.WRONG
    dose = truth.dose if truth else scenario.dose
    if expected.is_event or (dose >= MUST_BE_NAMED and not expected.blind):
        return Verdict.ABSTAINED
    return Verdict.QUIET


def _has_facts(found: Found, expected: Expected) -> bool:
    return all(found.evidence.get(name) == value for name, value in expected.facts.items())


def _culprit_right(expected: Expected, found: Found, label: Label) -> bool | None:
    if not expected.culprits:
        return None
    if not found.culprits:
        return False
    pid, name = found.culprits[0]
    return (pid in label.culprits if INJECTED in expected.culprits else False) or name in expected.culprits


def _line_right(place: Place | None, found: Found) -> bool | None:
    """Whether the line lies in the function; None where none is expected or no line was given."""
    if place is None or not found.file:
        return None
    first, last = lines_of(place)
    is_inside = not found.line or first <= found.line <= last
    name = found.function.rpartition(".")[2]  # from Python 3.11 on it comes with its class
    return found.file.endswith(place.file) and name == place.function and is_inside


@cache
def lines_of(place: Place) -> tuple[int, int]:
    """First and last line of a function of the workloads.

    Raises:
        LookupError: there is no such function; the plan is out of date.
    """
    found = importlib.util.find_spec(_WORKLOADS)
    assert found is not None
    assert found.submodule_search_locations is not None
    for path in Path(found.submodule_search_locations[0]).rglob(place.file):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == place.function:
                return node.lineno, node.end_lineno or node.lineno
    raise LookupError(f"{place.function}() is not in {place.file}")


def _loss_error(truth: Truth | None, mine: list[Found]) -> float | None:
    if truth is None or truth.dose < MUST_BE_NAMED:
        return None
    return sum(one.lost_ns for one in mine) / truth.lost_ns - 1


def _delay_s(expected: Expected, label: Label, truth: Truth | None) -> float | None:
    """Until the first live finding with the right cause, from when 5% of the time were lost."""
    first = min((at for at, cause in label.live if cause in expected.causes), default=None)
    if first is None or truth is None or truth.noticeable_ns is None:
        return None
    return (first - truth.noticeable_ns) / 1e9
