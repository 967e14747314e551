"""Finds the steps of a program in its own calls: what it enqueues repeats, and with it everything else it does.

A program's loop enqueues the same calls on its main stream in the same order, step after step. In recordings of real
training the period of that sequence is the step that the program marked itself, to the call (docs/adr/0044). Steps of
several kinds in no order have no period; then a call that comes once in each of them cuts them.
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
_MOST_CANDIDATES = 256  # periods that are compared: the step's is among the gaps of calls that come once a step
_MOST_KINDS = 4  # of steps; what lies between two calls of one kind of step is of ever more
_MOST_COME_AGAIN = 0.95  # of the calls are in steps whose kind came again


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The call that happens once a step. near_boundary: how many calls it lies from the longest pause of the host."""

    key: int
    tid: int
    is_launch: bool
    near_boundary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What repeats. stream: the one whose enqueues were compared.

    period: enqueues on that stream in a step; 0 where steps are of several kinds. match: share of them that are equal
    to those a period earlier. first: of each step the index of its first call. cut_ns: where steps begin, and behind
    the last one where that ends. A step begins when the last call of the one before has returned; the first one seen,
    with its first call, unless it was cut. kind: of each step, equal numbers for equal work. markers: calls that come
    once a step, best first; none where each comes more often.
    """

    stream: int
    period: int
    match: float
    first: Array
    cut_ns: Array
    kind: Array
    markers: tuple[Marker, ...]

    @property
    def count(self) -> int:
        """How many whole steps were seen."""
        return len(self.first)


def find_steps(calls: Array) -> Steps | None:
    """The steps in calls (CALL_DTYPE, by start_ns) of one process; None where nothing repeats often enough."""
    stream = main_stream(calls)
    if stream is None:
        return None
    places: Array = np.flatnonzero(calls["is_enqueue"] & (calls["stream"] == stream))
    sequence: Array = np.unique(calls["key"][places], return_inverse=True)[1].astype(np.int32)
    is_launch: Array = calls["is_launch"][places]
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
    """Whether another one, which may end early, is nearly the same."""
    return bool((period[: len(other)] == other).mean() >= MIN_MATCH) if len(other) else True


def _match(sequence: Array, lag: int) -> float:
    return float((sequence[lag:] == sequence[:-lag]).mean())


def _candidates(sequence: Array) -> list[int]:
    """Distances between two calls with the same key, of the rarest keys: those come once a step."""
    counts = np.bincount(sequence)
    by_key = np.split(np.argsort(sequence, kind="stable"), np.cumsum(counts)[:-1])
    found: Counter[int] = Counter()
    for key in np.argsort(counts, kind="stable").tolist():
        gaps, repeats = np.unique(np.diff(by_key[key]), return_counts=True)
        found.update(dict(zip(gaps.tolist(), repeats.tolist(), strict=True)))
        if len(found) >= 2 * _MOST_CANDIDATES:
            break
    return [gap for gap, _ in found.most_common(_MOST_CANDIDATES)]


def _is_within_a_step(sequence: Array, part: Array, is_launch: Array) -> bool:
    """Whether what repeats is rather a layer of a model: nothing but launches, and other calls come beside it.

    A forward pass repeats its layers; a step has other calls, too, or nothing lies between two of them. part: what
    repeats.
    """
    is_part = np.isin(sequence, part)
    return bool(is_launch[is_part].all() and not is_part.all())


def _usual(sequence: Array, period: int) -> Array:
    """The period as most of its repeats have it."""
    repeats = sequence[: len(sequence) // period * period].reshape(-1, period)
    return np.array([np.bincount(column).argmax() for column in repeats.T])


def _periodic(calls: Array, places: Array, sequence: Array, period: int, match: float, stream: int) -> Steps:
    """Cut where the host pauses longest, or at the begin of calls that are nothing but whole steps."""
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
    return Steps(
        stream=stream,
        period=period,
        match=match,
        first=first,
        cut_ns=cut_ns,
        kind=np.zeros(len(first), np.int64),
        markers=_markers(calls, first, int(np.searchsorted(calls["start_ns"], cut_ns[-1]))),
    )


def _pauses(calls: Array, places: Array) -> tuple[Array, Array]:
    """Between each two enqueues on the stream the longest time without any call, ns, and the call behind it."""
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


def _markers(calls: Array, first: Array, end: int) -> tuple[Marker, ...]:
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
    """A number for each pair of key and thread, the same wherever it comes."""
    names: Array = np.unique(calls[["key", "tid"]], return_inverse=True)[1].reshape(-1)
    return names


def _marker(call: np.void, at: int, bounds: Array) -> Marker:
    near = int(np.abs(bounds - bounds[0] - at).min())
    return Marker(key=int(call["key"]), tid=int(call["tid"]), is_launch=bool(call["is_launch"]), near_boundary=near)


def _least_first(marker: Marker) -> tuple[bool, int]:
    return marker.is_launch, marker.near_boundary


def _of_several_kinds(calls: Array, places: Array, sequence: Array, is_launch: Array, stream: int) -> Steps | None:
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
    return Steps(
        stream=stream,
        period=0,
        match=match,
        first=first[:-1],
        cut_ns=np.maximum.accumulate(calls["end_ns"])[first - 1],
        kind=kind,
        markers=_markers(calls, first[:-1], int(first[-1])),
    )


def _kinds(sequence: Array, at: Array) -> tuple[Array, float] | None:
    """The kind of what lies between each two of these places, and the share of it whose kind came again.

    None where that is too little, or of too many kinds.
    """
    weights = np.random.default_rng(0).integers(1, 2**61, int(sequence.max()) + 1)
    sums = np.append(0, np.cumsum(weights[sequence]))  # wraps around, which is as good for telling sets apart
    kinds, kind, repeats = np.unique(np.diff(sums[at]), return_inverse=True, return_counts=True)
    match = float(np.diff(at)[repeats[kind] >= MIN_STEPS].sum() / len(sequence))
    return (kind, match) if len(kinds) <= _MOST_KINDS and match >= _MOST_COME_AGAIN else None
