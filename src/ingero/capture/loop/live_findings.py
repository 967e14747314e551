"""Diagnoses the recording while it is written, once a second in its own thread, with 2% of a core on average.

It reads what the writer has committed, as every other reader does, and gives the writer rows of incidents.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ingero.capture.budget.cpu_allowance import CpuAllowance
from ingero.capture.loop.heap import return_freed
from ingero.diagnose.incidents.incident_changes import Change
from ingero.diagnose.incidents.incident_json import record_json
from ingero.errors import IngeroError
from ingero.store.writing import tables
from ingero.store.writing.tables import Row
from ingero.store.writing.writer import Writer

if TYPE_CHECKING:
    from ingero.diagnose.findings import Incident
    from ingero.diagnose.live import LiveDiagnosis

log = logging.getLogger(__name__)

MAX_CORE_RATIO = 0.02  # on average (docs/adr/0029-live-and-fast-diagnosis.md)
_LONGEST_PAUSE_S = 60.0
_LONGEST_WAIT_S = 1.0  # for a last pass, by the duration of the one before: stopping a recording must not take long
_SAVED_S = 1.2  # a minute's worth of that is saved: a new incident gets a pass each second
_URGENT_FOR_S = 8.0  # what seems to hang gets a pass each second, whatever the cost;
_URGENT_EVERY_S = 60.0  # so often at most


class LiveFindings:
    """Incidents of a recording as they open, grow and close; a context manager around the recording.

    on_change: called in this object's thread. The writer must be entered before and left after.
    """

    def __init__(self, writer: Writer, on_change: Callable[[Change], None]) -> None:
        self._writer, self._on_change = writer, on_change
        self._is_due, self._is_over, self._ends_pause = (threading.Event() for _ in range(3))
        self._urgent_since_s = -math.inf
        self._is_hurried = False
        self._begin_ns = time.time_ns()
        self._thread = threading.Thread(target=self._run, name="ingero-diagnosis", daemon=True)

    def __enter__(self) -> LiveFindings:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def second_stored(self, hanging: int = 0) -> None:
        """Notes that a second was handed to the writer, so that a pass is due.

        hanging: calls open for over a second as it ended, and processes that make none and wait.
        """
        self._is_due.set()
        now_s = time.monotonic()
        if hanging and now_s - self._urgent_since_s > _URGENT_EVERY_S:
            self._urgent_since_s = now_s
        if hanging and now_s - self._urgent_since_s < _URGENT_FOR_S:
            self._ends_pause.set()

    def is_hurried(self) -> bool:
        """Whether the next pass should come soon: a finding awaits confirmation, or lost time begins."""
        return self._is_hurried

    def close(self) -> None:
        """Makes a last pass, and closes open incidents."""
        self._is_over.set()
        self._is_due.set()
        self._ends_pause.set()
        self._thread.join()

    def _run(self) -> None:
        self._is_due.wait()
        from ingero.diagnose.live import LOOK_BACK_NS  # noqa: PLC0415  # takes 0.1 s that no first call waits for

        begin_ns = self._begin_ns
        while True:
            try:
                self._make_passes_until_over(begin_ns)
                return
            except Exception:  # a bug must end neither the recording nor the findings of weeks
                log.exception("a diagnosis failed and starts over; run ingero explain for the whole recording")
            if self._is_over.wait(_LONGEST_PAUSE_S):
                return
            begin_ns = max(self._begin_ns, time.time_ns() - LOOK_BACK_NS)

    def _make_passes_until_over(self, begin_ns: int) -> None:
        from ingero.diagnose.live import LiveDiagnosis  # noqa: PLC0415  # as above
        from ingero.store.reader import open_reader  # noqa: PLC0415  # as above

        with open_reader(self._writer.path) as reader:
            diagnosis = LiveDiagnosis(reader, begin_ns=begin_ns, first_number=reader.last_incident() + 1)
            try:
                self._make_passes(diagnosis)
            finally:
                for change in diagnosis.tracker.finish():
                    self._report_change(change)

    def _make_passes(self, diagnosis: LiveDiagnosis) -> None:
        allowance = CpuAllowance(MAX_CORE_RATIO, most_s=_SAVED_S)
        is_owed = False  # the pause after the last look was put off
        took_s = 0.0
        while True:
            self._is_due.wait()
            self._is_due.clear()
            self._is_hurried = False
            is_last = self._is_over.is_set()
            if is_last and took_s > _LONGEST_WAIT_S:
                log.debug("no final diagnosis while recording: it takes %.1f s; run ingero explain", took_s)
                break
            took_s = self._make_pass(diagnosis, is_last=is_last, has_time=allowance.is_half_left)
            pause_s = allowance.spend(took_s)
            if is_last:
                break
            is_owed = diagnosis.tracker.is_undecided and not is_owed
            self._is_hurried = is_owed or (diagnosis.has_onset and not pause_s)
            self._ends_pause.wait(0.0 if is_owed else min(pause_s, _LONGEST_PAUSE_S))
            self._ends_pause.clear()  # what closing has set, too: that is due

    def _make_pass(self, diagnosis: LiveDiagnosis, *, is_last: bool, has_time: bool) -> float:
        """Makes one pass and reports the changes; returns the CPU seconds that it took."""
        began_s = time.thread_time()
        try:
            self._writer.flush()
            for change in diagnosis.look(is_last=is_last, has_time=has_time):
                self._report_change(change)
        except IngeroError as error:  # the disk refuses; the writer has said so
            log.debug("not diagnosed: %s", error)
        return_freed()
        return time.thread_time() - began_s

    def _report_change(self, change: Change) -> None:
        rows = incident_rows(change.incident, self._writer.session)
        self._writer.append(tables.INCIDENTS, rows)
        self._writer.append(tables.CAUSAL_CHAINS, chain_rows(change.incident, self._writer.session))
        self._on_change(change)


def incident_rows(incident: Incident, session: int) -> Sequence[Row]:
    """The row of an incident; a later one with the same number replaces it."""
    line = incident.where.line or incident.line
    return tables.INCIDENTS.rows(
        1,
        incident=incident.number,
        session=session,
        cause=incident.cause,
        resource=incident.resource,
        root=incident.root,
        severity=incident.severity.name,
        start_ns=incident.start_ns,
        end_ns=incident.end_ns,
        lost_ns=incident.lost_ns,
        lost_ratio=incident.lost_ratio,
        explained_ratio=incident.explained_ratio,
        peak=incident.peak_ratio,
        summary=incident.summary,
        kind=incident.kind.value,
        affected=json.dumps([record_json(affected) for affected in incident.affected]),
        culprits=json.dumps([record_json(culprit) for culprit in incident.culprits]),
        evidence=json.dumps(dict(incident.evidence)),
        fixes=json.dumps([record_json(fix) for fix in incident.fixes]),
        line=json.dumps(record_json(line) if line else None),
        chain=json.dumps([record_json(link) for link in incident.chain]),
        breakdown=json.dumps(dict(incident.breakdown)),
    )


def chain_rows(incident: Incident, session: int) -> Sequence[Row]:
    """The row of an incident as a causal chain, in the shape of Ingero 0.x."""
    fixes = [f"{fix.text}: {fix.command}" if fix.command else fix.text for fix in incident.fixes]
    timeline = [
        {"layer": "HOST", "op": incident.cause, "detail": link.text, "dur_us": link.seen_ns // 1000}
        for link in incident.chain
    ]
    return tables.CAUSAL_CHAINS.rows(
        1,
        chain=f"{session}-{incident.number}",
        session=session,
        incident=incident.number,
        detected_ns=incident.start_ns,
        severity=incident.severity.name,
        summary=incident.summary,
        root_cause=incident.cause,
        explanation="; ".join(link.text for link in incident.chain),
        recommendations=json.dumps(fixes),
        timeline=json.dumps(timeline),
    )
