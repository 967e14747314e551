"""Another process had work on the same GPU, and the GPU was slower at that time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu.driver_samples import (
    MAX_SAMPLE_DISTANCE_NS,
    MIN_SAMPLES,
    lost_before_sample_ns,
    lost_share_in_samples,
    mean_sm_clock_mhz,
    slowdown_in_samples,
)
from ingero.diagnose.causes.gpu.gpu_overlap import overlap_ns, within_others_span
from ingero.diagnose.causes.gpu_memory.memory_in_use import gpu_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.process_gpus import WHICH_GPU, gpu_name, gpu_ordinal_of, gpu_samples_of, same_gpu
from ingero.diagnose.findings import Bucket, Culprit, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.incidents.blind_spots import was_traced
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.foreign_text import shell_word
from ingero.program import command
from ingero.store.machine import GpuUse
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS, format_percent

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "gpu-contention"
MIN_SYNC_INTERVALS = 10  # each with and without the other's work
MIN_SLOWER = 1.10  # times the baseline, with the other's work
MOST_SLOWER_ALONE = 1.05  # times the baseline, without it
_MIN_SHARE_OF_LOST_TIME = 0.6  # of the time that the GPU took longer
_CLOCK_TOLERANCE = 0.05  # of the baseline's SM clock: within it, clocks are unchanged
_MAX_SHARE_SLOWER_ALONE = 0.25  # of the slowdown; a sample's second includes some time before the other came
_MIN_OVERLAP_RATIO = 0.10  # of a sync interval's GPU time, before the other counts as present
_MAX_ALONE_RATIO = 0.01  # of a sync interval's GPU time, for the other to count as absent
_MIN_HARM_RATIO = 0.5  # of the harm per time of presence; less at another time, and the other is not the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    """What another process's work on the GPU did to the sync intervals of a case.

    slower, slower_alone: GPU time against the baseline, with and without the other. share: of the GPU time in the
    shared sync intervals, the part of this process.
    max_lost_ns: how long the other had work while this process was slower.
    """

    other: Process
    sync_intervals: int
    slower: float
    slower_alone: float
    share: float
    busy_ns: int
    max_lost_ns: float


def explain(case: Case) -> Iterator[Finding]:
    """Sync intervals that took the GPU longer with another process's work on it than without."""
    if case.kind is not FindingKind.INCIDENT:
        return
    if not was_traced(case, ("enqueues",)) or not (case.is_of_steps or case.knows_idle):
        yield from _from_driver_samples(case)
        return
    if not case.can_judge_gpu:
        return
    for sharing in sorted(_sharings(case), key=lambda sharing: -sharing.max_lost_ns):
        claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), sharing.max_lost_ns)
        if sum(claims.values()):
            yield _finding(case, sharing, claims)
    yield from _from_untraced_process(case)


def _sharings(case: Case) -> Iterator[_Sharing]:
    """Other processes on the GPU, as far as it was slower only with them."""
    own_number = case.process.process
    gpu_stream, ratios = case.evidence.gpu_streams[own_number], _busy_ratios(case)
    inside = (gpu_stream["sync_end_ns"] > case.window.begin_ns) & (gpu_stream["sync_end_ns"] < case.window.end_ns)
    for number, other_stream in case.evidence.gpu_streams.items():
        other = case.evidence.processes.get(number)
        if (
            other is None
            or number == own_number
            or inside[within_others_span(gpu_stream, other_stream)].sum() < MIN_SYNC_INTERVALS
        ):
            continue
        devices = [(process, gpu_ordinal_of(case.evidence, process)) for process in (own_number, number)]
        if not same_gpu(case.evidence, devices[0], devices[1]):  # nor where it is unknown
            continue
        sharing = _sharing(gpu_stream, other, other_stream, ratios, inside)
        if sharing and sharing.slower >= MIN_SLOWER and sharing.slower_alone <= MOST_SLOWER_ALONE:
            yield sharing


def _sharing(gpu_stream: Array, other: Process, other_stream: Array, ratios: Array, inside: Array) -> _Sharing | None:
    """One other process; None with too few sync intervals with or without it, or if it did no more harm than before."""
    overlap = np.zeros(len(gpu_stream), np.int64)
    in_span = within_others_span(gpu_stream, other_stream)
    overlap[in_span] = overlap_ns(gpu_stream[in_span], other_stream)
    shared = (overlap >= _MIN_OVERLAP_RATIO * gpu_stream["busy_ns"]) & (ratios > 0)
    alone = (overlap <= _MAX_ALONE_RATIO * gpu_stream["busy_ns"]) & (ratios > 0)
    now, before = shared & inside, shared & ~inside
    if (alone & inside).sum() >= MIN_SYNC_INTERVALS:
        alone &= inside
    if min(now.sum(), alone.sum()) < MIN_SYNC_INTERVALS:
        return None
    excess = np.minimum(gpu_stream["busy_ns"] * (1 - 1 / np.maximum(ratios, 1)), overlap)
    harm = excess[now].sum() / overlap[now].sum()
    if before.sum() >= MIN_SYNC_INTERVALS and excess[before].sum() < _MIN_HARM_RATIO * harm * overlap[before].sum():
        return None
    return _Sharing(
        other=other,
        sync_intervals=int(now.sum()),
        slower=float(ratios[now].mean()),
        slower_alone=float(np.median(ratios[alone])),
        share=float(1 - excess[now].sum() / max(gpu_stream["busy_ns"][now].sum(), 1)),
        busy_ns=int(overlap[now].sum()),
        max_lost_ns=float(excess[now].sum()),
    )


def _busy_ratios(case: Case) -> Array:
    """GPU busy time of each sync interval against its step type's baseline; 0 without one."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    ratios = np.zeros(len(gpu_stream))
    for step_type, best in case.references.items():
        if best.reference.can_judge_gpu and best.reference.busy_ns > 0:
            of_type = gpu_stream["step_type"] == step_type
            ratios[of_type] = gpu_stream["busy_ns"][of_type] / best.reference.busy_ns
    return ratios


def _finding(case: Case, sharing: _Sharing, claims: dict[Bucket, int]) -> Finding:
    lost = sum(claims.values())
    other = sharing.other
    job = case.evidence.job_of(other.pid, other.cgroup_id)
    name = f"{other.name} [{other.pid}]" + (f" of {job}" if job else "")
    root, device = gpu_name(case.evidence, case.process, max(gpu_ordinal_of(case.evidence, case.process.process), 0))
    gpu = gpu_of(case.evidence, case.process) or "<gpu>"
    container = case.evidence.container_of(other.cgroup_id)
    return Finding(
        cause=CAUSE,
        resource="gpu",
        root=root,
        summary=f"{case.who} lost {case.amount(lost)} sharing {device} with {name}: while both had work queued, it "
        f"got {format_percent(sharing.share)} of the GPU's time, and its own work took {sharing.slower:.1f}x as long",
        claims=claims,
        culprits=(Culprit(pid=other.pid, name=other.name, lost_ns=lost, container=container, job=job),),
        chain=(
            Link(
                text=f"{name} had work on the same GPU",
                seen_ns=sharing.busy_ns,
                expected_ns=0,
                structure=f"{sharing.sync_intervals} sync intervals with its work took {sharing.slower:.2f}x "
                f"the baseline, those without {sharing.slower_alone:.2f}x",
                order="its work was queued before this process's was done",
            ),
        ),
        fixes=(
            Fix(
                text="move one of them to another GPU", command=f"CUDA_VISIBLE_DEVICES=<other> # of {shell_word(name)}"
            ),
            Fix(text="or divide the GPU", command=f"sudo nvidia-smi -i {gpu} -mig 1"),
            Fix(
                text="or let both run side by side with a limit",
                command="nvidia-cuda-mps-control -d; CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50",
            ),
        ),
        evidence={
            "share of the GPU (ratio)": round(sharing.share, 3),
            "slowdown": round(sharing.slower, 3),
            "other's pid": other.pid,
        },
    )


def _from_untraced_process(case: Case) -> Iterator[Finding]:
    """An untraced process that appeared on the GPU when it became slower, at unchanged clocks."""
    now, before = (
        gpu_samples_of(case.evidence, case.process, case.device, windows)
        for windows in ([case.window], case.all_baseline_windows)
    )
    others = _others_kernel_use(
        case, now, before, excluded_pids={process.pid for process in case.evidence.processes.values()}
    )
    new_pids = _new_pids(case, now, before)
    if others:
        samples_with_others = [sample for sample in now if any(other.is_in(sample) for other in others)]
    else:
        samples_with_others = [sample for sample in now if new_pids & _pids_on_gpu(sample)]
    slowdown, slowdown_alone = (
        slowdown_in_samples(case, samples_with_others),
        slowdown_in_samples(case, _samples_alone(now, samples_with_others)) or 1.0,
    )
    if (
        len(samples_with_others) < MIN_SAMPLES
        or slowdown is None
        or slowdown * _clock_ratio(samples_with_others, before) < MIN_SLOWER
    ):
        return
    if not others and _clock_ratio(samples_with_others, before) < 1 - _CLOCK_TOLERANCE:
        return
    if slowdown_alone - 1 > _MAX_SHARE_SLOWER_ALONE * (slowdown - 1):
        return
    share = lost_share_in_samples(case, samples_with_others, ratio=slowdown)
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), share * case.total((Part.GPU,), (GPU_EXECUTION,)))
    if claims and others:
        yield _kernel_use_finding(case, others, samples_with_others, before, claims, slowdown)
    elif claims:
        yield _untraced_finding(case, sorted(new_pids), samples_with_others, slowdown, claims)


def _samples_alone(samples: Sequence[GpuUse], with_others: Sequence[GpuUse]) -> list[GpuUse]:
    """The samples of seconds without the others. Who has ended is no longer listed at the end of its last second."""
    last_seconds = [Window(begin_ns=one.time_ns, end_ns=one.time_ns + MAX_SAMPLE_DISTANCE_NS) for one in with_others]
    alone = (one for one in samples if one not in with_others)
    return [one for one in alone if not any(last.begin_ns < one.time_ns <= last.end_ns for last in last_seconds)]


def _clock_ratio(now: Sequence[GpuUse], before: Sequence[GpuUse]) -> float:
    """SM clocks against those of the baseline, at most 1; 1 where unknown."""
    baseline = mean_sm_clock_mhz(before)
    return min((mean_sm_clock_mhz(now) or baseline) / baseline, 1.0) if baseline else 1.0


def _from_driver_samples(case: Case) -> Iterator[Finding]:
    """Waits for the GPU that became longer, as far as the driver saw kernels of other processes run meanwhile.

    Where launches are not traced, the amount of work is unknown: the result is an upper bound.
    """
    now, before = (
        gpu_samples_of(case.evidence, case.process, case.device, windows)
        for windows in ([case.window], case.all_baseline_windows)
    )
    others = _others_kernel_use(case, now, before, excluded_pids=(case.process.pid,))
    if not others:
        return
    max_lost_ns = 0.0
    for sample in now:
        others_ratio = sum(max(other.growth_in(sample), 0.0) for other in others)
        max_lost_ns += min(lost_before_sample_ns(case, sample), others_ratio * SECOND_NS)
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), max_lost_ns)
    if claims:
        yield _kernel_use_finding(case, others, now, before, claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelUse:
    """Share of time in which the driver saw kernels of a process run: while time was lost, and in the baseline."""

    pid: int
    ratio: float
    baseline_ratio: float

    @property
    def growth(self) -> float:
        return self.ratio - self.baseline_ratio

    def is_in(self, sample: GpuUse) -> bool:
        """Whether it used the GPU more than in the baseline in the second of a sample."""
        return self.growth_in(sample) >= _MIN_OVERLAP_RATIO

    def growth_in(self, sample: GpuUse) -> float:
        return sample.sm_percents.get(self.pid, 0) / 100 - self.baseline_ratio


def _others_kernel_use(
    case: Case, now: Sequence[GpuUse], before: Sequence[GpuUse], excluded_pids: Collection[int]
) -> list[_KernelUse]:
    """Processes, without those in `but`, that used the GPU more while time was lost than in the baseline; most first.

    Empty where the driver does not report use per process.
    """
    if min(sum(bool(sample.sm_percents) for sample in samples) for samples in (now, before)) < MIN_SAMPLES:
        return []
    lost = [(sample, lost_before_sample_ns(case, sample)) for sample in now]
    total_lost_ns = max(sum(ns for _, ns in lost), 1)
    uses = [
        _KernelUse(
            pid=pid,
            ratio=sum(ns * sample.sm_percents.get(pid, 0) for sample, ns in lost) / total_lost_ns / 100,
            baseline_ratio=sum(sample.sm_percents.get(pid, 0) for sample in before) / len(before) / 100,
        )
        for pid in sorted({pid for sample in now for pid in sample.sm_percents} - set(excluded_pids))
    ]
    return sorted((work for work in uses if work.growth >= _MIN_OVERLAP_RATIO), key=lambda work: -work.growth)


def _new_pids(case: Case, now: Sequence[GpuUse], before: Sequence[GpuUse]) -> set[int]:
    """Processes on the GPU while most of the time was lost, but never in the baseline."""
    if not before:
        return set()
    known = {process.pid for process in case.evidence.processes.values()}.union(*map(_pids_on_gpu, before))
    new = set[int]().union(*map(_pids_on_gpu, now)) - known
    return {
        pid
        for pid in new
        if lost_share_in_samples(case, [sample for sample in now if pid in _pids_on_gpu(sample)])
        >= _MIN_SHARE_OF_LOST_TIME
    }


def _pids_on_gpu(sample: GpuUse) -> set[int]:
    return {pid for pid, _ in sample.processes}


def _kernel_use_finding(
    case: Case,
    others: Sequence[_KernelUse],
    now: Sequence[GpuUse],
    before: Sequence[GpuUse],
    claims: dict[Bucket, int],
    slowdown: float | None = None,
) -> Finding:
    """A finding about other processes' kernels.

    slowdown: of the GPU for the same work; None where it is unknown, so that the lost time is an upper bound.
    """
    lost, gpu = sum(claims.values()), now[0].gpu_index
    clocks_text = (
        f", at clocks {format_percent(1 - _clock_ratio(now, before))} lower"
        if _clock_ratio(now, before) < 1 - _CLOCK_TOLERANCE
        else ""
    )
    who, names = _process_names(case, [other.pid for other in others])
    ratio, baseline_ratio = sum(other.ratio for other in others), sum(other.baseline_ratio for other in others)
    total_growth = sum(other.growth for other in others)
    if slowdown is None:
        what = f"lost up to {case.amount(lost)} waiting for GPU {gpu} while"
        order = "waits for the GPU became longer in those seconds, at most as much as the others' kernels ran is theirs"
    else:
        what = f"lost {case.amount(lost)} because GPU {gpu} took {slowdown:.1f}x as long for the same work while"
        order = f"the GPU was slower in the seconds in which they ran, and not in the others{clocks_text}"
    return Finding(
        cause=CAUSE,
        resource="gpu",
        root=now[0].uuid,
        summary=f"{case.who} {what} kernels of {who} ran there {format_percent(ratio)} of that time "
        f"(baseline {format_percent(baseline_ratio)})",
        claims=claims,
        culprits=tuple(
            Culprit(pid=pid, name=name or "", lost_ns=int(lost * other.growth / total_growth))
            for (pid, name), other in zip(names, others, strict=True)
        ),
        chain=(
            Link(
                text=f"kernels of {who} ran on the same GPU",
                seen_ns=sum(sample.sm_percents.get(pid, 0) for sample in now for pid, _ in names) * SECOND_NS // 100,
                expected_ns=int(baseline_ratio * len(now) * SECOND_NS),
                structure="NVML's per-process utilization, sampled once per second",
                order=order,
            ),
        ),
        fixes=_separation_fixes(case, who, [other.pid for other in others], gpu),
        evidence={
            "others' kernels ran (ratio)": round(ratio, 3),
            "baseline (ratio)": round(baseline_ratio, 3),
            "slowdown": None if slowdown is None else round(slowdown, 3),
            "other's pid": others[0].pid,
        },
    )


def _process_names(case: Case, pids: Sequence[int]) -> tuple[str, list[tuple[int, str | None]]]:
    names_of_cpu_users = {user.pid: user.name for user in case.cpu_users}
    names = [(pid, case.evidence.name_of_pid(pid) or names_of_cpu_users.get(pid)) for pid in pids]
    return ", ".join(f"{name} [{pid}]" if name else f"pid {pid}" for pid, name in names), names


def _separation_fixes(case: Case, who: str, pids: Iterable[int], gpu: int) -> tuple[Fix, ...]:
    return (
        Fix(
            text="trace both processes, to measure the share of each",
            command=command("trace", "--pid", ",".join(map(str, (case.process.pid, *sorted(pids)))), as_root=True),
        ),
        Fix(text="move one of them to another GPU", command=f"CUDA_VISIBLE_DEVICES=<other> # of {shell_word(who)}"),
        Fix(text="or divide the GPU", command=f"sudo nvidia-smi -i {gpu} -mig 1"),
    )


def _untraced_finding(
    case: Case, new_pids: Sequence[int], samples: Sequence[GpuUse], slowdown: float, claims: dict[Bucket, int]
) -> Finding:
    lost, gpu = sum(claims.values()), samples[0].gpu_index
    who, names = _process_names(case, new_pids)
    return Finding(
        cause=CAUSE,
        resource="gpu",
        root=samples[0].uuid,
        summary=f"{case.who} lost {case.amount(lost)} while {who}, which is not traced, was on GPU {gpu}: the GPU "
        f"took {slowdown:.1f}x as long for the same work, at the same clocks",
        claims=claims,
        culprits=tuple(Culprit(pid=pid, name=name or "", lost_ns=lost // len(names)) for pid, name in names),
        chain=(
            Link(
                text=f"{who} appeared on the same GPU",
                seen_ns=lost,
                structure=f"the driver's list of processes, in {len(samples)} samples of this time and in none before",
                order="the GPU became slower when it came; how much it worked there was not traced",
            ),
        ),
        fixes=_separation_fixes(case, who, new_pids, gpu)[:-1],
        evidence={"slowdown": round(slowdown, 3), "samples": len(samples), "other's pid": new_pids[0]},
    )


RULE = Rule(
    cause=CAUSE,
    title="another process worked on the same GPU",
    order=72,
    needs=("sync_intervals",),
    improves_with=("enqueues", "gpu_samples", "GPU", WHICH_GPU),
    shows="the GPU's time for sync intervals of the same step type with and without another traced process's work on "
    "it, and which share each of them got; the driver's list of processes proves that it is the same GPU, or neither "
    "can reach another one",
    limits="that an untraced process came is known from the driver's list of processes only; two processes that "
    "started in the same second and never ran alone have no baseline; nothing is reported for a process whose GPU is "
    "unknown; where launches are not traced, what others took is an upper bound: the time in which the driver saw "
    "their kernels run, which it does not report for MIG slices",
    explain=explain,
)
