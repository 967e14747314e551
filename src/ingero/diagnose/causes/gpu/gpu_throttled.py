"""The GPU lowered its clocks, and became slower by just that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu.driver_samples import TOLERANCE, mean_mhz, share_of, slowdown_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.process_gpus import WHICH_GPU, samples_of
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.events import THROTTLE_REASONS
from ingero.units import SECOND_NS

CAUSE = "gpu-throttled"
_LOWERS = 0x004 | 0x008 | 0x020 | 0x040 | 0x080  # power and heat; not what somebody has set
_MOMENT_NS = SECOND_NS // 5  # before a sample: of clocks that are lower for less than a second at a time
MIN_EXPLAINED = 0.5  # of the slowdown, by the clocks: ratios near 1 are equal within any tolerance


def find(case: Case) -> Iterator[Finding]:
    """Seconds with a reason for lower clocks, in which the GPU was slower by the ratio of the clocks."""
    if case.kind is not FindingKind.INCIDENT or not case.can_judge_device or not len(case.sync_intervals):
        return
    now = samples_of(case.evidence, case.process, case.device, [case.window])
    before = samples_of(case.evidence, case.process, case.device, case.all_baselines)
    held = [one for one in now if (one.throttle_reasons or 0) & _LOWERS and one.sm_clock_mhz]
    usual_mhz = mean_mhz([one for one in before if not (one.throttle_reasons or 0) & _LOWERS])
    if not held or not usual_mhz:
        return
    clocks = usual_mhz / mean_mhz(held)
    slowdowns = (slowdown_of(case, held, length_ns) for length_ns in (SECOND_NS, _MOMENT_NS))
    slowdown = next((one for one in slowdowns if one and _is_by_clocks(one, clocks)), None)
    if slowdown is None:
        return
    share = share_of(case, held, ratio=clocks)
    claims = case.take((Part.GPU,), (DEVICE,), share * case.total((Part.GPU,), (DEVICE,)))
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
        summary=f"{case.who} lost {case.amount(lost)} because GPU {gpu} ran at {mean_mhz(held):.0f} instead of "
        f"{usual_mhz:.0f} MHz: {why}",
        claims=claims,
        chain=(
            Link(
                text=f"the driver lowered the clocks of GPU {gpu}: {why}",
                seen_ns=lost,
                structure=f"the GPU was {slowdown:.2f}x slower, its clocks {clocks:.2f}x lower",
                order="in the seconds in which the driver gave that reason",
            ),
        ),
        fixes=(Fix(text="check cooling and the power limit", command=f"nvidia-smi -i {gpu} -q -d PERFORMANCE,POWER"),),
        evidence={"slowdown": round(slowdown, 3), "clock ratio": round(clocks, 3), "reason": why},
    )


def _is_by_clocks(slowdown: float, clocks: float) -> bool:
    """Whether a slowdown is that of the clocks, and not mostly of something else."""
    is_equal = clocks > 1 and abs(slowdown / clocks - 1) <= TOLERANCE
    return is_equal and clocks - 1 >= MIN_EXPLAINED * (slowdown - 1)


RULE = Rule(
    cause=CAUSE,
    title="the GPU lowered its clocks",
    order=62,
    needs=("sync_intervals", "enqueues", "gpu_samples", "GPU"),
    wants=(WHICH_GPU,),
    shows="the driver's reason, the clocks, and a slowdown of the GPU that is equal to their ratio within 15%, "
    "and of which they make at least half",
    limits="sampled once per second; clocks that were set by a user are not throttling",
    find=find,
)
