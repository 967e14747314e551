"""GPU time that every sync interval lost alike, which an occasional loss of the CPU cannot explain."""

from __future__ import annotations

import numpy as np

from ingero.diagnose.cases.case import Case


def uniform_gpu_excess_ns(case: Case) -> int:
    """The median sync interval's excess of GPU busy time, times their number, ns; 0 for a sample.

    A hypervisor that takes a tenth of a CPU makes some waits longer, but not the median one.
    """
    if case.is_sampled or not len(case.sync_intervals):
        return 0
    excess = np.zeros(len(case.sync_intervals))
    for key, best in case.references.items():
        mine = case.sync_intervals["step_type"] == key
        excess[mine] = case.sync_intervals["busy_ns"][mine] - best.reference.busy_ns
    return round(max(float(np.median(excess)), 0.0) * len(case.sync_intervals))
