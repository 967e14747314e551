"""Makes rows of progress marks: how far a stream was when a call that had waited for the GPU returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingero.capture.loop.clocks import WallClock
from ingero.capture.records.rows import Sink
from ingero.events import BLOCKED_KINDS
from ingero.store.writing import tables

Array = np.ndarray[Any, np.dtype[Any]]

QUEUE_DEPTH = 1022  # operations of one stream, as on V100 and H100; fewer fit of several streams, or of graphs
_KINDS = {"sync": "sync", "copy": "copy", "launch": "full_queue"}
_FULL = BLOCKED_KINDS.index("launch")


class MarkRows:
    """Writes progress marks. numbers_of: process numbers of slots. gpus_of: GPU numbers of the database."""

    def __init__(
        self,
        sink: Sink,
        clock: WallClock,
        *,
        numbers_of: Callable[[Array], list[int]],
        gpus_of: Callable[[Array], Array],
    ) -> None:
        self._sink, self._clock = sink, clock
        self._numbers_of, self._gpus_of = numbers_of, gpus_of
        self._depths: dict[int, int] = {}  # by slot
        self._reached: dict[tuple[int, int], int] = {}  # by slot and stream: the last position

    def add(self, batch: Array) -> None:
        """Writes marks (`struct mark_record`), without those that say less than an earlier one of their stream."""
        batch = batch[np.argsort(batch["time_ns"], kind="stable")]
        positions = self.positions(batch)
        kept = positions > 0
        if not kept.any():
            return
        batch, positions = batch[kept], positions[kept]
        names = [_KINDS.get(BLOCKED_KINDS[kind], "sync") for kind in batch["kind"].tolist()]
        rows = tables.PROGRESS_MARKS.rows(
            len(batch),
            session=self._sink.session,
            process=self._numbers_of(batch["process_slot"]),
            device=self._gpus_of(batch["device"]),
            stream=batch["stream"],
            kind=[self._sink.intern(name) for name in names],
            position=positions,
            queued=batch["queued"],
            blocked_ns=batch["waited_ns"],
            time_ns=self._clock.unix_ns(batch["time_ns"]),
        )
        self._sink.append(tables.PROGRESS_MARKS, rows)

    def positions(self, batch: Array) -> Array:
        """The position of the stream at each mark; 0: no further than already known."""
        found = np.zeros(len(batch), np.int64)
        for index, mark in enumerate(batch):
            slot, stream = int(mark["process_slot"]), int(mark["stream"])
            position = int(mark["position"])
            if int(mark["kind"]) == _FULL:
                position = int(mark["queued"]) - self._depth(slot, int(mark["outstanding"]))
            if position > self._reached.get((slot, stream), 0):
                found[index] = self._reached[slot, stream] = position
        return found

    def _depth(self, slot: int, outstanding: int) -> int:
        """The depth of the launch queue: what was outstanding when a launch first found it full."""
        depth = self._depths[slot] = min(self._depths.get(slot, QUEUE_DEPTH), outstanding)
        return depth

    def forget(self, slot: int) -> None:
        """Forgets an ended process: a later one in its slot begins anew."""
        self._depths.pop(slot, None)
        for key in [key for key in self._reached if key[0] == slot]:
            del self._reached[key]
