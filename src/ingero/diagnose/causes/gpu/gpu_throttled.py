"""The GPU lowered its clocks, and became slower by the same ratio."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu.driver_samples import (
    TOLERANCE,
    lost_share_in_samples,
    mean_sm_clock_mhz,
    slowdown_in_samples,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.process_gpus import WHICH_GPU, gpu_samples_of
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.events import THROTTLE_REASONS
from ingero.units import SECOND_NS

CAUSE = "gpu-throttled"
# NVML clocks event reasons for power and heat, without settings of a user
_POWER_OR_HEAT = 0x004 | 0x008 | 0x020 | 0x040 | 0x080
_SHORT_NS = SECOND_NS // 5  # before a sample: for clocks that are lower for less than a second at a time
MIN_EXPLAINED = 0.5  # of the slowdown, by the clocks: ratios near 1 are equal within any tolerance


def explain(case: Case) -> Iterator[Finding]:
    """Seconds with a throttle reason in which the GPU was slower by the ratio of its clocks."""
    if case.kind is not FindingKind.INCIDENT or not case.can_judge_gpu or not len(case.sync_intervals):
        return
    now = gpu_samples_of(case.evidence, case.process, case.device, [case.window])
    before = gpu_samples_of(case.evidence, case.process, case.device, case.all_baseline_windows)
    throttled = [sample for sample in now if (sample.throttle_reasons or 0) & _POWER_OR_HEAT and sample.sm_clock_mhz]
    baseline_mhz = mean_sm_clock_mhz(
        [sample for sample in before if not (sample.throttle_reasons or 0) & _POWER_OR_HEAT]
    )
    if not throttled or not baseline_mhz:
        return
    clock_ratio = baseline_mhz / mean_sm_clock_mhz(throttled)
    slowdowns = (slowdown_in_samples(case, throttled, length_ns) for length_ns in (SECOND_NS, _SHORT_NS))
    slowdown = next((one for one in slowdowns if one and _is_explained_by_clocks(one, clock_ratio)), None)
    if slowdown is None:
        return
    share = lost_share_in_samples(case, throttled, ratio=clock_ratio)
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), share * case.total((Part.GPU,), (GPU_EXECUTION,)))
    if not claims:
        return
    lost = sum(claims.values())
    reasons = Counter(
        name for sample in throttled for bit, name in THROTTLE_REASONS.items() if (sample.throttle_reasons or 0) & bit
    )
    why = reasons.most_common(1)[0][0]
    gpu = throttled[0].gpu_index
    yield Finding(
        cause=CAUSE,
        resource="gpu",
        root=throttled[0].uuid,
        summary=f"{case.who} lost {case.amount(lost)} because GPU {gpu} ran at {mean_sm_clock_mhz(throttled):.0f} "
        "instead of "
        f"{baseline_mhz:.0f} MHz: {why}",
        claims=claims,
        chain=(
            Link(
                text=f"the driver lowered the clocks of GPU {gpu}: {why}",
                seen_ns=lost,
                structure=f"the GPU was {slowdown:.2f}x slower, its clocks {clock_ratio:.2f}x lower",
                order="in the seconds in which the driver gave that reason",
            ),
        ),
        fixes=(Fix(text="check cooling and the power limit", command=f"nvidia-smi -i {gpu} -q -d PERFORMANCE,POWER"),),
        evidence={"slowdown": round(slowdown, 3), "clock ratio": round(clock_ratio, 3), "reason": why},
    )


def _is_explained_by_clocks(slowdown: float, clock_ratio: float) -> bool:
    """Whether a slowdown equals the clock ratio, and is not mostly something else."""
    is_equal = clock_ratio > 1 and abs(slowdown / clock_ratio - 1) <= TOLERANCE
    return is_equal and clock_ratio - 1 >= MIN_EXPLAINED * (slowdown - 1)


RULE = Rule(
    cause=CAUSE,
    title="the GPU lowered its clocks",
    order=62,
    needs=("sync_intervals", "enqueues", "gpu_samples", "GPU"),
    improves_with=(WHICH_GPU,),
    shows="the driver's reason, the clocks, and a slowdown of the GPU that is equal to their ratio within 15%, "
    "and of which they make at least half",
    limits="sampled once per second; clocks that were set by a user are not throttling",
    explain=explain,
)
