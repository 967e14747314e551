"""The levels at which less is traced: what each saves, and when the limiter moves between them.

Pure: no clock, no kernel. A load is what the busiest traced thread does, as if everything were traced.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from ingero import given_up
from ingero.attach.groups import Coverage, Coverages, Group
from ingero.capture.budget.trap_cost import TrapCosts
from ingero.units import format_percent


class Level(enum.IntEnum):
    """One thing that is given up, least information per saved trap first."""

    LAUNCHES_AT_DRIVER = 1
    EVENTS_AT_DRIVER = 2
    LAUNCHES_COUNTED = 3
    EVENTS_OFF = 4
    MEMORY_OFF = 5
    LAUNCHES_OFF = 6
    COPIES_OFF = 7


Levels = frozenset[Level]

_COVERAGE: dict[Level, dict[Group, Coverage]] = {
    Level.LAUNCHES_AT_DRIVER: {Group.RUNTIME_LAUNCHES: Coverage.NONE},
    Level.EVENTS_AT_DRIVER: {Group.RUNTIME_EVENTS: Coverage.NONE, Group.DRIVER_EVENTS: Coverage.COUNTED},
    Level.LAUNCHES_COUNTED: {Group.DRIVER_LAUNCHES: Coverage.COUNTED},
    Level.EVENTS_OFF: {Group.RUNTIME_EVENTS: Coverage.NONE, Group.DRIVER_EVENTS: Coverage.NONE},
    Level.MEMORY_OFF: {Group.MEMORY: Coverage.NONE},
    Level.LAUNCHES_OFF: {Group.RUNTIME_LAUNCHES: Coverage.NONE, Group.DRIVER_LAUNCHES: Coverage.NONE},
    Level.COPIES_OFF: {Group.COPIES: Coverage.NONE},
}

CODES: dict[Level, str] = {level: getattr(given_up, level.name).code for level in Level}

# with one of these in force a stream lacks enqueues, or the order between streams: no wait is known to sync it
BLINDING: Levels = frozenset({Level.EVENTS_OFF, Level.LAUNCHES_OFF, Level.COPIES_OFF})

# how cheaply it can be seen how often something happens that is not traced
_TRIALS: dict[Level, Levels] = {
    Level.EVENTS_OFF: frozenset({Level.EVENTS_AT_DRIVER}),
    Level.MEMORY_OFF: frozenset(),
    Level.LAUNCHES_OFF: frozenset({Level.LAUNCHES_AT_DRIVER, Level.LAUNCHES_COUNTED}),
    Level.COPIES_OFF: frozenset(),
}

RUNTIME_OF: dict[Group, Group] = {
    Group.DRIVER_LAUNCHES: Group.RUNTIME_LAUNCHES,
    Group.DRIVER_EVENTS: Group.RUNTIME_EVENTS,
}

MIN_SAVING = 0.05  # of the budget; a level that saves less costs its information for nothing
MIN_SEEN_AT_DRIVER = 0.95  # of the runtime's calls; below, the driver's probes do not see what the runtime's do
AIM = 0.85  # of the budget when a level is climbed: the measure is that of hot caches, and loads grow
RETURN_BELOW = 0.7  # of the budget, predicted for what would be traced again
GROSS = 2.0  # times the budget: climbed at once
OVER_SECONDS, RECENT_SECONDS = 3, 5  # otherwise: this many of the last ones were over
CALM_S = 5.0  # how long a return must have been affordable
RELAPSE_S = 60.0  # climbed again so soon after a return: the next one waits twice as long
MAX_CALM_S = 60.0
TRIAL_S, MAX_TRIAL_S = 30.0, 120.0  # what is not traced may have become rare unnoticed


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Probe hits per second of one thread, as if everything were traced.

    nested_ratio: of each group that holds both layers, how many were inside another traced call.
    """

    hits: Mapping[Group, float]
    nested_ratio: Mapping[Group, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The overhead limit. ratio: of the busiest traced thread's time. can_detach: else probes stay, doing nothing."""

    ratio: float
    costs: TrapCosts
    can_detach: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterState:
    """The levels in force and their history. Times in s of any clock that only goes forward."""

    levels: Levels = frozenset()
    recent: tuple[bool, ...] = ()  # of the last seconds: over the budget?
    calm_since_s: float | None = None
    changed_s: float = 0.0
    returned_s: float | None = None
    was_trial: bool = False  # the return
    calm_s: float = CALM_S
    trial_s: float = TRIAL_S
    reason: str = ""


@cache
def coverages(levels: Levels) -> Coverages:
    """The coverage that levels leave to each group of calls."""
    found = dict.fromkeys(Group, Coverage.FULL)
    for level in levels:
        for group, coverage in _COVERAGE[level].items():
            found[group] = max(found[group], coverage)
    return MappingProxyType(found)


def cost_ratio(load: Load, levels: Levels, budget: Budget) -> float:
    """The share of its time that a thread with this load would spend in traps."""
    left = coverages(levels)
    return sum(_group_ns(load, group, left, budget) for group in Group) / 1e9


def _group_ns(load: Load, group: Group, left: Coverages, budget: Budget) -> float:
    hits, costs = load.hits.get(group, 0.0), budget.costs
    if left[group] is Coverage.NONE:
        return 0.0 if budget.can_detach else hits * costs.suspended_ns
    nested = hits * load.nested_ratio.get(group, 0.0)
    if group in RUNTIME_OF:  # inside the runtime's call, if that is traced
        outer = RUNTIME_OF[group]
        nested = min(hits, load.hits.get(outer, 0.0)) if left[outer] is Coverage.FULL else 0.0
    alone_ns = costs.full_ns if left[group] is Coverage.FULL else costs.counted_ns
    return nested * costs.nested_ns + (hits - nested) * alone_ns


def plan(load: Load, aim_ratio: float, budget: Budget) -> Levels:
    """The levels that bring this load to `aim_ratio`, as few and as low as possible; all that help if none suffice."""
    chosen: Levels = frozenset()
    now = cost_ratio(load, chosen, budget)
    for level in Level:
        if now <= aim_ratio:
            break
        then = cost_ratio(load, chosen | {level}, budget)
        if now - then >= MIN_SAVING * budget.ratio and _is_sound(level, load):
            chosen, now = chosen | {level}, then
    for level in sorted(chosen):  # a higher one may have made a lower one needless
        without = cost_ratio(load, chosen - {level}, budget)
        if without <= max(aim_ratio, now) or coverages(chosen - {level}) == coverages(chosen):
            chosen -= {level}
    return chosen


def _is_sound(level: Level, load: Load) -> bool:
    """Whether the driver's probes see the calls that the runtime's no longer see at this level."""
    if level not in (Level.LAUNCHES_AT_DRIVER, Level.EVENTS_AT_DRIVER):
        return True
    driver = Group.DRIVER_LAUNCHES if level is Level.LAUNCHES_AT_DRIVER else Group.DRIVER_EVENTS
    return load.hits.get(driver, 0.0) >= MIN_SEEN_AT_DRIVER * load.hits.get(RUNTIME_OF[driver], 0.0)


def max_cost_ratio(state: LimiterState, budget: Budget) -> float:
    """The cost ratio of a second above which more is given up at once; during a trial, the budget itself."""
    is_trial = state.was_trial and state.returned_s is not None and not state.recent
    return budget.ratio if is_trial else GROSS * budget.ratio


def is_over_budget(state: LimiterState, hits: int, budget: Budget) -> bool:
    """Whether one thread's `hits` since the last reading already cost so much that more must be given up."""
    costs = budget.costs
    least_ns = min(costs.full_ns, costs.nested_ns, costs.counted_ns, costs.suspended_ns)
    return hits * least_ns / 1e9 > max_cost_ratio(state, budget)


def decide(before: LimiterState, load: Load, measured_ratio: float, now_s: float, budget: Budget) -> LimiterState:
    """The state after a second that cost `measured_ratio`."""
    after = replace(before, recent=(*before.recent, measured_ratio > budget.ratio)[-RECENT_SECONDS:])
    if measured_ratio > max_cost_ratio(before, budget) or sum(after.recent) >= OVER_SECONDS:
        return _give_up_more(after, load, measured_ratio, now_s, budget)
    new_levels = plan(load, RETURN_BELOW * budget.ratio, budget)
    if not is_looser(new_levels, before.levels):
        after = replace(after, calm_since_s=None)
        return _start_trial(after, load, now_s)
    calm_since_s = now_s if after.calm_since_s is None else after.calm_since_s
    if now_s - calm_since_s < after.calm_s:
        return replace(after, calm_since_s=calm_since_s)
    predicted = cost_ratio(load, new_levels, budget)
    reason = f"the load has fallen: {format_percent(predicted)} of the thread's time expected"
    return _restore(after, new_levels, now_s, reason)


def is_looser(levels: Levels, other: Levels) -> bool:
    """Whether `levels` trace something that `other` does not, and nothing less."""
    mine, theirs = coverages(levels), coverages(other)
    return mine != theirs and all(mine[group] <= theirs[group] for group in Group)


def _give_up_more(
    before: LimiterState, load: Load, measured_ratio: float, now_s: float, budget: Budget
) -> LimiterState:
    new_levels = plan(load, AIM * budget.ratio, budget) | before.levels
    new_levels = _without_implied(new_levels)
    if coverages(new_levels) == coverages(before.levels):  # costs more than was predicted
        new_levels = _next_level(before.levels, load, budget)
    if coverages(new_levels) == coverages(before.levels):
        return replace(before, calm_since_s=None)
    has_relapsed = before.returned_s is not None and now_s - before.returned_s < RELAPSE_S
    has_failed = has_relapsed and before.was_trial
    return replace(
        before,
        levels=new_levels,
        recent=(),
        calm_since_s=None,
        changed_s=now_s,
        returned_s=None,
        calm_s=(before.calm_s if has_failed else min(MAX_CALM_S, 2 * before.calm_s)) if has_relapsed else CALM_S,
        trial_s=min(MAX_TRIAL_S, 2 * before.trial_s) if has_failed else TRIAL_S,
        reason=f"tracing took {format_percent(measured_ratio)} of a thread's time, "
        f"allowed are {format_percent(budget.ratio)}",
    )


def _next_level(levels: Levels, load: Load, budget: Budget) -> Levels:
    """The next level that saves anything."""
    now = cost_ratio(load, levels, budget)
    for level in Level:
        if level not in levels and _is_sound(level, load) and cost_ratio(load, levels | {level}, budget) < now:
            return _without_implied(levels | {level})
    return levels


def _without_implied(levels: Levels) -> Levels:
    """The levels without those that others imply."""
    for level in sorted(levels):
        if coverages(levels - {level}) == coverages(levels):
            levels -= {level}
    return levels


def _start_trial(before: LimiterState, load: Load, now_s: float) -> LimiterState:
    """Starts a trial now and then: the rate of calls that are not traced is not known."""
    blind = before.levels & _TRIALS.keys()
    if not blind or now_s - before.changed_s < before.trial_s:
        return before
    cheap = frozenset[Level]().union(*(_TRIALS[level] for level in blind))
    new_levels = (before.levels - blind) | {level for level in cheap if _is_sound(level, load)}
    return replace(_restore(before, new_levels, now_s, "to see whether the load has fallen"), was_trial=True)


def _restore(before: LimiterState, new_levels: Levels, now_s: float, reason: str) -> LimiterState:
    return replace(
        before,
        levels=new_levels,
        recent=(),
        calm_since_s=None,
        changed_s=now_s,
        returned_s=now_s,
        was_trial=False,
        reason=reason,
    )
