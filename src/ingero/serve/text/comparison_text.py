"""The comparison of two recordings, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import Enum

from ingero.diagnose.comparison.change_verdict import Verdict
from ingero.diagnose.comparison.compare import CauseChange, ClassChange, Comparison, OpComparison
from ingero.diagnose.comparison.regression import Regression
from ingero.diagnose.incidents.incident_json import Json, Object
from ingero.serve.text.step_comparison_text import step_lines
from ingero.units import format_count, format_ns, format_percent

VERSION = 1
_TOP = 12
_NAME = 43


def comparison_lines(found: Comparison) -> Iterator[str]:
    """The verdict, then causes, types of steps or sync intervals, and calls."""
    yield _headline(found)
    yield ""
    if found.causes:
        yield f"{'cause':28}{'before':>22}{'after':>22}"
        yield from (_cause(cause) for cause in found.causes)
        yield ""
    if found.is_by_step:
        yield from step_lines(found)
    else:
        yield from _classes(found)
    yield f"{'call':30}{'calls before':>14}{'after':>12}{'p50':>20}{'p99':>20}{'change':>9}{'noise':>8}"
    yield from (_op(op) for op in found.ops[:_TOP])
    left_out = max(0, len(found.classes) - _TOP) + max(0, len(found.ops) - _TOP)
    if left_out:
        yield f"and {left_out} smaller ones (--json lists all)"


def comparison_json(found: Comparison, regression: Regression | None = None) -> Object:
    """Stable keys, ratios as numbers, verdicts as texts. regression: null where no limit was given."""
    judged = _plain(asdict(regression)) if regression else None
    return (
        {"version": VERSION} | {name: _plain(value) for name, value in asdict(found).items()} | {"regression": judged}
    )


def _plain(value: object) -> Json:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    assert value is None or isinstance(value, (str, int, float, bool))
    return value


def _headline(found: Comparison) -> str:
    if found.change_ratio is None and found.is_by_step:
        return "No verdict: no step type with at least three steps in both."
    if found.change_ratio is None or found.noise_ratio is None:
        return "No verdict: the recordings have no step type or sync interval type in common that occurs often enough."
    change = f"{100 * found.change_ratio:+.1f}%"
    return (
        f"{found.verdict.value}: {change} time for the same work (noise {format_percent(found.noise_ratio)}, one sigma)"
    )


def _cause(change: CauseChange) -> str:
    sides = (
        f"{count} ({format_percent(ratio)} lost)" if count else "-"
        for count, ratio in ((change.before, change.before_lost_ratio), (change.after, change.after_lost_ratio))
    )
    before, after = sides
    return f"{change.cause:28}{before:>22}{after:>22}  {change.verdict.value}"


def _classes(found: Comparison) -> Iterator[str]:
    shown = found.classes[:_TOP]
    for noun in dict.fromkeys(one.interval for one in shown):
        heads = f"{'mean before':>12}{'after':>10}{'change':>9}{'noise':>8}{'p99 before':>12}{'after':>10}"
        yield f"{f'{noun}s of':44}{heads}"
        yield from (_class(one) for one in shown if one.interval == noun)
        yield ""


def _class(change: ClassChange) -> str:
    return (
        f"{_short(change.name):44}{_ns(change.before_mean_ns):>12}{_ns(change.after_mean_ns):>10}"
        f"{_ratio(change.change_ratio):>9}{_share(change.noise_ratio):>8}"
        f"{_ns(change.before_p99_ns):>12}{_ns(change.after_p99_ns):>10}  {change.verdict.value}"
    )


def _op(op: OpComparison) -> str:
    p50 = f"{_ns(op.before_p50_ns)} > {_ns(op.after_p50_ns)}"
    p99 = f"{_ns(op.before_p99_ns)} > {_ns(op.after_p99_ns)}"
    verdict = "" if op.verdict is Verdict.UNKNOWN else f"  {op.verdict.value}"
    return (
        f"{op.name:30}{format_count(op.before):>14}{format_count(op.after):>12}{p50:>20}{p99:>20}"
        f"{_ratio(op.change_ratio):>9}{_share(op.noise_ratio):>8}{verdict}"
    )


def _short(name: str) -> str:
    """Shorten a step type's name, keeping both ends: the part it shares with others is first, the difference last."""
    return name if len(name) <= _NAME else f"{name[: _NAME // 2 - 2]}...{name[-_NAME // 2 + 1 :]}"


def _ns(value: float | None) -> str:
    return format_ns(value) if value else "-"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}%"


def _share(value: float | None) -> str:
    return "-" if value is None else format_percent(value)
