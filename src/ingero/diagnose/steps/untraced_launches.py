"""Sync intervals whose launches were not traced: what is the host's part and what the wait is known, the GPU's is not.

From one sync's return to the next one's entry is the host's part, and GPU busy is the wait in that. Part of the host's
time passed while the GPU was busy, so that only what made the whole interval longer was lost by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.events import SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

NO_WAIT_RATIO = (
    0.05  # of an interval; with less the GPU had finished before the host asked, so that the host set the pace
)


def is_unseen(sync_intervals: Array) -> Array:
    """Per interval, whether some of its launches, copies or events were not traced."""
    found: Array = (sync_intervals["flags"] & int(SyncIntervalFlag.ENQUEUES_UNSEEN)) != 0
    return found


def is_host_paced(sync_intervals: Array) -> Array:
    """Per interval, whether the sync found the GPU ready: then the host's part is all of it."""
    found: Array = sync_intervals["busy_ns"] < NO_WAIT_RATIO * (
        sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    )
    return found


def host_growth_ns(sync_intervals: Array, host_ns: float, wait_ns: float) -> Array:
    """Of each interval's growth beyond the usual host's part and wait, what the host's part made longer; signed.

    A host that is late makes the wait shorter, and only the rest of its delay is lost. The remainder is the GPU's.
    """
    host = sync_intervals["idle_ns"] - host_ns
    grown = host + sync_intervals["busy_ns"] - wait_ns
    result: Array = np.clip(host, np.minimum(grown, 0), np.maximum(grown, 0))
    return result
