"""The best sustained regime of a lane: what an epoch of each class takes when nothing is wrong.

Epochs of one class are cut into chunks; the chunks as fast as the fastest are pooled and make the reference. Pooling
keeps the minimum over many chunks from being a lucky one. A chunk slowed by an incident never joins, so that the
reference is frozen while one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.loss import MIN_EPOCHS, Reference
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_NS = 1_500_000_000
SAME_REGIME = 0.01  # means this close are one regime: healthy seconds of one loop differ by 0.1 to 0.7 %
_SIGMA_OF_MAD = 1.48
_NOT_RECORDED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """One class at its best: the reference, the clocks of each part per epoch (ns, order of CLOCKS), and when.

    chunk_noise_ratio: how much the means of healthy chunks differ, one sigma.
    """

    reference: Reference
    empty_clock_ns: Array
    enqueue_clock_ns: Array
    drain_clock_ns: Array
    chunk_noise_ratio: float
    chunk_epochs: int
    windows: tuple[Window, ...]

    def noise_of(self, epochs: int) -> float:
        """One sigma of the mean length of so many epochs, as a ratio."""
        alone = self.reference.noise_ratio * _SIGMA_OF_MAD / max(epochs, 1) ** 0.5
        return float(max(alone, self.chunk_noise_ratio * min(1.0, (self.chunk_epochs / max(epochs, 1)) ** 0.5)))


def usual_epochs(epochs: Array) -> dict[int, Usual]:
    """The best regime of each class with enough epochs; `epochs` are of one lane, in order of time."""
    found: dict[int, Usual] = {}
    for key in np.unique(epochs["class_key"]):
        members = epochs[epochs["class_key"] == key]
        if len(members) >= MIN_EPOCHS:
            found[int(key)] = _usual(members)
    return found


def reference_windows(usual: Mapping[int, Usual]) -> tuple[Window, ...]:
    """The stretches of time that the references come from, joined where they touch."""
    joined: list[Window] = []
    for window in sorted((w for one in usual.values() for w in one.windows), key=lambda w: w.begin_ns):
        if joined and window.begin_ns <= joined[-1].end_ns:
            joined[-1] = Window(begin_ns=joined[-1].begin_ns, end_ns=max(joined[-1].end_ns, window.end_ns))
        else:
            joined.append(window)
    return tuple(joined)


def _usual(members: Array) -> Usual:
    chunks = list(_chunks(members))
    means = np.array([_lengths(chunk).mean() for chunk in chunks])  # a median does not see one stall in eight
    best = chunks[int(means.argmin())]
    slack = max(SAME_REGIME, 2 * _noise_of_mean(best))
    healthy = [chunk for chunk, mean in zip(chunks, means, strict=True) if mean <= means.min() * (1 + slack)]
    pool = np.concatenate(healthy)
    usual = _reference(pool)
    ratios = np.array([_lengths(chunk).mean() / max(usual.t_ns, 1) - 1 for chunk in healthy])
    return Usual(
        reference=usual,
        empty_clock_ns=_clocks(pool, "empty"),
        enqueue_clock_ns=_clocks(pool, "enqueue"),
        drain_clock_ns=_clocks(pool, "drain"),
        chunk_noise_ratio=float(np.median(np.abs(ratios - np.median(ratios)))) * _SIGMA_OF_MAD,
        chunk_epochs=int(np.median([len(chunk) for chunk in healthy])),
        windows=tuple(Window(begin_ns=int(c["a_ns"][0]), end_ns=int(c["b_ns"][-1]) + 1) for c in healthy),
    )


def _reference(pool: Array) -> Reference:
    """Means, so that the parts add up: nothing but healthy chunks is in the pool."""
    lengths = _lengths(pool)
    median = float(np.median(lengths))
    return Reference(
        epochs=len(pool),
        t_ns=float(lengths.mean()),
        e_ns=float(pool["e_ns"].mean()),
        x_ns=float(pool["x_ns"].mean()),
        p_ns=float(pool["p_ns"].mean()),
        enqueue_ns=float((pool["s_ns"] - pool["f_ns"]).mean()),
        noise_ratio=float(np.median(np.abs(lengths - median))) / max(median, 1),
    )


def _chunks(members: Array) -> Iterator[Array]:
    """Pieces of at least MIN_EPOCHS epochs and CHUNK_NS; what is left over joins the last one."""
    starts = [0]
    while True:
        begin = starts[-1]
        late_enough = int(np.searchsorted(members["b_ns"], members["a_ns"][begin] + CHUNK_NS))
        after = max(begin + MIN_EPOCHS, late_enough + 1)
        if after + MIN_EPOCHS > len(members):
            break
        starts.append(after)
    ends = [*starts[1:], len(members)]
    yield from (members[first:last] for first, last in zip(starts, ends, strict=True))


def _lengths(epochs: Array) -> Array:
    lengths: Array = epochs["b_ns"] - epochs["a_ns"]
    return lengths


def _noise_of_mean(epochs: Array) -> float:
    """Its standard error, as a ratio."""
    lengths = _lengths(epochs)
    median = float(np.median(lengths))
    return float(np.median(np.abs(lengths - median)) * _SIGMA_OF_MAD / max(median, 1) / len(epochs) ** 0.5)


def _clocks(pool: Array, part: str) -> Array:
    clocks = pool[f"{part}_clock_ns"]
    known = clocks[clocks[:, 0] != _NOT_RECORDED]
    mean: Array = known.mean(axis=0) if len(known) else np.zeros(clocks.shape[1])
    return mean
