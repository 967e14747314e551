"""Which intervals are a process's steps: from sync to sync of the stream that paces it, or what its calls repeat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingero.store.lanes import Lane

_MOST_LAUNCHES = 0.5  # of a process's, on a stream that paces it
_SYNCS_A_STEP = 0.5  # at least, unless intervals are short: one sync in a hundred steps ends no step
# Longer ones would show a stall too late; steps that repay each other are judged together then (run_ahead.py).
_LONGEST_NS = 250_000_000


def pacing_lanes(synced: Iterable[Lane], steps: Iterable[Lane]) -> dict[int, Lane]:
    """The lane that paces each process. synced: usable ones that can be judged (`main_stream`).

    A stream whose syncs end a step is exact: it says when the GPU was idle. A synced copy stream beside the stream that
    computes says nothing of the steps.
    """
    repeated: Mapping[int, Lane] = {lane.process: lane for lane in steps}
    found: dict[int, Lane] = dict(repeated)
    for lane in sorted(synced, key=lambda one: int(one.epochs["x_ns"].sum())):
        mine = repeated.get(lane.process)
        if mine is None or _ends_steps(lane, mine):
            found[lane.process] = lane
    return dict(sorted(found.items()))


def _ends_steps(lane: Lane, steps: Lane) -> bool:
    """Whether a stream has most launches of the steps, and is synced in most of them or several times a second."""
    begin, end = int(steps.epochs["a_ns"][0]), int(steps.epochs["b_ns"][-1])
    epochs = lane.epochs
    inside = epochs[(epochs["b_ns"] > begin) & (epochs["b_ns"] <= end)]
    if inside["launches"].sum() < _MOST_LAUNCHES * steps.epochs["launches"].sum():
        return False
    return len(inside) >= min(_SYNCS_A_STEP * len(steps.epochs), (end - begin) / _LONGEST_NS)
