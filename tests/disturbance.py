"""Measurements that other work on the machine may spoil: made again while it does, judged at once where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bench.incidents.ambient import MAX_OTHERS, Usage

_ROUNDS = 6

T = TypeVar("T")


def measured(measure: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """The first measurement that holds or that nobody disturbed; of a machine that is never quiet, the last.

    measure: leaves no child running.
    """
    for _ in range(_ROUNDS):
        before = Usage.now()
        found = measure()
        if holds(found) or Usage.now().others_since(before) <= MAX_OTHERS:
            break
    return found
