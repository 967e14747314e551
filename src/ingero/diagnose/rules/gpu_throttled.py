"""The GPU lowered its clocks, and became slower by just that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases import Case
from ingero.diagnose.devices import SECOND_NS, samples_of
from ingero.diagnose.excess import DEVICE
from ingero.diagnose.model import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.rule import Rule
from ingero.events import THROTTLE_REASONS
from ingero.store.machine import GpuUse

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "gpu-throttled"
TOLERANCE = 0.15  # between the slowdown and the ratio of the clocks
_LOWERS = 0x004 | 0x008 | 0x020 | 0x040 | 0x080  # power and heat; not what somebody has set


def find(case: Case) -> Iterator[Finding]:
    """Seconds with a reason for lower clocks, in which the device was slower by the ratio of the clocks."""
    if case.kind is not FindingKind.INCIDENT or not case.can_judge_device or not len(case.epochs):
        return
    device = int(case.epochs["device"][0])
    now = samples_of(case.evidence, case.process, device, [case.window])
    before = samples_of(case.evidence, case.process, device, case.baselines)
    held = [one for one in now if (one.throttle_reasons or 0) & _LOWERS and one.sm_clock_mhz]
    usual_mhz = _mhz([one for one in before if not (one.throttle_reasons or 0) & _LOWERS])
    if not held or not usual_mhz:
        return
    slowdown = _slowdown(case, held)
    clocks = usual_mhz / _mhz(held)
    if slowdown is None or abs(slowdown / clocks - 1) > TOLERANCE:
        return
    claims = case.take((Part.DEVICE,), (DEVICE,), _share(case, held) * case.total((Part.DEVICE,), (DEVICE,)))
    if not claims:
        return
    lost = sum(claims.values())
    told = Counter(name for one in held for bit, name in THROTTLE_REASONS.items() if (one.throttle_reasons or 0) & bit)
    why = told.most_common(1)[0][0]
    gpu = held[0].gpu_index
    yield Finding(
        cause=CAUSE,
        resource="gpu",
        root=held[0].uuid,
        summary=f"{case.who} lost {case.amount(lost)} because GPU {gpu} ran at {_mhz(held):.0f} instead of "
        f"{usual_mhz:.0f} MHz: {why}",
        claims=claims,
        chain=(
            Link(
                text=f"the driver lowered the clocks of GPU {gpu}: {why}",
                seen_ns=lost,
                structure=f"the device was {slowdown:.2f} times slower, its clocks {clocks:.2f} times lower",
                order="in the seconds in which the driver gave that reason",
            ),
        ),
        fixes=(
            Fix(text="look at cooling and at the power limit", command=f"nvidia-smi -i {gpu} -q -d PERFORMANCE,POWER"),
        ),
        evidence={"slowdown": round(slowdown, 3), "clock ratio": round(clocks, 3), "reason": why},
    )


def _mhz(samples: Sequence[GpuUse]) -> float:
    clocks = [one.sm_clock_mhz for one in samples if one.sm_clock_mhz]
    return sum(clocks) / len(clocks) if clocks else 0.0


def _share(case: Case, held: Sequence[GpuUse]) -> float:
    """Of what the device took beyond the reference, that of the epochs in these seconds."""
    beyond = np.zeros(len(case.epochs))
    for key, one in case.usual.items():
        mine = case.epochs["class_key"] == key
        beyond[mine] = np.maximum(case.epochs["x_ns"][mine] - one.reference.x_ns, 0)
    return float(beyond[_inside(case, held)].sum() / max(beyond.sum(), 1))


def _inside(case: Case, held: Sequence[GpuUse]) -> Array:
    """The epochs in these seconds; one longer than a second is in all that it touches."""
    begins, ends = case.epochs["a_ns"], case.epochs["b_ns"]
    inside = np.zeros(len(ends), bool)
    for one in held:
        inside |= (ends > one.time_ns - SECOND_NS) & (begins < one.time_ns)
    return inside


def _slowdown(case: Case, held: Sequence[GpuUse]) -> float | None:
    """Device time against the reference, of the epochs in these seconds."""
    inside = _inside(case, held)
    keys = case.epochs["class_key"][inside]
    usual = sum(one.reference.x_ns * int((keys == key).sum()) for key, one in case.usual.items())
    known = inside & np.isin(case.epochs["class_key"], list(case.usual))
    return float(case.epochs["x_ns"][known].sum()) / usual if usual else None


RULE = Rule(
    cause=CAUSE,
    title="the GPU lowered its clocks",
    order=62,
    needs=("epochs", "gpu_samples", "GPU"),
    shows="the driver's reason, the clocks, and a slowdown of the device that is equal to their ratio within 15 %",
    limits="sampled once a second; clocks that somebody has set are no throttling",
    find=find,
)
