"""The threads of a process that feed its GPU by turns: what one does while another sleeps until it is done is the step.

PyTorch launches the backward pass from a thread of its own, while the one that called it sleeps. The clocks of an epoch
are of one thread, whose sleep is then most of the step. Here that sleep becomes what the other one did with it: it ran,
or it could have run and others did. What that one waited for in turn stays sleep, and its path tells the rest.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.waits import Segment
from ingero.events import CLOCKS, EpochFlag

Array = np.ndarray[Any, np.dtype[Any]]

WORTH_NS = 200_000  # shorter sleeps hold no recorded interval off the CPU
_STATES = tuple(name for name in ("run", "runq", "throttled", "yielded") if name in CLOCKS)  # on a CPU, or kept off it
_AUTOGRAD = re.compile(r"pt_autograd_\d+")  # the name that PyTorch gives the threads of its backward passes
_SLEEP = CLOCKS.index("sleep")


@dataclass(frozen=True, slots=True)
class Ends:
    """Names of an epoch's fields: the length of a part, whose waits are meant, where it begins and ends, its clocks."""

    length: str
    tid: str
    begin: str
    end: str
    clocks: str


EMPTY = Ends("e_ns", "a_tid", "a_ns", "f_ns", "empty_clock_ns")  # of the draining thread
ENQUEUE = Ends("x_ns", "f_tid", "f_ns", "s_ns", "enqueue_clock_ns")  # of the enqueuing one


class Feeding:
    """The threads of one process that launch.

    threads: their ids. path: what the sleeps of a thread between two moments went into (see `Waits.path`).
    """

    def __init__(self, threads: Collection[int], path: Callable[..., list[Segment]]) -> None:
        self.threads, self._path = frozenset(threads), path

    def has(self, one: Segment) -> bool:
        """Whether a piece of a path is a thread that launches while another one waits for it."""
        return one.depth > 0 and one.tid in self.threads and one.state in _STATES

    def path(self, epoch: Any, ends: Ends) -> list[Segment]:
        """Of a part of an epoch; of a step by repetition without the sleeps in calls that may wait for the GPU."""
        is_step = bool(epoch["flags"] & int(EpochFlag.STEP))
        begin_ns, end_ns = int(epoch[ends.begin]), int(epoch[ends.end])
        return self._path(int(epoch[ends.tid]), begin_ns, end_ns, outside_gpu_calls=is_step)

    def as_one(self, epochs: Array) -> Array:
        """The same epochs (`store.arrays.EPOCH_DTYPE`), with the clocks of these threads as if they were one."""
        if len(self.threads) < 2:
            return epochs
        found: Array = epochs.copy()
        for ends in (EMPTY, ENQUEUE):
            clocks = found[ends.clocks]
            for index in np.flatnonzero(clocks[:, _SLEEP] > WORTH_NS).tolist():
                spent = Counter[str]()
                for one in self.path(found[index], ends):
                    if self.has(one):
                        spent[one.state] += one.duration_ns
                scale = min(1.0, int(clocks[index, _SLEEP]) / max(spent.total(), 1))
                for state, ns in spent.items():
                    clocks[index, CLOCKS.index(state)] += int(ns * scale)
                    clocks[index, _SLEEP] -= int(ns * scale)
        return found

    def spans(self, epochs: Array) -> dict[int, list[tuple[int, int]]]:
        """When these threads ran while another one of them waited, by thread, in the host's parts of these epochs."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for one in self._pieces(epochs) if len(self.threads) > 1 else ():
            if self.has(one) and one.state == "run":
                found[one.tid].append((one.begin_ns, one.end_ns))
        return found

    def _pieces(self, epochs: Array) -> Iterator[Segment]:
        for ends in (EMPTY, ENQUEUE):
            for epoch in epochs[epochs[ends.length] > WORTH_NS]:
                yield from self.path(epoch, ends)


def feeding_threads(launching: Iterable[int], names: Iterable[tuple[int, str]]) -> frozenset[int]:
    """Those with recorded launches and PyTorch's own, whose launches may not have been traced.

    names: ids and names of the process's threads.
    """
    return frozenset(launching) | {tid for tid, name in names if _AUTOGRAD.fullmatch(name)}
