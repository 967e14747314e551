"""The report on one profiled process: its steps, pace, GPU busy and idle time, and what it waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.profile.blocked import GpuWaits, find_waits
from ingero.diagnose.profile.collectives import Collective, collectives, wait_ns_by_process
from ingero.diagnose.profile.idle import HOST, INPUT, OWNERS, IdleGaps, find_idle_gaps
from ingero.diagnose.profile.intervals import Intervals, united
from ingero.diagnose.profile.pacing import MIN_ACTIVITIES, Pacing, pacing
from ingero.diagnose.profile.places import HostPlace, WaitPlace, host_places, wait_places, waits_before_gaps
from ingero.diagnose.profile.recording import ProfiledProcess, read_profile
from ingero.diagnose.profile.steps import Marks, StepUse, marks_of, steps_of, typical_intervals
from ingero.store.call_stacks import StackBook
from ingero.store.reader import Reader
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

COPIES = "copies and fills"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleShare:
    """GPU idle time of one owner. long_ns: the part of it in gaps of a millisecond and more."""

    owner: str
    idle_ns: int
    long_ns: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """One kernel, or all copies and fills: how often it ran and for how long in total."""

    name: str
    count: int
    busy_ns: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """The report on one process.

    wall_ns: from the first activity of its main GPU to the last. judged_ns: the part of it in typical steps, or all of
    it where these are too few; idle, gaps, places and copy_only_ratio are of this time.
    busy_ratio: any stream of the main GPU; main_stream_busy_ratio: the stream with most activities. blocked: ratio of
    wall_ns by kind of call. copy_only_ratio: no kernel ran, only copies between host and GPU. data_loading_ratio: a
    launching thread was in the data loader, idle GPU or not; of the marked steps where there are any. emptied: the
    wait that most of the long idle gaps came after. work: share of each kernel, by full name, among those that ran.
    collective_wait_ns: time its collectives' kernels waited for other ranks; the GPU counts as busy then.
    """

    process: Process
    begin_ns: int
    end_ns: int
    device: int
    stream: int
    busy_ratio: float
    main_stream_busy_ratio: float
    judged_ns: int
    judged_busy_ratio: float
    judged_blocked_ratio: float
    paced_by: Pacing
    blocked: Mapping[str, float]
    steps: tuple[StepUse, ...]
    marks: Marks
    idle: tuple[IdleShare, ...]
    gaps: int
    waits: tuple[WaitPlace, ...]
    input_places: tuple[HostPlace, ...]
    host_places: tuple[HostPlace, ...]
    emptied: WaitPlace | None
    data_loading_ratio: float
    copy_only_ratio: float
    copied_bytes: int
    kernels: tuple[KernelShare, ...]
    work: Mapping[str, float]
    collective_wait_ns: int = 0

    @property
    def wall_ns(self) -> int:
        """The time that the profile covers."""
        return max(self.end_ns - self.begin_ns, 1)

    def idle_of(self, owner: str) -> IdleShare:
        """The idle time of one owner."""
        return next(share for share in self.idle if share.owner == owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """Every profiled process of a recording, and the collectives that they took part in together."""

    reports: tuple[ProfileReport, ...]
    collectives: tuple[Collective, ...]


def profile_reports(reader: Reader, window: Window) -> Profiles:
    """The reports on all profiled processes of a window."""
    book = StackBook(reader)
    found = read_profile(reader, window)
    together = collectives(found)
    waits = wait_ns_by_process(together)
    reports = (_report(profile, book) for profile in found)
    return Profiles(
        reports=tuple(replace(report, collective_wait_ns=waits.get(report.process.process, 0)) for report in reports),
        collectives=together,
    )


def _report(profile: ProfiledProcess, book: StackBook) -> ProfileReport:
    busy = profile.busy()
    waits, gaps = find_waits(profile, busy), find_idle_gaps(profile, busy)
    steps = steps_of(profile, busy, waits)
    whole = united(np.array([profile.begin_ns]), np.array([profile.end_ns]))
    windows = typical_intervals([step for step in steps if profile.covers(step.start_ns, step.end_ns)]) or whole
    busy_ratio, blocked_ratio = _share(busy, windows), _share(waits.whole, windows)
    mine = gaps.within(windows)
    is_input, is_host = _is_mainly(gaps, INPUT) & mine, _is_mainly(gaps, HOST) & mine
    copies, copied_bytes = _only_copies(profile)
    return ProfileReport(
        process=profile.process,
        begin_ns=profile.begin_ns,
        end_ns=profile.end_ns,
        device=profile.device,
        stream=profile.stream,
        busy_ratio=busy.total_ns / profile.wall_ns,
        main_stream_busy_ratio=profile.busy_stream().total_ns / profile.wall_ns,
        judged_ns=windows.total_ns,
        judged_busy_ratio=busy_ratio,
        judged_blocked_ratio=blocked_ratio,
        paced_by=_pacing(profile, busy_ratio, blocked_ratio),
        blocked=_blocked_ratios(profile, waits),
        steps=steps,
        marks=marks_of(profile),
        idle=tuple(_idle_shares(gaps, mine, windows.total_ns)),
        gaps=int(mine.sum()),
        waits=tuple(wait_places(profile, waits, book)),
        input_places=tuple(host_places(profile, gaps, is_input, gaps.owned_ns[INPUT], None)),
        host_places=tuple(host_places(profile, gaps, is_host, gaps.owned_ns[HOST], book)),
        emptied=next(iter(waits_before_gaps(profile, waits, gaps, is_input | is_host, book)), None),
        data_loading_ratio=_data_loading_ratio(profile, whole),
        copy_only_ratio=_share(copies, windows),
        copied_bytes=copied_bytes,
        kernels=tuple(_kernels(profile)),
        work=_work(profile),
    )


def _pacing(profile: ProfiledProcess, busy_ratio: float, blocked_ratio: float) -> Pacing:
    if len(profile.work()) < MIN_ACTIVITIES:
        return Pacing.UNKNOWN
    return pacing(busy_ratio, blocked_ratio if len(profile.calls) else None)


def _share(covered: Intervals, windows: Intervals) -> float:
    return int(covered.between(windows.begins, windows.ends).sum()) / max(windows.total_ns, 1)


def _data_loading_ratio(profile: ProfiledProcess, whole: Intervals) -> float:
    marks = profile.ranges_of("step")
    steps = united(marks["start_ns"], marks["end_ns"]) if len(marks) else whole
    loading = profile.ranges_of("data_loading")
    loading = loading[np.isin(loading["tid"], profile.launching_threads)]
    return _share(united(loading["start_ns"], loading["end_ns"]), steps)


def _is_mainly(gaps: IdleGaps, owner: str) -> Array:
    """Mask of long gaps that belong mostly to one owner."""
    found: Array = gaps.is_long & (2 * gaps.owned_ns[owner] > gaps.lasted_ns)
    return found


def _blocked_ratios(profile: ProfiledProcess, waits: GpuWaits) -> dict[str, float]:
    return {name: int(waits.waited_ns[mask].sum()) / profile.wall_ns for name, mask in waits.kinds.items()}


def _idle_shares(gaps: IdleGaps, mine: Array, wall_ns: int) -> Iterator[IdleShare]:
    for owner in OWNERS:
        owned = gaps.owned_ns[owner]
        spent_ns, long = int(owned[mine].sum()), int(owned[mine & gaps.is_long].sum())
        yield IdleShare(owner=owner, idle_ns=spent_ns, long_ns=long, ratio=spent_ns / max(wall_ns, 1))


def _only_copies(profile: ProfiledProcess) -> tuple[Intervals, int]:
    """When only copies between host and GPU ran, and the bytes they moved; copies within the GPU use no link."""
    work = profile.work()
    links = [profile.number("host_to_gpu"), profile.number("gpu_to_host")]
    is_copy = np.isin(work["direction"], links)
    others = united(work["start_ns"][~is_copy], work["end_ns"][~is_copy])
    begins, ends = _difference(united(work["start_ns"][is_copy], work["end_ns"][is_copy]), others)
    return united(begins, ends), int(work["bytes"][is_copy].sum())


def _difference(first: Intervals, second: Intervals) -> tuple[Array, Array]:
    """Begins and ends of the time that only the first set covers."""
    edges = np.unique(np.concatenate([first.begins, first.ends, second.begins, second.ends]))
    begins, ends = edges[:-1], edges[1:]
    alone = (first.between(begins, ends) > 0) & (second.between(begins, ends) == 0)
    return begins[alone], ends[alone]


def _kernels(profile: ProfiledProcess) -> Sequence[KernelShare]:
    """The kernels, most time first; kernels that run concurrently each count in full."""
    work = profile.work()
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for function, lasted in _by_function(work):
        name = profile.kernels[function][0] if function in profile.kernels else COPIES
        found[name][0] += len(lasted)
        found[name][1] += int(lasted.sum())
    shares = [
        KernelShare(name=name, count=count, busy_ns=ns, ratio=ns / profile.wall_ns)
        for name, (count, ns) in found.items()
    ]
    return sorted(shares, key=lambda share: -share.busy_ns)


def _work(profile: ProfiledProcess) -> dict[str, float]:
    """Share of each kernel among the kernels that ran, by its full name."""
    work = profile.work()
    counts: dict[str, int] = defaultdict(int)
    for function, lasted in _by_function(work):
        if function in profile.kernels:
            counts[profile.kernels[function][1]] += len(lasted)
    total = max(sum(counts.values()), 1)
    return {name: count / total for name, count in counts.items()}


def _by_function(work: Array) -> Iterator[tuple[int, Array]]:
    """The durations of the activities by function; 0: copies and fills."""
    order = np.argsort(work["function"], kind="stable")
    functions, firsts = np.unique(work["function"][order], return_index=True)
    lasted = (work["end_ns"] - work["start_ns"])[order]
    yield from zip(functions.tolist(), np.split(lasted, firsts[1:]), strict=True)
