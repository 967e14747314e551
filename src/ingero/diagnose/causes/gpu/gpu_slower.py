"""The GPU took longer for the same work, and nothing that can be seen from the host says why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.machine_pauses import paused
from ingero.diagnose.causes.cpu.steal_time import stolen
from ingero.diagnose.causes.cuda_calls.copy_direction import LINK
from ingero.diagnose.causes.gpu import pcie
from ingero.diagnose.causes.gpu.driver_samples import awaits_samples, since_last_sample_ns
from ingero.diagnose.causes.gpu.growing_work import has_more_to_do
from ingero.diagnose.causes.nccl.busy_peers import device_ns, peers
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.process_gpus import gpu_name
from ingero.diagnose.findings import Bucket, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.events import SyncIntervalFlag
from ingero.units import format_bytes

CAUSE = "gpu-slower"
_STOLEN = 0.2  # of the lost time, by a hypervisor
_USUAL_BYTES_PER_NS = 25.0  # of a link that nothing is known of: generation 4 with 16 streams
_SLOWEST_LINK = 20  # times as slow as it is by its generation and lanes: a sixteenth of the lanes, and errors
_ALONE = 4  # times as much as the sync intervals before and after it
_MOSTLY = 0.5  # of the GPU's lost time; of the sync intervals
_AS_SLOW = 0.5  # of the time lost to the GPU per wall time: a peer that lost as much may be the one that was slower
_POLLED_COPY = int(SyncIntervalFlag.BEFORE_COPY | SyncIntervalFlag.ESTIMATED)


def find(case: Case) -> Iterator[Finding]:
    """What is left of the GPU's time, where the classes repeat themselves well enough and the work did not grow."""
    if case.kind is not FindingKind.INCIDENT or not case.can_judge_device or has_more_to_do(case):
        return
    if case.process.rank is not None and case.evidence.missing(("NCCL", "communicators")):
        return  # a wait for another rank looks the same
    if _is_of_lone_sync_intervals(case) or awaits_samples(case):
        return
    claims = case.take((Part.GPU,), (DEVICE,), _own_ns(case))
    if not claims:
        return
    lost = sum(claims.values())
    usual = sum(one.reference.busy_ns * case.count_of(key) for key, one in case.usual.items())
    seen = usual + lost
    root, name = gpu_name(case.evidence, case.process, case.device)
    if ranks := _ranks_as_slow(case):
        root, name = f"GPUs of {ranks}", f"the GPU of one of {ranks} (they wait for each other in collectives)"
    over_link = _over_the_link(case, lost)
    may_be_link = bool(over_link) or _may_be_the_link(case)
    or_link = f", or the link to it{over_link}," if may_be_link else ""
    yield Finding(
        cause=CAUSE,
        resource="gpu",
        root=root,
        summary=f"{case.who} lost {case.amount(lost)} because {name}{or_link} took {seen / max(usual, 1):.1f}x as "
        "long for the same work, not caused by the host",
        claims=claims,
        chain=(
            Link(
                text="the GPU was ready later after the same launches and bytes",
                seen_ns=int(seen),
                expected_ns=int(usual),
                structure="the wait in the sync ended with the GPU, not with the host",
                order="the launches came as fast as in the baseline",
            ),
        ),
        fixes=(
            Fix(text="check clocks, power and other users of the GPU", command="nvidia-smi -q -d PERFORMANCE,CLOCK"),
            *((LINK,) if may_be_link else ()),
        ),
        evidence={"slowdown": round(seen / max(usual, 1), 3), "bytes per step": int(pcie.copied_bytes(case))},
    )


def _ranks_as_slow(case: Case) -> str:
    """This rank and its peers whose GPUs became slower with its own: which one did, who waits for it, is unknown."""
    mine = device_ns(case) / max(case.around_ns, 1)
    also = [one for one in peers(case) if device_ns(one) >= _AS_SLOW * mine * one.around_ns]
    names = sorted(case.evidence.rank_name(one.process.process) for one in (case, *also))
    return " and ".join(names) if also else ""


def _over_the_link(case: Case, lost_ns: int) -> str:
    """What is copied over it in a step, where a link slower than most could account for the lost time; else ""."""
    size, link = _bytes_within(case), pcie.link_of(case, [case.window])
    rate = link.bytes_per_ns if link and link.bytes_per_ns else _USUAL_BYTES_PER_NS
    if _SLOWEST_LINK * size / rate < lost_ns / max(case.sync_interval_count, 1):
        return ""
    known = f", of {link.text} as before" if link and link == pcie.link_of(case, case.all_baselines) else ""
    return f" ({format_bytes(int(size))} are copied in each step{known})"


def _bytes_within(case: Case) -> float:
    """What is copied in a sync interval, on average, as part of the GPU's time: a copy that slept first is not."""
    flags, sizes = case.sync_intervals["flags"] & _POLLED_COPY, case.sync_intervals["bytes"]
    return float(np.where(flags == int(SyncIntervalFlag.BEFORE_COPY), 0, sizes).mean()) if len(sizes) else 0.0


def _may_be_the_link(case: Case) -> bool:
    """Whether most sync intervals end in a pageable copy that polled: it waited, then copied; nothing parts the two."""
    return float(np.mean((case.sync_intervals["flags"] & _POLLED_COPY) == _POLLED_COPY)) > _MOSTLY


def _own_ns(case: Case) -> float:
    """What can be the GPU's own: an interrupt that comes late looks like a device that does.

    Where much was held up from outside, what every sync interval lost alike; where its driver has said why it lost
    most, not what it lost since.
    """
    clock, late = stolen(case), paused(case)
    held_up = max((one.share for one in (clock, late) if one), default=0.0)
    if held_up >= _STOLEN:
        return clock.alike_ns if clock else 0
    left = case.left.get(Bucket(Part.GPU, DEVICE), 0)
    has_reason = left < _MOSTLY * case.total((Part.GPU,), (DEVICE,))
    return max(0.0, left - since_last_sample_ns(case)) if has_reason else left


def _is_of_lone_sync_intervals(case: Case) -> bool:
    """Whether most was lost in single sync intervals among others as fast as ever: nothing was slower then."""
    if case.is_sampled:
        return False
    lost = np.zeros(len(case.sync_intervals))
    for key, one in case.usual.items():
        mine = case.sync_intervals["step_type"] == key
        lost[mine] = np.maximum(case.sync_intervals["busy_ns"][mine] - one.reference.busy_ns, 0)
    around = np.pad(lost, 1)
    lone = lost[lost > _ALONE * np.maximum(around[:-2], around[2:])]
    return float(lone.sum()) > _MOSTLY * float(lost.sum())


RULE = Rule(
    cause=CAUSE,
    title="the GPU was slower, for a reason not seen from the host",
    order=75,
    needs=("sync_intervals", "enqueues", "thread_state_seconds", "op_stats"),
    wants=("cpu_seconds",),
    shows="the GPU's time for sync intervals of the same step type against the baseline, less what the host can have "
    "caused",
    limits="which kernel became slower is not visible without device-side profiling; equal launches with more work "
    "each look the same where they begin at once; a GPU that slows down gradually looks like growing work, unless its "
    "driver reports why; a slower link looks the same unless its driver reports fewer lanes: where enough is copied "
    "for that, the bytes of a step are named; of a rank nothing is reported where NCCL was not traced: it may wait "
    "for another; of ranks whose GPUs became slower together, which one's did is unknown",
    find=find,
)
