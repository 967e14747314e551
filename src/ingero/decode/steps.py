"""Finds the steps of a program in its own calls: what it enqueues repeats, and with it everything else it does.

A program's loop enqueues the same calls on its main stream in the same order, step after step. In recordings of real
training the period of that sequence is the step that the program marked itself, to the call (docs/adr/0044). Steps of
several kinds in no order have no period; then a call that comes once in each of them cuts them. So it does where phases
of other work move the steps behind them out of their period.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# One call that enqueues something or waits for the GPU. key: equal for calls of the same operation, kernel and caller.
# is_launch: launches can be given up by the recorder, other calls are rare. stream: -1 where it is of none.
CALL_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("key", "<i8"),
        ("tid", "<i8"),
        ("stream", "<i8"),
        ("is_enqueue", "?"),
        ("is_launch", "?"),
    ]
)

MIN_STEPS = 3  # that must be seen: two are alike by chance
MIN_MATCH = 0.95  # of the calls equal to those one period earlier; real programs: 0.99 to 1.0, wrong periods below 0.76
_BETTER_MATCH = 0.002  # a longer period that fits better by this is the step, and the shorter one a layer of the model
_MOSTLY = 0.5  # of the calls are equal a period earlier where something comes in between now and then
_MAX_CANDIDATES = 256  # periods that are compared: the step's is among the gaps of calls that come once a step
_MAX_KINDS = 4  # of steps; what lies between two calls of one kind of step is of ever more
_MIN_REGULAR_STEPS = 8  # of few kinds, where other work lies between them: more than a chance, or a turn of such phases
_MAX_REGULAR = 0.8  # of the pieces between two marker calls
_MAX_PARTS = 8  # usual pieces; what is as long as more of them has a phase in it, however often it came
_MIN_REGULAR_MATCH = 0.5  # of the calls; the rest are phases
_MAX_COME_AGAIN = 0.95  # of the calls are in steps whose kind came again


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMarker:
    """A call that happens once a step. near_boundary: its distance in calls from the longest pause of the host."""

    key: int
    tid: int
    is_launch: bool
    near_boundary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSteps:
    """The steps found in a sequence of calls. stream: the one whose enqueues were compared.

    period: enqueues on that stream in a step; 0 where steps are of several kinds. match: share of them that are equal
    to those a period earlier, or in steps whose kind came again. first: of each step the index of its first call.
    cut_ns: where steps begin, and behind the last one where that ends. A step begins when the last call of the one
    before has returned; the first one seen, with its first call, unless it was cut. kind: of each step, equal numbers
    for equal work. markers: calls that come once a step, best first; none where each comes more often.
    """

    stream: int
    period: int
    match: float
    first: Array
    cut_ns: Array
    kind: Array
    markers: tuple[StepMarker, ...]

    @property
    def count(self) -> int:
        """The number of whole steps."""
        return len(self.first)


def find_steps(calls: Array) -> FoundSteps | None:
    """The steps in calls (CALL_DTYPE, by start_ns) of one process; None if nothing repeats often enough."""
    stream = main_stream(calls)
    if stream is None:
        return None
    places = np.flatnonzero(calls["is_enqueue"] & (calls["stream"] == stream))
    sequence = np.unique(calls["key"][places], return_inverse=True)[1].astype(np.int32)
    is_launch = calls["is_launch"][places]
    found = _all_alike(calls, places, sequence, is_launch, stream)
    if found and found.markers and not found.markers[0].is_launch:
        return found
    other = _between_regular_calls(calls, places, sequence, is_launch, stream)
    return other if other and _is_better(other, found) else found


def _is_better(other: FoundSteps, found: FoundSteps | None) -> bool:
    """Whether other steps have a marker, or one that is no launch, without being several of those found."""
    if found is None or not found.markers:
        return True
    return not other.markers[0].is_launch and 2 * other.count > found.count


def _all_alike(calls: Array, places: Array, sequence: Array, is_launch: Array, stream: int) -> FoundSteps | None:
    """Steps that make up nearly all calls: one period, or few kinds in any order."""
    period, match, is_between = _period(sequence, is_launch)
    places, sequence, is_launch = (one[~is_between] for one in (places, sequence, is_launch))
    if match < MIN_MATCH:
        return _of_several_kinds(calls, places, sequence, is_launch, stream)
    if _is_within_a_step(sequence, _usual(sequence, period), is_launch):
        return None
    return _periodic(calls, places, sequence, period, match, stream)


def main_stream(calls: Array) -> int | None:
    """The stream with the most enqueues; None without any."""
    streams, counts = np.unique(calls["stream"][calls["is_enqueue"]], return_counts=True)
    return int(streams[counts.argmax()]) if len(streams) else None


def _period(sequence: Array, is_launch: Array) -> tuple[int, float, Array]:
    """The shortest period that fits as well as any, the share of calls equal to those one period earlier, and which
    calls only come in between: a look at the loss in every tenth step makes no turn of ten.
    """
    found = [(lag, _match(sequence, lag)) for lag in _candidates(sequence) if MIN_STEPS * lag <= len(sequence)]
    best = max((match for _, match in found), default=0.0)
    chosen = min(((lag, match) for lag, match in found if match >= best - _BETTER_MATCH), default=(0, 0.0))
    for lag, match in sorted(found):
        if lag <= chosen[0] and match > _MOSTLY:
            is_between = _are_between(sequence, is_launch, lag)
            if is_between is not None:
                return lag, _match(sequence[~is_between], lag), is_between
    return *chosen, np.zeros(len(sequence), bool)


def _are_between(sequence: Array, is_launch: Array, lag: int) -> Array | None:
    """Which calls come between two periods, now and then, and are no launches; None if more than those differ.

    Launches would be work of their own: an optimizer behind several backward passes, what follows a model's layers.
    """
    most, is_between = max(1, int((1 - MIN_MATCH) * lag)), np.zeros(len(sequence), bool)
    differs = np.flatnonzero(sequence[lag:] != sequence[:-lag]) + lag
    while len(differs):
        at = int(differs[0])
        before = sequence[at - lag : at]
        extra = next((n for n in range(1, most + 1) if _are_alike(before, sequence[at + n : at + n + lag])), 0)
        if not extra or is_launch[at : at + extra].any():
            return None
        is_between[at : at + extra] = True
        differs = differs[np.searchsorted(differs, at + extra + lag) :]
    return is_between


def _are_alike(period: Array, other: Array) -> bool:
    """Whether another period, which may end early, is nearly the same."""
    return bool((period[: len(other)] == other).mean() >= MIN_MATCH) if len(other) else True


def _match(sequence: Array, lag: int) -> float:
    return float((sequence[lag:] == sequence[:-lag]).mean())


def _candidates(sequence: Array) -> list[int]:
    """Candidate periods: distances between calls with the same key, of the rarest keys, as those come once a step."""
    counts = np.bincount(sequence)
    by_key = np.split(np.argsort(sequence, kind="stable"), np.cumsum(counts)[:-1])
    found: Counter[int] = Counter()
    for key in np.argsort(counts, kind="stable").tolist():
        gaps, repeats = np.unique(np.diff(by_key[key]), return_counts=True)
        found.update(dict(zip(gaps.tolist(), repeats.tolist(), strict=True)))
        if len(found) >= 2 * _MAX_CANDIDATES:
            break
    return [gap for gap, _ in found.most_common(_MAX_CANDIDATES)]


def _is_within_a_step(sequence: Array, part: Array, is_launch: Array) -> bool:
    """Whether what repeats is rather a layer of a model: nothing but launches, and other calls come beside it.

    A forward pass repeats its layers; a step has other calls, too, or nothing lies between two of them. part: what
    repeats.
    """
    is_part = np.isin(sequence, part)
    return bool(is_launch[is_part].all() and not is_part.all())


def _usual(sequence: Array, period: int) -> Array:
    """The period in the form of most of its repetitions."""
    repeats = sequence[: len(sequence) // period * period].reshape(-1, period)
    return np.array([np.bincount(column).argmax() for column in repeats.T])


def _periodic(calls: Array, places: Array, sequence: Array, period: int, match: float, stream: int) -> FoundSteps:
    """Steps of one period, cut where the host pauses longest, or at the start if the calls are only whole steps."""
    pause_ns, pause_at = _pauses(calls, places)
    is_whole = len(sequence) % period == 0 and len(sequence) // period >= MIN_STEPS
    phase = period - 1 if is_whole else _longest_pause(pause_ns, period)
    cuts = np.arange(phase, len(pause_ns), period)
    first = pause_at[cuts]
    ends = np.maximum.accumulate(calls["end_ns"])
    cut_ns = ends[first - 1]
    if is_whole:
        first, cut_ns = np.append(0, first), np.concatenate([calls["start_ns"][:1], cut_ns, ends[-1:]])
    else:
        first = first[:-1]
    return FoundSteps(
        stream=stream,
        period=period,
        match=match,
        first=first,
        cut_ns=cut_ns,
        kind=np.zeros(len(first), np.int64),
        markers=_markers(calls, first, int(np.searchsorted(calls["start_ns"], cut_ns[-1]))),
    )


def _pauses(calls: Array, places: Array) -> tuple[Array, Array]:
    """The longest time without any call between each two enqueues on the stream, ns, and the call after it."""
    ends = np.maximum.accumulate(calls["end_ns"])
    gaps = np.append(0, calls["start_ns"][1:] - ends[:-1])
    begins = places[:-1] + 1
    longest = np.maximum.reduceat(gaps[: places[-1] + 1], begins)
    inside = gaps[begins[0] : places[-1] + 1]
    between = np.repeat(np.arange(len(begins)), np.diff(places))
    at = np.flatnonzero(inside == longest[between])
    first = np.unique(between[at], return_index=True)[1]
    return longest, begins[0] + at[first]


def _longest_pause(pause_ns: Array, period: int) -> int:
    """The place in the period at which the host usually pauses longest."""
    count = len(pause_ns) // period * period
    return int(np.median(pause_ns[:count].reshape(-1, period), axis=0).argmax())


def _markers(calls: Array, first: Array, end: int) -> tuple[StepMarker, ...]:
    """Calls that come once in each step: those that are no launches first, then those near a boundary."""
    bounds = np.append(first, end)
    inside = calls[bounds[0] : end]
    name = _names(calls)[bounds[0] : end]
    step = np.repeat(np.arange(len(first)), np.diff(bounds))
    counts = np.bincount(name)
    # as often as there are steps, and in as many different ones
    in_steps = np.bincount(np.unique(name.astype(np.int64) * len(first) + step) // len(first), minlength=len(counts))
    elsewhere = np.bincount(_names(calls), minlength=len(counts))[: len(counts)] - counts
    is_once = (counts == len(first)) & (in_steps == len(first)) & (elsewhere <= 1 + len(calls) // max(len(inside), 1))
    at = np.unique(name, return_index=True)[1]
    chosen = at[is_once[name[at]]]
    return tuple(sorted((_marker(inside[one], one, bounds) for one in chosen), key=_least_first))


def _names(calls: Array) -> Array:
    """A number for each pair of key and thread."""
    names: Array = np.unique(calls[["key", "tid"]], return_inverse=True)[1].reshape(-1)
    return names


def _marker(call: np.void, at: int, bounds: Array) -> StepMarker:
    near = int(np.abs(bounds - bounds[0] - at).min())
    return StepMarker(key=int(call["key"]), tid=int(call["tid"]), is_launch=bool(call["is_launch"]), near_boundary=near)


def _least_first(marker: StepMarker) -> tuple[bool, int]:
    return marker.is_launch, marker.near_boundary


def _of_several_kinds(calls: Array, places: Array, sequence: Array, is_launch: Array, stream: int) -> FoundSteps | None:
    """Steps between two calls with one key, if what lies between them is of few kinds that come again.

    The rarest such call: what is cut by one that comes more often are parts of steps. Of equally rare ones the one
    before which the host pauses longest.
    """
    counts = np.bincount(sequence)
    pause_ns, pause_at = _pauses(calls, places) if len(places) > 1 else (places, places)
    chosen: tuple[float, Array, Array, float] | None = None
    for key in np.argsort(counts, kind="stable").tolist():
        if chosen and counts[key] > len(chosen[1]) + 1:
            break
        at = np.flatnonzero(sequence[1:] == key) + 1
        found = _kinds(sequence, at) if len(at) > MIN_STEPS else None
        pause = float(np.median(pause_ns[at - 1])) if found else 0.0
        if found and (chosen is None or pause > chosen[0]):
            chosen = (pause, at, *found)
    if chosen is None or _is_within_a_step(sequence, sequence[chosen[1][0] : chosen[1][-1]], is_launch):
        return None
    _, at, kind, match = chosen
    first = pause_at[at - 1]
    return FoundSteps(
        stream=stream,
        period=0,
        match=match,
        first=first[:-1],
        cut_ns=np.maximum.accumulate(calls["end_ns"])[first - 1],
        kind=kind,
        markers=_markers(calls, first[:-1], int(first[-1])),
    )


def _kinds(sequence: Array, at: Array) -> tuple[Array, float] | None:
    """The kind of the calls between each two of these places, and the share whose kind came again.

    None where that is too little, or of too many kinds.
    """
    kind, repeats = _alike(_sums(sequence)[at])
    match = float(np.diff(at)[repeats[kind] >= MIN_STEPS].sum() / len(sequence))
    return (kind, match) if len(repeats) <= _MAX_KINDS and match >= _MAX_COME_AGAIN else None


def _sums(sequence: Array) -> Array:
    """Prefix sums of a number per key: equal differences between places mean equal sets of calls."""
    weights = np.random.default_rng(0).integers(1, 2**61, int(sequence.max()) + 1)
    return np.append(0, np.cumsum(weights[sequence]))  # wraps around, which is as good for telling sets apart


def _alike(sums: Array) -> tuple[Array, Array]:
    """The kind of the calls between each two places with these sums, and how often each kind came."""
    _, kind, repeats = np.unique(np.diff(sums), return_inverse=True, return_counts=True)
    return kind, repeats


def _between_regular_calls(
    calls: Array, places: Array, sequence: Array, is_launch: Array, stream: int
) -> FoundSteps | None:
    """Steps between two calls of one kind, where phases of other work lie between them: evaluations, a checkpoint.

    Each phase moves what repeats out of step, so that no period holds over all of them. The rarest call qualifies that
    nearly always comes again after one of few kinds of work; a piece with a phase in it is a step of a kind of its own.
    """
    names, sums = _names(calls), _sums(sequence)
    counts = np.bincount(names)
    of_name = np.split(np.argsort(names, kind="stable"), np.cumsum(counts)[:-1])
    is_place = np.zeros(len(calls), bool)
    is_place[places] = True
    enqueued = np.append(0, np.cumsum(is_place))  # on the stream, before each call
    common = np.flatnonzero(counts > _MIN_REGULAR_STEPS).tolist()
    for name in sorted(common, key=lambda one: (counts[one], bool(calls["is_launch"][of_name[one][0]]))):
        first = of_name[name]
        at = enqueued[first]
        kind, repeats = _alike(sums[at])
        lengths = np.diff(at)
        is_regular = (repeats[kind] >= MIN_STEPS) & (lengths <= _MAX_PARTS * np.median(lengths))
        match = float(lengths[is_regular].sum() / len(sequence))
        if not _are_regular(is_regular, len(np.unique(kind[is_regular])), match):
            continue
        inside = sequence[np.flatnonzero(np.repeat(is_regular, lengths)) + at[0]]
        if not _is_within_a_step(sequence, inside, is_launch):
            usual = np.unique(lengths[is_regular])
            period = int(usual[0]) if len(usual) == 1 else 0
            return _cut_at(calls, first, kind, stream, period=period, match=match)
    return None


def _are_regular(is_regular: Array, kinds: int, match: float) -> bool:
    """Whether most pieces, and most calls, are of few kinds of work that came again."""
    is_often = is_regular.sum() >= _MIN_REGULAR_STEPS and is_regular.mean() >= _MAX_REGULAR
    return bool(is_often) and kinds <= _MAX_KINDS and match >= _MIN_REGULAR_MATCH


def _cut_at(calls: Array, at: Array, kind: Array, stream: int, *, period: int, match: float) -> FoundSteps:
    """Steps that begin with these calls of one name, which is their marker."""
    ends = np.maximum.accumulate(calls["end_ns"])
    marker = _marker(calls[at[0]], int(at[0]), at)
    cut_ns = np.where(at > 0, ends[at - 1], calls["start_ns"][at])
    return FoundSteps(
        stream=stream, period=period, match=match, first=at[:-1], cut_ns=cut_ns, kind=kind, markers=(marker,)
    )
