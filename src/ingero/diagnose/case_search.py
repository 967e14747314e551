"""Where the rules are to look: the stretches of every process that lost time, and what keeps its device waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases import Case
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.excess import buckets
from ingero.diagnose.idle import idle_ns, shortened
from ingero.diagnose.model import Bucket, FindingKind, Part
from ingero.diagnose.pacing import HOST_BOUND, is_step, is_untimed
from ingero.diagnose.queue_full import was_full
from ingero.diagnose.recorders_start import is_recorders_start, settled_at_ns
from ingero.diagnose.regimes import Usual, at_best, usual_epochs, with_clocks
from ingero.diagnose.resynced import Resynced, is_same_work, lost_buckets, resynced
from ingero.diagnose.samples import sample_windows, weighted_windows
from ingero.diagnose.stretches import MIN_LOSS_NS, ONE_LOSS_NS, Stretch, begins_to_lose, excess_ns, lossy_stretches
from ingero.diagnose.timeline import timeline
from ingero.diagnose.unseen_work import is_host_paced, is_unseen
from ingero.diagnose.utilization import Utilization, utilization_of
from ingero.events import CLOCKS
from ingero.store.records import Process, Window
from ingero.store.spans import Spans

Array = np.ndarray[Any, np.dtype[Any]]

BOTTLENECK_RATIO = 0.10  # of wall time against zero, before a share of it is called a bottleneck
WORK_RATIO = 0.25  # of all time computing and launching, before that is called a bottleneck
_DEVICE_WAITED = 0.05  # of X; below, the device was done as soon as the host had enqueued the last
_BRIEF_NS = 5_000_000_000  # from the first epoch to the last of a process that is gone
_HELD_UP_NS = 3_000_000_000  # a loop that has stood still for longer may be over, or idle: that needs no hurry
_SLOWEST_LINK = 3.0  # bytes a ns: PCIe 3.0 with four lanes, the least that GPUs which train are found on
_CLOCKS_OF = {Part.EMPTY: "empty", Part.ENQUEUE: "enqueue", Part.LATE: "drain"}


def find_cases(evidence: Evidence) -> list[Case]:
    """The stretches of every process that lost time against its best regime, then the bottlenecks of that regime."""
    search = CaseSearch(evidence)
    return [*search.incidents(), *search.bottlenecks()]


class CaseSearch:
    """The same by kind: whoever looks again and again need not ask what is slow at best each time.

    While recording, not those of processes that were gone at once: by the hundred they would be all that is looked at.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._lanes: list[_Lane] = []
        for number, lane in evidence.lanes.items():
            process = evidence.processes.get(number)
            if process is not None and len(lane) and not (evidence.is_live and _was_brief(process, lane)):
                self._lanes.append(_Lane(evidence, process, lane))

    def incidents(self) -> list[Case]:
        """What lost time against its best regime."""
        return [case for lane in self._lanes for case in lane.incidents()]

    def sees_a_beginning(self) -> bool:
        """Whether something begins to lose time or stands still, and has not lost enough to be a case."""
        return any(lane.begins_to_lose() or lane.is_held_up() for lane in self._lanes)

    def bottlenecks(self) -> list[Case]:
        """What keeps a device waiting in that regime, too."""
        return [case for lane in self._lanes if (case := lane.bottleneck())]


def _was_brief(process: Process, lane: Array) -> bool:
    return process.exit_ns is not None and int(lane["b_ns"][-1] - lane["a_ns"][0]) < _BRIEF_NS


class _Lane:
    """The main lane of one process, without its time without demand."""

    def __init__(self, evidence: Evidence, process: Process, lane: Array) -> None:
        self._evidence, self._process = evidence, process
        self._ends = np.ascontiguousarray(lane["b_ns"])
        self._idle = idle_ns(evidence, process, lane)
        self._epochs, self._elapsed_ns = shortened(lane, self._idle), lane["b_ns"] - lane["a_ns"]
        self._started_ns = settled_at_ns(evidence, process.session)
        found = resynced(self._epochs)
        self._resynced_case = self._resynced(found) if found and found.is_enough else None
        self._resyncs = found is not None and found.is_beginning(int(self._ends[-1]), since_ns=self._started_ns)
        if found and self._resynced_case:
            self._epochs, self._elapsed_ns = self._epochs[~found.inside], self._elapsed_ns[~found.inside]
        self._usual = usual_epochs(self._epochs)
        self._excess = excess_ns(self._epochs, self._usual)
        self._stretches = lossy_stretches(self._epochs, self._usual, self._excess, apart_ns=self._started_ns)

    def incidents(self) -> Iterator[Case]:
        """The stretches that lost time."""
        if self._resynced_case:
            yield self._resynced_case
        if self._stretches:
            self._usual = with_clocks(self._usual, self._whole)
        for stretch in self._stretches:
            yield self._incident(self._usual, self._excess, stretch)

    def begins_to_lose(self) -> bool:
        """Whether the last seconds lose time, and no stretch holds them yet; not while the recorder starts."""
        return self._resyncs or begins_to_lose(
            self._epochs, self._usual, self._excess, self._stretches, since_ns=self._started_ns
        )

    def is_held_up(self) -> bool:
        """Whether it stands still for longer than it ever did, by as much as is worth a finding by itself."""
        still_ns = self._evidence.window.end_ns - int(self._ends[-1])
        longest_ns = int(self._elapsed_ns.max(initial=0))
        return self._process.exit_ns is None and longest_ns + ONE_LOSS_NS < still_ns <= _HELD_UP_NS

    def bottleneck(self) -> Case | None:
        """Where the device is kept waiting even at best, and for as long as that went on: outside of incidents."""
        is_best = self._recent(at_best(self._epochs, self._usual))
        is_lossy = Spans([one.window for one in self._stretches]).have_inside(self._epochs["b_ns"])
        return self._bottleneck(is_best, self._recent(is_best | ~is_lossy))

    def _whole(self, window: Window) -> Array:
        """The whole epochs that ended in a window."""
        epochs = self._evidence.epochs(window, self._process.process)
        if not self._idle.any():
            return epochs
        return shortened(epochs, self._idle[np.searchsorted(self._ends, epochs["b_ns"]).clip(max=len(self._ends) - 1)])

    def _sample(self, lane: Array) -> Array:
        """These epochs whole, or of very many some."""
        return self._read(sample_windows(lane), lane)

    def _read(self, windows: Sequence[Window], lane: Array) -> Array:
        """The whole epochs of a lane in these windows."""
        whole: Array = np.concatenate([self._evidence.no_epochs, *(self._whole(window) for window in windows)])
        chosen: Array = whole[np.isin(whole["b_ns"], lane["b_ns"])]
        return chosen

    def _incident(self, usual: Mapping[int, Usual], excess: Array, stretch: Stretch) -> Case:
        inside = (self._epochs["b_ns"] > stretch.window.begin_ns) & (self._epochs["b_ns"] < stretch.window.end_ns)
        members = self._epochs[inside]
        heavy, spread = (self._read(windows, members) for windows in weighted_windows(members, excess[inside]))
        epochs = np.sort(np.concatenate([heavy, spread]), order="b_ns")
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.INCIDENT,
            window=stretch.window,
            epochs=epochs,
            epoch_count=stretch.epochs,
            usual=usual,
            excess_ns=excess_ns(epochs, usual),
            wall_ns=stretch.wall_ns,
            around_ns=stretch.around_ns,
            loss_ns=stretch.loss_ns,
            peak_ratio=stretch.peak_ratio,
            buckets=_extrapolated(heavy, spread, usual, stretch.loss_ns),
            is_recorders_start=is_recorders_start(self._evidence, self._process.session, self._epochs, excess, stretch),
            timeline=timeline(self._epochs, excess, stretch.window),
        )

    def _resynced(self, found: Resynced) -> Case | None:
        """Compared per launch; None where the launches are not of the same work."""
        members = self._epochs[found.inside]
        now, before = (self._sample(one) for one in (members, self._epochs[found.usual]))
        if not is_same_work(now, before):
            return None
        wall = int((members["b_ns"] - members["a_ns"]).sum())
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.INCIDENT,
            window=found.window,
            epochs=now,
            epoch_count=len(members),
            usual=with_clocks(usual_epochs(self._epochs[found.usual]), self._whole),
            excess_ns=(now["b_ns"] - now["a_ns"]) - found.wanted_ns(now),
            wall_ns=wall,
            loss_ns=found.lost_ns,
            peak_ratio=found.lost_ns / max(wall, 1),
            buckets=lost_buckets(now, before, int(members["launches"].sum())),
            resynced=found,
        )

    def _proven(self, members: Array, epochs: Array, scale: float) -> dict[Bucket, int]:
        """Of the intervals whose launches were not traced, as far as it is proven; epochs: of members, to be scaled."""
        members, epochs = members[is_unseen(members)], epochs[is_unseen(epochs)]
        if not len(epochs):
            return {}
        window, wall = _window_of(members), int((members["b_ns"] - members["a_ns"]).sum())
        used = utilization_of(self._evidence, self._process, int(epochs["device"][0]), (window,))
        return proven_idle(_scaled(host_share(epochs), scale), wall, used, self._copied_bytes(window))

    def _copied_bytes(self, window: Window) -> float:
        shares = self._evidence.reader.copy_shares((window,), process=self._process.process)
        return sum(one.host_to_gpu_bytes + one.gpu_to_host_bytes for one in shares)

    def _recent(self, chosen: Array) -> Array:
        """Those in the window, if there are any: while recording, a reference from long before is at hand, too."""
        recent = chosen & (self._epochs["b_ns"] >= self._evidence.window.begin_ns)
        return recent if recent.any() else chosen

    def _bottleneck(self, is_best: Array, is_as_ever: Array) -> Case | None:
        """Nothing where it is little of the time, idle or not. is_best: what the rest of is_as_ever is judged by."""
        waits = np.sum(list(_host_lengths(self._epochs).values()), axis=0)
        for chosen in (is_best, is_as_ever):
            if waits[chosen].sum() < max(BOTTLENECK_RATIO * self._elapsed_ns[chosen].sum(), MIN_LOSS_NS):
                return None
        members, epochs = self._epochs[is_as_ever], self._sample(self._epochs[is_best])
        seen, waited = float(sum(one.sum() for one in _host_lengths(epochs).values())), float(waits[is_as_ever].sum())
        scale = waited / seen if len(epochs) < len(members) and seen else 1.0
        sums = Counter(self._proven(members, epochs, scale))
        sums.update(_scaled(host_share(epochs[~is_unseen(epochs)]), scale))
        window = _window_of(members)
        wall = int(self._elapsed_ns[is_as_ever].sum())
        used = utilization_of(self._evidence, self._process, int(epochs["device"][0]), (window,))
        hidden = frozenset(Part) if is_step(epochs).any() else frozenset({Part.ENQUEUE})
        against_zero = at_most_idle(sums, wall, used, hidden)
        lost = sum(against_zero.values())
        if lost < max(BOTTLENECK_RATIO * wall, MIN_LOSS_NS):
            return None
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.BOTTLENECK,
            window=window,
            epochs=epochs,
            epoch_count=len(members),
            usual=self._usual,
            excess_ns=(epochs["b_ns"] - epochs["a_ns"]).astype(np.float64),
            wall_ns=wall,
            loss_ns=lost,
            peak_ratio=lost / max(wall, 1),
            buckets=against_zero,
        )


def _window_of(epochs: Array) -> Window:
    """From the begin of the first to the end of the last."""
    return Window(begin_ns=int(epochs["a_ns"][0]), end_ns=int(epochs["b_ns"][-1]) + 1)


def _scaled(lost: Mapping[Bucket, int], scale: float) -> dict[Bucket, int]:
    return {bucket: int(ns * scale) for bucket, ns in lost.items()}


def _extrapolated(heavy: Array, spread: Array, usual: Mapping[int, Usual], loss_ns: int) -> dict[Bucket, int]:
    """Lost time by bucket: of the heavy epochs as it is, and of the spread ones for all the rest of the loss."""
    lost = buckets(heavy, usual)
    if not len(spread):
        return lost
    rest, seen = loss_ns - float(excess_ns(heavy, usual).sum()), float(excess_ns(spread, usual).sum())
    scale = rest / seen if rest > 0 and seen > 0 else 1.0
    for bucket, ns in buckets(spread, usual).items():
        lost[bucket] = lost.get(bucket, 0) + round(ns * scale)
    return lost


def _host_lengths(epochs: Array) -> dict[Part, Array]:
    """E and P as they are, and [f, s] where the device was ready as soon as the host had enqueued; of either kind."""
    steps = is_step(epochs)
    if steps.any():  # what the host does anyway is no wait of the GPU, and where the GPU paces too nothing is proven
        is_host_bound = (epochs["x_ns"] <= HOST_BOUND * (epochs["b_ns"] - epochs["a_ns"])) & ~is_untimed(epochs)
        none = np.zeros(len(epochs), np.int64)
        return {Part.EMPTY: np.where(is_host_bound, epochs["e_ns"], 0), Part.ENQUEUE: none, Part.LATE: none}
    kept_waiting = (epochs["r_ns"] - epochs["s_ns"] < _DEVICE_WAITED * epochs["x_ns"]) & ~was_full(epochs)
    return {
        Part.EMPTY: np.where(is_unseen(epochs) & ~is_host_paced(epochs), 0, epochs["e_ns"]),
        Part.ENQUEUE: np.where(kept_waiting, epochs["s_ns"] - epochs["f_ns"], 0),
        Part.LATE: epochs["p_ns"],
    }


def at_most_idle(
    lost: dict[Bucket, int],
    wall_ns: int,
    used: Utilization | None,
    hidden: frozenset[Part] = frozenset({Part.ENQUEUE}),
) -> dict[Bucket, int]:
    """The same, with no more of the hidden parts than leaves the GPU the time in which NVML has seen a kernel run.

    hidden: in which it is not known whether the GPU worked: between the launches of a host that is too slow it did
    nothing, or most of the work; in a step by repetition it may have worked all the while. Where several processes use
    it, the host is charged only with what it was idle for all of them.
    """
    hidden_ns = sum(ns for bucket, ns in lost.items() if bucket.part in hidden)
    if used is None or not hidden_ns:
        return lost
    idle_ns = wall_ns * (1 - max(used.share - used.error, 0.0)) - (sum(lost.values()) - hidden_ns)
    scale = min(max(idle_ns / hidden_ns, 0.0), 1.0)
    return {bucket: int(ns * scale) if bucket.part in hidden else ns for bucket, ns in lost.items()}


def proven_idle(
    lost: dict[Bucket, int], wall_ns: int, used: Utilization | None, copied_bytes: float
) -> dict[Bucket, int]:
    """The same where launches were not traced: what of the host's waits, if any, the GPU was idle in for certain.

    Where in a sync interval the launches lie is not known then, so that its host may have waited behind the GPU's work.
    Waits and the time without a kernel that together are longer than all of it overlap by the difference. A GPU that
    copies runs none: copied_bytes between it and the host take what they would on the slowest link.
    """
    waits_ns = sum(ns for bucket, ns in lost.items() if bucket.part is not Part.LATE)
    idle_ns = wall_ns * (1 - used.share - used.error) - copied_bytes / _SLOWEST_LINK if used else 0.0
    scale = max(waits_ns + max(idle_ns, 0.0) - wall_ns, 0.0) / max(waits_ns, 1)
    return {bucket: ns if bucket.part is Part.LATE else int(ns * scale) for bucket, ns in lost.items()}


def _launching_ns(epochs: Array, lengths: Array) -> int:
    """Computing where launches were not traced: it may be launching, and the GPU busy meanwhile."""
    mine = is_unseen(epochs) & (lengths > 0)
    return int(np.maximum(epochs["empty_clock_ns"][mine, CLOCKS.index("run")], 0).sum())


def host_share(epochs: Array) -> dict[Bucket, int]:
    """The account of E and P as it is, and of [f, s] where the device was ready as soon as the host had enqueued."""
    found: dict[Bucket, int] = {}
    for part, lengths in _host_lengths(epochs).items():
        clocks = epochs[f"{_CLOCKS_OF[part]}_clock_ns"]
        counted = (clocks[:, 0] >= 0) & (lengths > 0 if part is not Part.LATE else True)
        sums = clocks[counted].sum(axis=0).astype(np.float64)
        if part is Part.LATE:
            sums[[CLOCKS.index("run"), CLOCKS.index("sleep")]] = 0  # of the whole drain: that is device wait
        total = float(lengths.sum())
        if is_step(epochs).any():
            sums[CLOCKS.index("run")] = 0
            total = min(total, float(sums.sum()))
        scale = min(1.0, total / sums.sum()) if sums.sum() else 0.0
        shares = {Bucket(part, clock): int(ns) for clock, ns in zip(CLOCKS, sums * scale, strict=True)}
        found |= shares | {Bucket(part, "unknown"): int(total - sum(shares.values()))}
        if part is Part.EMPTY:
            found[Bucket(part, "run")] -= int(_launching_ns(epochs, lengths) * scale)
    return {bucket: ns for bucket, ns in found.items() if ns > 0}
