"""The loop waits for the device at more places than it did, so that the host cannot run ahead of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from ingero.diagnose.calls import kind_of
from ingero.diagnose.case_search import BOTTLENECK_RATIO
from ingero.diagnose.cases import Case
from ingero.diagnose.excess import DEVICE
from ingero.diagnose.model import CodeLine, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.rule import Rule
from ingero.events import CLOCKS
from ingero.ops import Kind
from ingero.store.records import Window

CAUSE = "hidden-synchronisation"
_WAITS = Kind.DRAIN | Kind.COPY | Kind.FREE
_MORE = 1.3  # calls of a line per launch, against the reference


_MIN_PLACES = 1.8  # waits a step: of one nothing is hidden
_OFTEN = 0.5  # of the waits at the busiest line: a value that is read now and then is no such place
_HOST = 1.0  # of the device's time: a host that needs more would be late without these waits, too
_FIXES = (
    Fix(text="keep the value on the device; read it once in so many steps", command="loss.detach()  # not .item()"),
    Fix(text="copy without waiting, from pinned memory", command="tensor.to('cuda', non_blocking=True)"),
    Fix(text="see every such place", command="torch.cuda.set_sync_debug_mode('warn')"),
)


def find(case: Case) -> Iterator[Finding]:
    """In a stretch with more drains per launch, the time in which the host had to catch up again.

    Against zero the same of a loop that waits at several places in each step, as long as it could keep ahead of the
    device without.
    """
    if case.resynced is None:
        if case.kind is FindingKind.BOTTLENECK and (found := _at_best(case)):
            yield found
        return
    claims = case.take((Part.EMPTY, Part.ENQUEUE), ("run",))
    if case.is_of_steps:  # when the GPU is idle within them is not known: all that it is waited for longer is theirs
        claims |= case.take((Part.DEVICE,), (DEVICE,))
    if not claims:
        return
    lost, times = sum(claims.values()), case.resynced.drains
    lines = _new_lines(case)
    line = next(iter(lines), None)
    where = f", at {' and '.join(str(one) for one in lines[:2])}" if lines else ""
    yield Finding(
        cause=CAUSE,
        resource="synchronisation",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because it waits for the device {times:.1f} times as often for "
        f"the same launches{where}",
        claims=claims,
        line=line,
        chain=(
            Link(
                text=f"the loop drained its stream {times:.1f} times as often per launch",
                seen_ns=lost,
                expected_ns=0,
                structure="after each the GPU is idle until the host has launched again",
                order="the drain returned, then the host ran, then came the next launch",
            ),
        ),
        fixes=_FIXES,
        evidence={"drains per launch against before": round(times, 2), "new places": len(lines)},
    )


def _at_best(case: Case) -> Finding | None:
    """Of a loop that has always waited so often: what the device waits for after all but one of a step's waits."""
    if case.is_of_steps or not case.knows_idle or not len(case.epochs):
        return None
    host_ns = _host_ns(case)
    if host_ns > _HOST * float(case.epochs["x_ns"].sum()):
        return None
    counts = _waits_by_line(case, case.stretches)
    most = max(counts.values(), default=0)
    lines = [line for line, count in counts.most_common() if count >= _OFTEN * most]
    waits = sum(counts[line] for line in lines) / max(most, 1)
    if len(lines) < 2 or waits < _MIN_PLACES:
        return None
    claims = case.take((Part.EMPTY,), ("run",), case.total((Part.EMPTY,), ("run",)) * (1 - 1 / waits))
    lost = sum(claims.values())
    if lost < BOTTLENECK_RATIO * case.wall_ns:
        return None
    places = " and ".join(str(one) for one in lines[:2]) + (f" and {len(lines) - 2} more" if len(lines) > 2 else "")
    return Finding(
        cause=CAUSE,
        resource="synchronisation",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because it waits for the device {waits:.2g} times in each step, "
        f"at {places}: after each the device is idle until the host has launched again",
        claims=claims,
        is_apart=True,
        line=lines[0],
        chain=(
            Link(
                text=f"the loop waits for its stream at {len(lines)} places, as often at each",
                seen_ns=lost,
                expected_ns=0,
                structure="recorded waits by line, and the time in which nothing was enqueued after them",
                order="the sync returned, then the host ran, then came the next launch",
            ),
        ),
        fixes=_FIXES,
        evidence={"waits a step": round(waits, 2), "places": len(lines)},
    )


def _host_ns(case: Case) -> float:
    """What the host computed and launched in these intervals: as long as that is less, it could keep ahead."""
    run = CLOCKS.index("run")
    return float(sum(np.maximum(case.epochs[f"{part}_clock_ns"][:, run], 0).sum() for part in ("empty", "enqueue")))


def _new_lines(case: Case) -> list[CodeLine]:
    """The lines that wait for the device more often than in the reference, most of them first."""
    usual = _waits_by_line(case, case.baselines)
    process = case.process.process
    launches = sum(int(case.evidence.lane_in(one, process)["launches"].sum()) for one in case.baselines)
    scale = float(case.epochs["launches"].sum()) / max(launches, 1)
    grown = {
        line: count - scale * usual[line]
        for line, count in _waits_by_line(case, [case.window]).items()
        if count > _MORE * scale * usual[line]
    }
    return sorted(grown, key=lambda line: -grown[line])


def _waits_by_line(case: Case, windows: Iterable[Window]) -> Counter[CodeLine]:
    """Recorded calls that may wait for the device, by the workload's own line."""
    process = case.process.process
    waits = {(one.totals.source, one.totals.op) for one in case.op_changes if kind_of(one) & _WAITS}
    counts: Counter[CodeLine] = Counter()
    for window in windows:
        times = case.evidence.reader.stack_times(
            window, process=process, sources=tuple({source for source, _ in waits})
        )
        mine = [one for one in times if (one.source, one.op) in waits]
        case.evidence.stacks.read(one.stack_hash for one in mine)
        for one in mine:
            if line := case.evidence.own_line(one.stack_hash):
                counts[line] += one.count
    return counts


RULE = Rule(
    cause=CAUSE,
    title="the loop waits for the device at hidden places",
    order=46,
    needs=("epochs", "op_stats", "launches"),
    shows="drains per launch against a stretch of the same loop with fewer, the time in which the device was empty "
    "after them, and the lines that are new",
    limits="a loop that has waited so often from the first second on is known by waits at several lines of its own, "
    "each as often, where the host needs less time than the device: of one line, or without stacks, nothing is said",
    find=find,
)
