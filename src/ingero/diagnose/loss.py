"""What a stretch of time lost against a healthier one, end to end: signed, by class of epoch, split by part.

Never the sum of slow calls: launches run ahead of the device, and a stall that run-ahead hides costs nothing. All
functions take the epochs of one lane (`store.arrays.EPOCH_DTYPE`); lanes are never summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MIN_EPOCHS = 20  # fewer say nothing about what is usual
MAX_DEVICE_NOISE = 0.25  # MAD/median; above, the class does different work each time: no verdict about the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What an epoch of one class usually takes: t = e + x + p. In ns.

    t is the median; e, x and p divide it as the middle half of the epochs (by length) divide theirs, so that they add
    up, which medians of each would not. enqueue_ns: median of [f, s]. noise_ratio: MAD/median of t.
    """

    epochs: int
    t_ns: float
    e_ns: float
    x_ns: float
    p_ns: float
    enqueue_ns: float
    noise_ratio: float

    @property
    def can_judge_device(self) -> bool:
        """Whether the class repeats itself well enough for a verdict about the device."""
        return self.noise_ratio <= MAX_DEVICE_NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Time lost by epochs of known classes, ns: loss = empty + busy + late. Negative: they caught up.

    host_low_ns and host_high_ns bound what of `busy_ns` the host alone would have caused (a counterfactual, so that a
    slower device may own the same time, too); what exceeds host_high_ns is the device's. noise_ns: what the loss
    would be if each epoch were off by the usual deviation of its class, in one direction. Epochs of classes without a
    reference count only as `unjudged`.
    """

    epochs: int
    wall_ns: int
    empty_ns: int
    busy_ns: int
    late_ns: int
    host_low_ns: int
    host_high_ns: int
    noise_ns: int
    unjudged: int
    unjudged_ns: int

    @property
    def loss_ns(self) -> int:
        """End to end."""
        return self.empty_ns + self.busy_ns + self.late_ns


def references(baseline: Array, *, min_epochs: int = MIN_EPOCHS) -> dict[int, Reference]:
    """The usual epoch of each class (by class_key) in a healthy stretch; classes with fewer epochs have none."""
    found = {}
    for key in np.unique(baseline["class_key"]):
        members = baseline[baseline["class_key"] == key]
        if len(members) >= min_epochs:
            found[int(key)] = _reference(members)
    return found


def loss(epochs: Array, usual: Mapping[int, Reference]) -> Loss:
    """What these epochs took beyond the usual ones of their classes."""
    judged = [(epochs[epochs["class_key"] == key], reference) for key, reference in usual.items()]
    sums = np.sum([_class_loss(members, reference) for members, reference in judged], axis=0) if judged else np.zeros(6)
    empty, busy, late, host_low, host_high, noise = (round(float(value)) for value in sums)
    is_known = np.isin(epochs["class_key"], list(usual))
    lengths = epochs["b_ns"] - epochs["a_ns"]
    return Loss(
        epochs=int(is_known.sum()),
        wall_ns=int(lengths[is_known].sum()),
        empty_ns=empty,
        busy_ns=busy,
        late_ns=late,
        host_low_ns=min(host_low, host_high),
        host_high_ns=host_high,
        noise_ns=noise,
        unjudged=int((~is_known).sum()),
        unjudged_ns=int(lengths[~is_known].sum()),
    )


def host_paced_ns(epochs: Array, busy_ns: float) -> Array:
    """How long [f, r] had been with the host's launches as they were and a device that needs `busy_ns` for them.

    At checkpoint j, j * step launches were made and the rest yet to come: a lower end, because a stop between two
    checkpoints is only seen at the later one.
    """
    first = epochs["f_ns"]
    paced = np.maximum(epochs["s_ns"] - first, busy_ns)
    launches = np.maximum(epochs["launches"], 1)
    for j in range(epochs["checkpoint_ns"].shape[1]):
        time = epochs["checkpoint_ns"][:, j]
        to_come = np.clip(1 - j * epochs["checkpoint_step"] / launches, 0, 1)
        paced = np.where(time > 0, np.maximum(paced, time - first + busy_ns * to_come), paced)
    result: Array = paced
    return result


def _reference(epochs: Array) -> Reference:
    lengths = epochs["b_ns"] - epochs["a_ns"]
    t = float(np.median(lengths))
    low, high = np.quantile(lengths, (0.25, 0.75))
    middle = epochs[(lengths >= low) & (lengths <= high)]
    parts = np.array([middle[name].sum(dtype=np.float64) for name in ("e_ns", "x_ns", "p_ns")])
    e, x, p = t * parts / max(parts.sum(), 1)
    return Reference(
        epochs=len(epochs),
        t_ns=t,
        e_ns=float(e),
        x_ns=float(x),
        p_ns=float(p),
        enqueue_ns=float(np.median(epochs["s_ns"] - epochs["f_ns"])),
        noise_ratio=float(np.median(np.abs(lengths - t))) / max(t, 1),
    )


def _class_loss(epochs: Array, usual: Reference) -> tuple[float, float, float, float, float, float]:
    busy = epochs["x_ns"] - usual.x_ns
    replayed = np.minimum(host_paced_ns(epochs, usual.x_ns) - usual.x_ns, busy)
    enqueue_excess = np.maximum(epochs["s_ns"] - epochs["f_ns"] - usual.enqueue_ns, 0)
    return (
        float((epochs["e_ns"] - usual.e_ns).sum()),
        float(busy.sum()),
        float((epochs["p_ns"] - usual.p_ns).sum()),
        float(replayed.sum()),
        float(np.minimum(enqueue_excess, np.maximum(busy, 0)).sum()),
        len(epochs) * usual.noise_ratio * usual.t_ns,
    )
