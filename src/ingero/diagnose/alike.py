"""What every epoch lost alike on the device: who takes a CPU now and then has not made that."""

from __future__ import annotations

import numpy as np

from ingero.diagnose.cases import Case


def alike_ns(case: Case) -> int:
    """Of the device's lost time, what the epoch in the middle lost, for all of them; 0 where only some were read.

    A hypervisor that takes a tenth of a CPU makes some waits longer, and leaves that one as it was.
    """
    if case.is_sampled or not len(case.epochs):
        return 0
    excess = np.zeros(len(case.epochs))
    for key, one in case.usual.items():
        mine = case.epochs["class_key"] == key
        excess[mine] = case.epochs["x_ns"][mine] - one.reference.x_ns
    return round(max(float(np.median(excess)), 0.0) * len(case.epochs))
