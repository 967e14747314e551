"""Another process had work on the same GPU, and the GPU was slower just then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu.driver_samples import MIN_SAMPLES, beyond_ns, mean_mhz, share_of, slowdown_of
from ingero.diagnose.causes.gpu.gpu_overlap import overlap_ns, while_there
from ingero.diagnose.causes.gpu_memory.memory_in_use import gpu_of
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.process_gpus import WHICH_GPU, device_of, gpu_name, same_gpu, samples_of
from ingero.diagnose.findings import Bucket, Culprit, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.incidents.blind_spots import was_traced
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.foreign_text import shell_word
from ingero.program import command
from ingero.store.machine import GpuUse
from ingero.store.records import Process
from ingero.units import SECOND_NS, format_percent

Array = np.ndarray[Any, np.dtype[Any]]

CAUSE = "gpu-contention"
MIN_SYNC_INTERVALS = 10  # with and without the other's work
MIN_SLOWER = 1.10
MOST_SLOWER_ALONE = 1.05
_MOSTLY = 0.6  # of what the GPU took longer
_SAME_CLOCKS = 0.05
_SLOWER_ALONE = 0.25  # of what the GPU was slower by; a sample's second holds some of the time before it came
_AT_WORK = 0.10  # of the GPU's time of a sync interval, before the other counts as there
_NOT_THERE = 0.01
_AS_HARMFUL = 0.5  # per time it was there; less at another time, and it is not the reason now


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    """What another process's work on the GPU did to the sync intervals of a case.

    slower, slower_alone: the GPU's time against the usual, with and without the other. share: of the GPU's time
    in the shared sync intervals that was this process's own. most_ns: how long the other had work while this one was
    slower.
    """

    other: Process
    sync_intervals: int
    slower: float
    slower_alone: float
    share: float
    busy_ns: int
    most_ns: float


def find(case: Case) -> Iterator[Finding]:
    """Sync intervals with another process's work on the GPU took the GPU longer than those without."""
    if case.kind is not FindingKind.INCIDENT:
        return
    if not was_traced(case, ("enqueues",)) or not (case.is_of_steps or case.knows_idle):
        yield from _by_the_driver(case)
        return
    if not case.can_judge_device:
        return
    for sharing in sorted(_sharings(case), key=lambda one: -one.most_ns):
        claims = case.take((Part.GPU,), (DEVICE,), sharing.most_ns)
        if sum(claims.values()):
            yield _finding(case, sharing, claims)
    yield from _untraced(case)


def _sharings(case: Case) -> Iterator[_Sharing]:
    """The other processes on the GPU, as far as it was slower only with them."""
    mine = case.process.process
    gpu_stream, ratios = case.evidence.gpu_streams[mine], _ratios(case)
    inside = (gpu_stream["sync_end_ns"] > case.window.begin_ns) & (gpu_stream["sync_end_ns"] < case.window.end_ns)
    for number, theirs in case.evidence.gpu_streams.items():
        other = case.evidence.processes.get(number)
        if other is None or number == mine or inside[while_there(gpu_stream, theirs)].sum() < MIN_SYNC_INTERVALS:
            continue
        devices = [(one, device_of(case.evidence, one)) for one in (mine, number)]
        if not same_gpu(case.evidence, devices[0], devices[1]):  # nor where that is not known
            continue
        sharing = _sharing(gpu_stream, other, theirs, ratios, inside)
        if sharing and sharing.slower >= MIN_SLOWER and sharing.slower_alone <= MOST_SLOWER_ALONE:
            yield sharing


def _sharing(gpu_stream: Array, other: Process, theirs: Array, ratios: Array, inside: Array) -> _Sharing | None:
    """None where too few sync intervals are with or without the other, or it was as busy before and did no harm."""
    overlap = np.zeros(len(gpu_stream), np.int64)
    there = while_there(gpu_stream, theirs)
    overlap[there] = overlap_ns(gpu_stream[there], theirs)
    shared = (overlap >= _AT_WORK * gpu_stream["busy_ns"]) & (ratios > 0)
    alone = (overlap <= _NOT_THERE * gpu_stream["busy_ns"]) & (ratios > 0)
    now, before = shared & inside, shared & ~inside
    if (alone & inside).sum() >= MIN_SYNC_INTERVALS:
        alone &= inside
    if min(now.sum(), alone.sum()) < MIN_SYNC_INTERVALS:
        return None
    excess = np.minimum(gpu_stream["busy_ns"] * (1 - 1 / np.maximum(ratios, 1)), overlap)
    harm = excess[now].sum() / overlap[now].sum()
    if before.sum() >= MIN_SYNC_INTERVALS and excess[before].sum() < _AS_HARMFUL * harm * overlap[before].sum():
        return None
    return _Sharing(
        other=other,
        sync_intervals=int(now.sum()),
        slower=float(ratios[now].mean()),
        slower_alone=float(np.median(ratios[alone])),
        share=float(1 - excess[now].sum() / max(gpu_stream["busy_ns"][now].sum(), 1)),
        busy_ns=int(overlap[now].sum()),
        most_ns=float(excess[now].sum()),
    )


def _ratios(case: Case) -> Array:
    """The GPU's time of each sync interval against the usual of its class; 0 where the class has none."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    ratios = np.zeros(len(gpu_stream))
    for key, one in case.usual.items():
        if one.reference.can_judge_device and one.reference.busy_ns > 0:
            mine = gpu_stream["step_type"] == key
            ratios[mine] = gpu_stream["busy_ns"][mine] / one.reference.busy_ns
    return ratios


def _finding(case: Case, sharing: _Sharing, claims: dict[Bucket, int]) -> Finding:
    lost = sum(claims.values())
    other = sharing.other
    job = case.evidence.job_of(other.pid, other.cgroup_id)
    name = f"{other.name} [{other.pid}]" + (f" of {job}" if job else "")
    root, device = gpu_name(case.evidence, case.process, max(device_of(case.evidence, case.process.process), 0))
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


def _untraced(case: Case) -> Iterator[Finding]:
    """A process that is not traced came to the GPU when it became slower, and its clocks stayed."""
    now, before = (
        samples_of(case.evidence, case.process, case.device, one) for one in ([case.window], case.all_baselines)
    )
    others = _others_work(case, now, before, but={one.pid for one in case.evidence.processes.values()})
    strangers = _came(case, now, before)
    if others:
        there = [one for one in now if any(other.is_in(one) for other in others)]
    else:
        there = [one for one in now if strangers & _on(one)]
    slowdown, alone = slowdown_of(case, there), slowdown_of(case, [one for one in now if one not in there]) or 1.0
    if len(there) < MIN_SAMPLES or slowdown is None or slowdown * _clocks(there, before) < MIN_SLOWER:
        return
    if not others and _clocks(there, before) < 1 - _SAME_CLOCKS:
        return
    if alone - 1 > _SLOWER_ALONE * (slowdown - 1):
        return
    share = share_of(case, there, ratio=slowdown)
    claims = case.take((Part.GPU,), (DEVICE,), share * case.total((Part.GPU,), (DEVICE,)))
    if claims and others:
        yield _finding_by_work(case, others, there, before, claims, slowdown)
    elif claims:
        yield _untraced_finding(case, sorted(strangers), there, slowdown, claims)


def _clocks(now: Sequence[GpuUse], before: Sequence[GpuUse]) -> float:
    """Of the multiprocessors against the usual ones, where they are lower; 1 where that is not known."""
    usual = mean_mhz(before)
    return min((mean_mhz(now) or usual) / usual, 1.0) if usual else 1.0


def _by_the_driver(case: Case) -> Iterator[Finding]:
    """Waits for the GPU that became longer, as far as its driver saw kernels of others run meanwhile.

    How much there was to do is not known where launches are not traced: it is the most that is theirs.
    """
    now, before = (
        samples_of(case.evidence, case.process, case.device, one) for one in ([case.window], case.all_baselines)
    )
    others = _others_work(case, now, before, but=(case.process.pid,))
    if not others:
        return
    most_ns = 0.0
    for one in now:
        theirs = sum(max(other.more_in(one), 0.0) for other in others)
        most_ns += min(beyond_ns(case, one), theirs * SECOND_NS)
    claims = case.take((Part.GPU,), (DEVICE,), most_ns)
    if claims:
        yield _finding_by_work(case, others, now, before, claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """How long the driver saw kernels of a process run, of the time: in the seconds that lost, and usually."""

    pid: int
    ratio: float
    usual_ratio: float

    @property
    def more(self) -> float:
        return self.ratio - self.usual_ratio

    def is_in(self, sample: GpuUse) -> bool:
        """Whether it was at work in the second of a sample, more than usual."""
        return self.more_in(sample) >= _AT_WORK

    def more_in(self, sample: GpuUse) -> float:
        return sample.sm_percents.get(self.pid, 0) / 100 - self.usual_ratio


def _others_work(case: Case, now: Sequence[GpuUse], before: Sequence[GpuUse], but: Collection[int]) -> list[_Work]:
    """Of the processes on the GPU, but these, that were at work there while it lost time, and usually less; most first.

    None where the driver does not tell them apart.
    """
    if min(sum(bool(one.sm_percents) for one in samples) for samples in (now, before)) < MIN_SAMPLES:
        return []
    lost = [(one, beyond_ns(case, one)) for one in now]
    whole = max(sum(ns for _, ns in lost), 1)
    found = [
        _Work(
            pid=pid,
            ratio=sum(ns * one.sm_percents.get(pid, 0) for one, ns in lost) / whole / 100,
            usual_ratio=sum(one.sm_percents.get(pid, 0) for one in before) / len(before) / 100,
        )
        for pid in sorted({pid for one in now for pid in one.sm_percents} - set(but))
    ]
    return sorted((one for one in found if one.more >= _AT_WORK), key=lambda one: -one.more)


def _came(case: Case, now: Sequence[GpuUse], before: Sequence[GpuUse]) -> set[int]:
    """Processes on the GPU while most of the lost time came about, and at no time of the reference."""
    if not before:
        return set()
    known = {one.pid for one in case.evidence.processes.values()}.union(*map(_on, before))
    new = set[int]().union(*map(_on, now)) - known
    return {pid for pid in new if share_of(case, [one for one in now if pid in _on(one)]) >= _MOSTLY}


def _on(sample: GpuUse) -> set[int]:
    return {pid for pid, _ in sample.processes}


def _finding_by_work(
    case: Case,
    others: Sequence[_Work],
    now: Sequence[GpuUse],
    before: Sequence[GpuUse],
    claims: dict[Bucket, int],
    slowdown: float | None = None,
) -> Finding:
    """slowdown: of the GPU for the same work; None where that is not known, and the lost time is a bound."""
    lost, gpu = sum(claims.values()), now[0].gpu_index
    clocks = (
        f", at clocks {format_percent(1 - _clocks(now, before))} lower"
        if _clocks(now, before) < 1 - _SAME_CLOCKS
        else ""
    )
    who, names = _named(case, [one.pid for one in others])
    ratio, usual_ratio = sum(one.ratio for one in others), sum(one.usual_ratio for one in others)
    more = sum(one.more for one in others)
    if slowdown is None:
        what = f"lost up to {case.amount(lost)} waiting for GPU {gpu} while"
        order = "waits for the GPU became longer in those seconds, at most as much as the others' kernels ran is theirs"
    else:
        what = f"lost {case.amount(lost)} because GPU {gpu} took {slowdown:.1f}x as long for the same work while"
        order = f"the GPU was slower in the seconds in which they ran, and not in the others{clocks}"
    return Finding(
        cause=CAUSE,
        resource="gpu",
        root=now[0].uuid,
        summary=f"{case.who} {what} kernels of {who} ran there {format_percent(ratio)} of that time "
        f"(baseline {format_percent(usual_ratio)})",
        claims=claims,
        culprits=tuple(
            Culprit(pid=pid, name=name or "", lost_ns=int(lost * one.more / more))
            for (pid, name), one in zip(names, others, strict=True)
        ),
        chain=(
            Link(
                text=f"kernels of {who} ran on the same GPU",
                seen_ns=sum(one.sm_percents.get(pid, 0) for one in now for pid, _ in names) * SECOND_NS // 100,
                expected_ns=int(usual_ratio * len(now) * SECOND_NS),
                structure="NVML's per-process utilization, sampled once per second",
                order=order,
            ),
        ),
        fixes=_to_part(case, who, [one.pid for one in others], gpu),
        evidence={
            "others' kernels ran (ratio)": round(ratio, 3),
            "baseline (ratio)": round(usual_ratio, 3),
            "slowdown": None if slowdown is None else round(slowdown, 3),
            "other's pid": others[0].pid,
        },
    )


def _named(case: Case, pids: Sequence[int]) -> tuple[str, list[tuple[int, str | None]]]:
    cpu_users = {one.pid: one.name for one in case.cpu_users}
    names = [(pid, case.evidence.name_of_pid(pid) or cpu_users.get(pid)) for pid in pids]
    return ", ".join(f"{name} [{pid}]" if name else f"pid {pid}" for pid, name in names), names


def _to_part(case: Case, who: str, pids: Iterable[int], gpu: int) -> tuple[Fix, ...]:
    return (
        Fix(
            text="trace both processes, to measure the share of each",
            command=command("trace", "--pid", ",".join(map(str, (case.process.pid, *sorted(pids)))), as_root=True),
        ),
        Fix(text="move one of them to another GPU", command=f"CUDA_VISIBLE_DEVICES=<other> # of {shell_word(who)}"),
        Fix(text="or divide the GPU", command=f"sudo nvidia-smi -i {gpu} -mig 1"),
    )


def _untraced_finding(
    case: Case, strangers: Sequence[int], there: Sequence[GpuUse], slowdown: float, claims: dict[Bucket, int]
) -> Finding:
    lost, gpu = sum(claims.values()), there[0].gpu_index
    who, names = _named(case, strangers)
    return Finding(
        cause=CAUSE,
        resource="gpu",
        root=there[0].uuid,
        summary=f"{case.who} lost {case.amount(lost)} while {who}, which is not traced, was on GPU {gpu}: the GPU "
        f"took {slowdown:.1f}x as long for the same work, at the same clocks",
        claims=claims,
        culprits=tuple(Culprit(pid=pid, name=name or "", lost_ns=lost // len(names)) for pid, name in names),
        chain=(
            Link(
                text=f"{who} appeared on the same GPU",
                seen_ns=lost,
                structure=f"the driver's list of processes, in {len(there)} samples of this time and in none before",
                order="the GPU became slower when it came; how much it worked there was not traced",
            ),
        ),
        fixes=_to_part(case, who, strangers, gpu)[:-1],
        evidence={"slowdown": round(slowdown, 3), "samples": len(there), "other's pid": strangers[0]},
    )


RULE = Rule(
    cause=CAUSE,
    title="another process worked on the same GPU",
    order=72,
    needs=("sync_intervals",),
    wants=("enqueues", "gpu_samples", "GPU", WHICH_GPU),
    shows="the GPU's time for sync intervals of the same step type with and without another traced process's work on "
    "it, and which share each of them got; the driver's list of processes proves that it is the same GPU, or neither "
    "can reach another one",
    limits="that an untraced process came is known from the driver's list of processes only; two processes that "
    "started in the same second and never ran alone have no baseline; nothing is reported for a process whose GPU is "
    "unknown; where launches are not traced, what others took is an upper bound: the time in which the driver saw "
    "their kernels run, which it does not report for MIG slices",
    find=find,
)
