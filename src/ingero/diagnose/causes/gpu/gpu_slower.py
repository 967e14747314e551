"""The GPU took longer for the same work, for no reason that can be seen from the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.machine_pauses import find_machine_pauses
from ingero.diagnose.causes.cpu.steal_time import measure_steal_time
from ingero.diagnose.causes.cuda_calls.copy_direction import LINK_FIX
from ingero.diagnose.causes.gpu import pcie
from ingero.diagnose.causes.gpu.driver_samples import awaits_samples, lost_since_last_sample_ns
from ingero.diagnose.causes.gpu.growing_work import has_growing_work
from ingero.diagnose.causes.nccl.busy_peers import gpu_wait_ns, peers
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.nvml_utilization import utilization_of
from ingero.diagnose.evidence.process_gpus import gpu_name
from ingero.diagnose.findings import Bucket, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.events import SyncIntervalFlag
from ingero.units import format_bytes

CAUSE = "gpu-slower"
_MIN_HELD_UP_SHARE = 0.2  # of the lost time, by a hypervisor
_DEFAULT_LINK_BYTES_PER_NS = 25.0  # for an unknown link: generation 4 with 16 lanes
_MAX_LINK_SLOWDOWN = 20  # times slower than its generation and lanes allow: a sixteenth of the lanes, and link errors
_MIN_TIMES_NEIGHBORS = 4  # times the lost time of the sync intervals before and after
_MIN_SHARE = 0.5  # of the GPU's lost time, and of the sync intervals
_MIN_PEER_RATIO = 0.5  # of this rank's GPU time lost per wall time: a peer that lost as much may be the slower one
_MIN_SEEN_AT_WORK = 0.75  # of the lost time; the first of three samples may lie before it
_POLLED_COPY = int(SyncIntervalFlag.BEFORE_COPY | SyncIntervalFlag.ESTIMATED)


def explain(case: Case) -> Iterator[Finding]:
    """Unclaimed GPU time, where steps repeat well enough and the work did not grow."""
    if case.kind is not FindingKind.INCIDENT or not case.can_judge_gpu or has_growing_work(case):
        return
    if case.process.rank is not None and case.evidence.why_unavailable(("NCCL", "communicators")):
        return  # a wait for another rank looks the same
    if _is_in_single_intervals(case) or awaits_samples(case):
        return
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), _own_ns(case))
    if not claims:
        return
    lost = sum(claims.values())
    over_link = _link_text(case, lost)
    may_be_link = bool(over_link) or _may_be_slow_link(case)
    if not may_be_link and _was_idle_instead(case, lost):
        return
    baseline_ns = sum(best.reference.busy_ns * case.count_of(step_type) for step_type, best in case.references.items())
    busy_ns = baseline_ns + lost
    root, name = gpu_name(case.evidence, case.process, case.device)
    if ranks := _ranks_as_slow(case):
        root, name = f"GPUs of {ranks}", f"the GPU of one of {ranks} (they wait for each other in collectives)"
    or_link = f", or the link to it{over_link}," if may_be_link else ""
    yield Finding(
        cause=CAUSE,
        resource="gpu",
        root=root,
        summary=f"{case.who} lost {case.amount(lost)} because {name}{or_link} took "
        f"{busy_ns / max(baseline_ns, 1):.1f}x as "
        "long for the same work, not caused by the host",
        claims=claims,
        chain=(
            Link(
                text="the GPU was ready later after the same launches and bytes",
                seen_ns=int(busy_ns),
                expected_ns=int(baseline_ns),
                structure="the wait in the sync ended with the GPU, not with the host",
                order="the launches came as fast as in the baseline",
            ),
        ),
        fixes=(
            Fix(text="check clocks, power and other users of the GPU", command="nvidia-smi -q -d PERFORMANCE,CLOCK"),
            *((LINK_FIX,) if may_be_link else ()),
        ),
        evidence={"slowdown": round(busy_ns / max(baseline_ns, 1), 3), "bytes per step": int(pcie.copied_bytes(case))},
    )


def _ranks_as_slow(case: Case) -> str:
    """This rank and peers whose GPUs became slower together: which one did, and which wait for it, is unknown."""
    wait_ratio = gpu_wait_ns(case) / max(case.surrounding_wall_ns, 1)
    slow_peers = [
        peer for peer in peers(case) if gpu_wait_ns(peer) >= _MIN_PEER_RATIO * wait_ratio * peer.surrounding_wall_ns
    ]
    names = sorted(case.evidence.rank_name(rank.process.process) for rank in (case, *slow_peers))
    return " and ".join(names) if slow_peers else ""


def _link_text(case: Case, lost_ns: int) -> str:
    """Bytes copied per step, where a link slower than usual could explain the lost time; else ""."""
    size, link = _bytes_in_busy_time(case), pcie.link_of(case, [case.window])
    rate = link.bytes_per_ns if link and link.bytes_per_ns else _DEFAULT_LINK_BYTES_PER_NS
    if _MAX_LINK_SLOWDOWN * size / rate < lost_ns / max(case.sync_interval_count, 1):
        return ""
    known = f", of {link.text} as before" if link and link == pcie.link_of(case, case.all_baseline_windows) else ""
    return f" ({format_bytes(int(size))} are copied in each step{known})"


def _bytes_in_busy_time(case: Case) -> float:
    """Mean bytes per sync interval copied within GPU busy time: without copies that slept first."""
    flags, sizes = case.sync_intervals["flags"] & _POLLED_COPY, case.sync_intervals["bytes"]
    return float(np.where(flags == int(SyncIntervalFlag.BEFORE_COPY), 0, sizes).mean()) if len(sizes) else 0.0


def _may_be_slow_link(case: Case) -> bool:
    """Whether most sync intervals end in a pageable copy that polled, which does not tell waiting from copying."""
    return float(np.mean((case.sync_intervals["flags"] & _POLLED_COPY) == _POLLED_COPY)) > _MIN_SHARE


def _own_ns(case: Case) -> float:
    """Unclaimed GPU time that the GPU itself may have lost: a late interrupt looks like a slow GPU.

    Where the host was held up, only what every sync interval lost alike; where the driver gave a reason for most of it,
    not what was lost since its last sample.
    """
    steal, pauses = measure_steal_time(case), find_machine_pauses(case)
    held_up_share = max((source.share for source in (steal, pauses) if source), default=0.0)
    if held_up_share >= _MIN_HELD_UP_SHARE:
        return steal.uniform_gpu_excess_ns if steal else 0
    left_ns = case.unclaimed.get(Bucket(Part.GPU, GPU_EXECUTION), 0)
    has_reason = left_ns < _MIN_SHARE * case.total((Part.GPU,), (GPU_EXECUTION,))
    return max(0.0, left_ns - lost_since_last_sample_ns(case)) if has_reason else left_ns


def _was_idle_instead(case: Case, lost_ns: int) -> bool:
    """Whether by NVML the GPU did not work longer on the same steps: then it was idle for longer than is known.

    Calls that wait for the whole GPU, such as cudaFree, let it run dry, and nothing else tells in steps by repetition.
    NVML counts no kernel during a copy: this says nothing where a slower link may be the reason.
    """
    now, before = (
        utilization_of(case.evidence, case.process, case.device, windows)
        for windows in ((case.window,), case.all_baseline_windows)
    )
    if not now or not before:
        return False
    more_ns = (now.share + now.noise) * case.wall_ns - (before.share - before.noise) * (case.wall_ns - case.lost_ns)
    return more_ns < _MIN_SEEN_AT_WORK * lost_ns


def _is_in_single_intervals(case: Case) -> bool:
    """Whether most time was lost in single sync intervals among others of baseline length: no slower GPU."""
    if case.is_sampled:
        return False
    lost = np.zeros(len(case.sync_intervals))
    for step_type, best in case.references.items():
        of_type = case.sync_intervals["step_type"] == step_type
        lost[of_type] = np.maximum(case.sync_intervals["busy_ns"][of_type] - best.reference.busy_ns, 0)
    neighbors = np.pad(lost, 1)
    lone = lost[lost > _MIN_TIMES_NEIGHBORS * np.maximum(neighbors[:-2], neighbors[2:])]
    return float(lone.sum()) > _MIN_SHARE * float(lost.sum())


RULE = Rule(
    cause=CAUSE,
    title="the GPU was slower, for a reason not seen from the host",
    order=75,
    needs=("sync_intervals", "enqueues", "thread_state_seconds", "op_stats"),
    improves_with=("cpu_seconds",),
    shows="the GPU's time for sync intervals of the same step type against the baseline, less what the host can have "
    "caused; where no slower link may be the reason, NVML must have seen the GPU at work for longer, too",
    limits="which kernel became slower is not visible without device-side profiling; equal launches with more work "
    "each look the same where they begin at once; a GPU that slows down gradually looks like growing work, unless its "
    "driver reports why; a slower link looks the same unless its driver reports fewer lanes: where enough is copied "
    "for that, the bytes of a step are named; of a rank nothing is reported where NCCL was not traced: it may wait "
    "for another; of ranks whose GPUs became slower together, which one's did is unknown",
    explain=explain,
)
