"""What every sync interval lost alike on the GPU: who takes a CPU now and then has not made that."""

from __future__ import annotations

import numpy as np

from ingero.diagnose.cases.case import Case


def alike_ns(case: Case) -> int:
    """Of the GPU's lost time, what the sync interval in the middle lost, for all of them; 0 where only some were read.

    A hypervisor that takes a tenth of a CPU makes some waits longer, and leaves that one as it was.
    """
    if case.is_sampled or not len(case.sync_intervals):
        return 0
    excess = np.zeros(len(case.sync_intervals))
    for key, one in case.usual.items():
        mine = case.sync_intervals["step_type"] == key
        excess[mine] = case.sync_intervals["busy_ns"][mine] - one.reference.busy_ns
    return round(max(float(np.median(excess)), 0.0) * len(case.sync_intervals))
