"""Sync intervals whose launches were not traced: the host's part and the wait are known, the GPU's time is not.

The host's part is from the return of one sync to the start of the next one, and GPU busy is the wait inside that sync.
Part of the host's time passed while the GPU was busy, so that it lost only what made the entire interval longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.events import SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

# Of an interval; with a shorter wait the GPU was done before the host synced, so that the host set the pace.
NO_WAIT_RATIO = 0.05


def has_untraced_launches(sync_intervals: Array) -> Array:
    """A mask of the intervals some of whose launches, copies or events were not traced."""
    found: Array = (sync_intervals["flags"] & int(SyncIntervalFlag.ENQUEUES_UNSEEN)) != 0
    return found


def are_launches_unknown(sync_intervals: Array) -> Array:
    """A mask of the intervals and steps whose launches were not traced: they count as time outside calls."""
    unseen = int(SyncIntervalFlag.ENQUEUES_UNSEEN | SyncIntervalFlag.LAUNCHES_UNSEEN)
    found: Array = (sync_intervals["flags"] & unseen) != 0
    return found


def is_host_paced(sync_intervals: Array) -> Array:
    """A mask of the intervals whose sync found the GPU done, so that the host's part is all of the interval."""
    found: Array = sync_intervals["busy_ns"] < NO_WAIT_RATIO * (
        sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    )
    return found


def host_growth_ns(sync_intervals: Array, host_ns: float, wait_ns: float) -> Array:
    """The part of each interval's growth that the host caused, ns, signed. host_ns, wait_ns: of the reference.

    A late host makes the wait shorter, and only the rest of its delay is lost. The remaining growth is the GPU's.
    """
    host = sync_intervals["idle_ns"] - host_ns
    grown = host + sync_intervals["busy_ns"] - wait_ns
    result: Array = np.clip(host, np.minimum(grown, 0), np.maximum(grown, 0))
    return result
