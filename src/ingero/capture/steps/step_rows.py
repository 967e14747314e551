"""Makes rows of steps that the kernel has closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from ingero.capture.loop.clocks import WallClock
from ingero.capture.loop.coverage_spans import CoverageSpans
from ingero.capture.records.rows import CODE_OF_OP, SOURCE_OF_OP, Sink
from ingero.events import BLOCKED_KINDS, STATES, SyncIntervalFlag
from ingero.ops import BY_ID, OPS, Kind
from ingero.step_counts import How
from ingero.store.writing import tables
from ingero.store.writing.tables import Rows

Array = np.ndarray[Any, np.dtype[Any]]

_SLEEP = STATES.index("sleep")
_IS_LAUNCH = np.zeros(256, bool)
_IS_LAUNCH[[op.id for op in OPS if op.kind & Kind.LAUNCH]] = True


class StepRows:
    """Writes steps. numbers_of: process numbers of slots. gpus_of: GPU numbers of the database.

    coverage_spans: what was not traced when.
    written: gets the rows.
    """

    def __init__(
        self,
        sink: Sink,
        clock: WallClock,
        *,
        numbers_of: Callable[[Array], list[int]],
        gpus_of: Callable[[Array], Array],
        coverage_spans: CoverageSpans,
        written: Callable[[Rows], None] = lambda _rows: None,
    ) -> None:
        self._sink, self._clock = sink, clock
        self._numbers_of, self._gpus_of = numbers_of, gpus_of
        self._coverage_spans = coverage_spans
        self._written = written

    def write(self, batch: Array) -> None:
        """Writes steps (`struct step_record`)."""
        begin, end = (batch[name].astype(np.int64) for name in ("begin_ns", "end_ns"))
        # Only the end is converted: clocks add up to the step whatever the wall clock does meanwhile.
        end_unix = self._clock.unix_ns(end)
        host, blocked, kinds = with_other_threads(batch)
        flags = batch["flags"].astype(np.int64) | int(SyncIntervalFlag.STEP)
        flags |= self._coverage_spans.changed.touch(begin, end) * int(SyncIntervalFlag.COVERAGE_CHANGED)
        is_untimed = self._coverage_spans.untimed.touch(begin, end) | (batch["is_queue_unknown"] != 0)
        flags |= is_untimed * int(SyncIntervalFlag.UNTIMED)
        flags |= self._coverage_spans.without_launches.touch(begin, end) * int(SyncIntervalFlag.LAUNCHES_UNSEEN)
        how = {False: self._sink.intern(How.REPETITION.value), True: self._sink.intern(How.BOTH.value)}
        rows = tables.STEPS.rows(
            len(batch),
            session=self._sink.session,
            process=self._numbers_of(batch["process_slot"]),
            pid=batch["pid"],
            tid=batch["tid"],
            device=self._gpus_of(batch["device"]),
            stream=batch["stream"],
            start_ns=end_unix - (end - begin),
            end_ns=end_unix,
            how=[how[bool(is_synced)] for is_synced in batch["is_synced"].tolist()],
            step_type=[self._sink.intern(text) for text in self.types(batch)],
            source=SOURCE_OF_OP[batch["op"]],
            op=CODE_OF_OP[batch["op"]],
            function=np.where(_IS_LAUNCH[batch["op"]], batch["function"], 0),
            launches=batch["launches"],
            copies=batch["copies"],
            collectives=batch["collectives"],
            syncs=batch["syncs"],
            host_to_gpu_bytes=batch["to_gpu_bytes"],
            gpu_to_host_bytes=batch["to_host_bytes"],
            flags=flags,
            **{f"blocked_{kind}_ns": kinds[:, index] for index, kind in enumerate(BLOCKED_KINDS)},
            **{f"host_{clock}_ns": host[:, index] for index, clock in enumerate(STATES)},
            **{f"blocked_{clock}_ns": blocked[:, index] for index, clock in enumerate(STATES)},
        )
        self._sink.append(tables.STEPS, rows)
        self._written(rows)

    def types(self, batch: Array) -> list[str]:
        """Step types: equal for steps (`struct step_record`) of equal work, as far as traced."""
        times = [batch[name].astype(np.int64) for name in ("begin_ns", "end_ns")]
        launches, copies = (
            coverage_spans.touch(*times)
            for coverage_spans in (self._coverage_spans.without_launches, self._coverage_spans.without_copies)
        )
        return step_types(batch, without_launches=launches, without_copies=copies)


def step_types(batch: Array, *, without_launches: Array, without_copies: Array) -> list[str]:
    """The type of each step. without_launches, without_copies: of which these were not traced, or not all the time."""
    counts = {name: batch[name].tolist() for name in ("launches", "copies", "collectives")}
    unseen = {"launches": without_launches.tolist(), "copies": without_copies.tolist()}
    return [
        _step_type(
            op, {name: column[at] for name, column in counts.items()}, {name for name in unseen if unseen[name][at]}
        )
        for at, op in enumerate(batch["op"].tolist())
    ]


def _step_type(op: int, counts: Mapping[str, int], unseen: Set[str]) -> str:
    """The type of one step. Untraced calls do not count as zero; collectives appear only if there are any."""
    marker = BY_ID[op].name if op in BY_ID else "?"
    parts = [
        f"{name} not traced" if name in unseen else f"{count} {name}"
        for name, count in counts.items()
        if count or name != "collectives"
    ]
    return f"{', '.join(parts)}, from {marker}"


def with_other_threads(batch: Array) -> tuple[Array, Array, Array]:
    """Host and blocked times of the marker's thread (n, STATES), and what it was blocked for (n, BLOCKED_KINDS).

    A thread that sleeps while another one, as autograd's, is blocked for the GPU is blocked with it. For how long is
    measured; more than its sleep it can only be where the kernel side has repaired that.
    """
    host, blocked = (batch[f"{part}_state_ns"].astype(np.int64) for part in ("host", "blocked"))
    kinds = batch["blocked_ns"].astype(np.int64)
    for kind, measured in enumerate(batch["shared_ns"].astype(np.int64).T):
        shared = np.minimum(host[:, _SLEEP], measured)
        host[:, _SLEEP] -= shared
        blocked[:, _SLEEP] += shared
        kinds[:, kind] += shared
    return host, blocked, kinds
