"""Steps of two recordings side by side, and what a profiler measured of their GPUs, as text."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.comparison.compare import Comparison
from ingero.diagnose.profile.step_changes import ProfileChange, StepChange
from ingero.diagnose.profile.words import percent
from ingero.units import format_ns

_MAX_STEPS = 12


def step_lines(found: Comparison) -> Iterator[str]:
    """A row for each type of step, and for each process what share of time its GPU was busy."""
    if found.steps:
        yield f"{'step type':36}{'steps':>10}{'mean':>20}{'change':>8}{'median':>20}{'change':>8}{'noise':>7}"
    for step in found.steps[:_MAX_STEPS]:
        yield from _step(step)
    if found.steps:
        yield ""
    if found.profiles:
        heads = ("GPU busy", "waiting for ranks", "blocked", "data loading")
        yield f"{'process':36}" + "".join(f"{head:>18}" for head in heads) + "  of the time covered"
    yield from (_profile(one) for one in found.profiles[:_MAX_STEPS])
    if found.profiles:
        yield ""


def _step(step: StepChange) -> Iterator[str]:
    name = f"{step.process}: {step.name}"
    steps = f"{step.before} > {step.after}"
    mean, median = (
        _sides(was, now)
        for was, now in (
            (step.before_mean_ns, step.after_mean_ns),
            (step.before_median_ns, step.after_median_ns),
        )
    )
    changes = [_change(step.change_ratio), _change(step.median_change_ratio)]
    noise = "-" if step.noise_ratio is None else percent(step.noise_ratio)
    yield (f"{name:36}{steps:>10}{mean:>20}{changes[0]:>8}{median:>20}{changes[1]:>8}{noise:>7}  {step.verdict.value}")
    if step.before_busy_ns is not None and step.after_busy_ns is not None:
        yield f"{'  GPU busy in it':36}{'':>10}{_sides(step.before_busy_ns, step.after_busy_ns):>20}"
    if step.before_idle_ns is not None and step.after_idle_ns is not None:
        yield f"{'  GPU idle in it':36}{'':>10}{_sides(step.before_idle_ns, step.after_idle_ns):>20}"


def _profile(change: ProfileChange) -> str:
    busy = _shares(change.before_busy_ratio, change.after_busy_ratio)
    blocked = _shares(change.before_blocked_ratio, change.after_blocked_ratio)
    loading = _shares(change.before_data_loading_ratio, change.after_data_loading_ratio)
    ranks = _shares(change.before_collective_wait_ratio, change.after_collective_wait_ratio)
    return f"{change.process:36}{busy:>18}{ranks:>18}{blocked:>18}{loading:>18}"


def _sides(was: float, now: float) -> str:
    return f"{format_ns(was)} > {format_ns(now)}"


def _shares(was: float, now: float) -> str:
    return f"{percent(was)} > {percent(now)}"


def _change(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:+.1f}%"
