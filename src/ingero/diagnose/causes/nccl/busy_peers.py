"""Peers of a rank: which lost time simultaneously, and which had more or different work meanwhile.

A rank in a collective waits on its GPU. The late rank need not lose time itself: it may have longer sequences, or an
evaluation that only one rank runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Bucket, CodeLine, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.diagnose.lost_time.time_ranges import excess_ns
from ingero.diagnose.samples.stack_samples import RUN, group_samples, sampled_time
from ingero.store.records import Process, Window
from ingero.units import format_ns, format_number

Array = np.ndarray[Any, np.dtype[Any]]

MIN_OVERLAP = 0.5  # of the shorter of the two time ranges
_MIN_SHARE_OF_WAIT = 0.5  # of a rank's wait for its GPU in the peer's other work; below it the wait has another reason
_SHARE_OF_LOST_TIME = 0.8  # held by the longest sync intervals, which are taken as the waits
_MIN_SHARE_IN_BASELINE = 0.1  # of the peer's baseline time, before a step type is normal there
_MIN_TIMES_CHANCE = 1.5  # times as often in the waits as at any time
_MIN_LAUNCH_GROWTH = 1.3  # launches per step against the baseline: less is the spread of batches
_MAX_OWN_LAUNCH_GROWTH = 1.1  # launches per step of the waiting rank against its baseline
_MAX_SAMPLED_WAITS = 8  # the longest, whose samples of the peer are read


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyPeer:
    """A rank that kept another waiting. wait_ns: of that one's wait. why: how that is known. doing: in words."""

    process: Process
    wait_ns: int
    doing: str
    why: str
    line: CodeLine | None = None


def peers(case: Case) -> list[Case]:
    """Cases of the ranks that share a communicator with this one, at the same time, of the same kind."""
    peer_numbers = case.evidence.peers(case.process.process)
    peer_cases = [peer for peer in case.siblings if peer.process.process in peer_numbers and peer.kind is case.kind]
    return [peer for peer in peer_cases if _overlap_ratio(case, peer) >= MIN_OVERLAP]


def gpu_wait_ns(case: Case) -> int:
    """Time that a rank lost waiting for its GPU."""
    return case.buckets.get(Bucket(Part.GPU, GPU_EXECUTION), 0)


def busy_peer(case: Case) -> BusyPeer | None:
    """The peer whose different or additional work covers most of this rank's wait."""
    busy_peers = (_as_busy_peer(case, number) for number in sorted(case.evidence.peers(case.process.process)))
    return max((peer for peer in busy_peers if peer), key=lambda peer: peer.wait_ns, default=None)


def _as_busy_peer(case: Case, number: int) -> BusyPeer | None:
    process, stream = case.evidence.processes.get(number), case.evidence.gpu_streams.get(number)
    before = (
        [case.evidence.gpu_stream_in(window, number) for window in case.baseline_windows] if stream is not None else []
    )
    baseline: Array = np.concatenate(before) if before else np.zeros(0)
    if process is None or stream is None or not len(baseline):
        return None
    now = case.evidence.gpu_stream_in(case.window, number)
    peer_growth, own_growth = _launch_growth(now, baseline), _own_launch_growth(case)
    if peer_growth >= _MIN_LAUNCH_GROWTH and own_growth <= _MAX_OWN_LAUNCH_GROWTH:
        return BusyPeer(
            process=process,
            wait_ns=gpu_wait_ns(case),
            doing=f"launched {format_number(peer_growth, 2)}x as many kernels per step as in the baseline",
            why=f"the waiting rank launched {format_number(own_growth, 2)}x as many as in the baseline",
        )
    waits = _waits(case)
    other_steps = stream[np.isin(stream["step_type"], _other_types(case, stream, baseline, waits))]
    lost_ns = sum(lost for _, lost in waits)
    kept_waiting_ns = sum(min(lost, _shared_ns(window, other_steps)) for window, lost in waits)
    if not len(other_steps) or kept_waiting_ns < _MIN_SHARE_OF_WAIT * lost_ns:
        return None
    return BusyPeer(
        process=process,
        wait_ns=int(kept_waiting_ns * gpu_wait_ns(case) / max(lost_ns, 1)),
        doing="made steps of another kind",
        why=f"it makes those while this rank waits longest: {format_ns(int(kept_waiting_ns))} of them",
        line=_line(case, number, waits),
    )


def _waits(case: Case) -> list[tuple[Window, float]]:
    """The sync intervals that lost most of the time, with the lost ns, most first."""
    rows = case.evidence.gpu_stream_in(case.window, case.process.process)
    lost = excess_ns(rows, case.references)
    order = np.argsort(-lost, kind="stable")
    order = order[: int(np.searchsorted(np.cumsum(lost[order]), _SHARE_OF_LOST_TIME * lost[lost > 0].sum())) + 1]
    times = rows[order][["prev_sync_end_ns", "sync_end_ns"]].tolist()
    windows = (Window(begin_ns=begin, end_ns=end) for begin, end in times)
    return [one for one in zip(windows, lost[order].tolist(), strict=True) if one[1] > 0]


def _other_types(case: Case, stream: Array, baseline: Array, waits: Sequence[tuple[Window, float]]) -> list[int]:
    """Step types that a peer makes while this rank waits: new since the baseline, or rare at other times.

    The peer's main step type in the baseline is left out, whatever else is slow then.
    """
    baseline_ns, any_time_ns, in_waits_ns = _time_by_step_type(baseline), _time_by_step_type(stream), Counter[int]()
    (main, _), *_ = baseline_ns.most_common(1)
    for window, _ in waits:
        in_waits_ns.update(_time_by_step_type(_intervals_touching(window, stream), window))
    own_stream = case.evidence.gpu_streams[case.process.process]
    span_ns = int((own_stream["sync_end_ns"] - own_stream["prev_sync_end_ns"]).sum())
    chance = sum(window.duration_ns for window, _ in waits) / max(span_ns, 1)
    return [
        step_type
        for step_type, ns in in_waits_ns.items()
        if step_type != main
        and (
            baseline_ns[step_type] < _MIN_SHARE_IN_BASELINE * baseline_ns.total()
            or ns >= _MIN_TIMES_CHANCE * chance * any_time_ns[step_type]
        )
    ]


def _time_by_step_type(rows: Array, within: Window | None = None) -> Counter[int]:
    """Time by step type, ns, of these sync intervals or of their part within a window."""
    begins, ends = rows["prev_sync_end_ns"], rows["sync_end_ns"]
    if within:
        begins, ends = np.maximum(begins, within.begin_ns), np.minimum(ends, within.end_ns)
    ns_by_type: Counter[int] = Counter()
    for step_type, ns in zip(rows["step_type"].tolist(), np.maximum(ends - begins, 0).tolist(), strict=True):
        ns_by_type[step_type] += ns
    return ns_by_type


def _intervals_touching(window: Window, stream: Array) -> Array:
    """The sync intervals of a stream that overlap a window."""
    first, last = np.searchsorted(stream["sync_end_ns"], (window.begin_ns, window.end_ns))
    touching: Array = stream[first : last + 1]
    return touching


def _shared_ns(window: Window, stream: Array) -> int:
    """How much of a window these sync intervals cover."""
    return _time_by_step_type(_intervals_touching(window, stream), window).total()


def _launch_growth(now_intervals: Array, baseline: Array) -> float:
    """Launches per sync interval against those of the baseline."""
    return (
        float(now_intervals["launches"].mean()) / max(float(baseline["launches"].mean()), 1.0)
        if len(now_intervals)
        else 0.0
    )


def _own_launch_growth(case: Case) -> float:
    number = case.process.process
    before = [case.evidence.gpu_stream_in(window, number) for window in case.baseline_windows]
    return _launch_growth(case.evidence.gpu_stream_in(case.window, number), np.concatenate(before)) if before else 1.0


def _line(case: Case, number: int, waits: Sequence[tuple[Window, float]]) -> CodeLine | None:
    """Where the peer was on a CPU in the longest waits; of short calls only some are recorded."""
    windows = sorted((window for window, _ in waits[:_MAX_SAMPLED_WAITS]), key=lambda window: window.begin_ns)
    return sampled_time(group_samples(case.evidence, number, windows, None, RUN)).line


def _overlap_ratio(case: Case, other: Case) -> float:
    """Overlap of two cases, of the shorter one: in a long case a rank may have waited during part of it."""
    begin, end = max(case.window.begin_ns, other.window.begin_ns), min(case.window.end_ns, other.window.end_ns)
    return (end - begin) / max(min(case.window.duration_ns, other.window.duration_ns), 1)
