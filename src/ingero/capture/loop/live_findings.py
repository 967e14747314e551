"""Diagnoses the recording while it is written: a thread of its own, once a second, a fiftieth of a core over time.

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

MOST_OF_A_CORE = 0.02
_LONGEST_PAUSE_S = 60.0
_LONGEST_WAIT_S = 1.0  # for a last look, by what the one before took: whoever stops a recording is not kept waiting
_SAVED_S = 1.2  # a minute's worth of that is kept: an incident is looked at each second while it is new
_URGENT_FOR_S = 8.0  # what seems to hang is looked at each second, whatever looks have cost;
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
        """A second has been handed to the writer: there may be something to find.

        hanging: calls open for over a second as it ended, and processes that make none and wait.
        """
        self._is_due.set()
        now_s = time.monotonic()
        if hanging and now_s - self._urgent_since_s > _URGENT_EVERY_S:
            self._urgent_since_s = now_s
        if hanging and now_s - self._urgent_since_s < _URGENT_FOR_S:
            self._ends_pause.set()

    def is_hurried(self) -> bool:
        """Whether the next look is wanted soon: the last one saw what another will tell, or that a loss begins."""
        return self._is_hurried

    def close(self) -> None:
        """Looks a last time, and closes what is open."""
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
                self._look_until_over(begin_ns)
                return
            except Exception:  # a bug must end neither the recording nor the findings of weeks
                log.exception("a diagnosis failed and starts over; run ingero explain for the whole recording")
            if self._is_over.wait(_LONGEST_PAUSE_S):
                return
            begin_ns = max(self._begin_ns, time.time_ns() - LOOK_BACK_NS)

    def _look_until_over(self, begin_ns: int) -> None:
        from ingero.diagnose.live import LiveDiagnosis  # noqa: PLC0415  # as above
        from ingero.store.reader import open_reader  # noqa: PLC0415  # as above

        with open_reader(self._writer.path) as reader:
            diagnosis = LiveDiagnosis(reader, begin_ns=begin_ns, first_number=reader.last_incident() + 1)
            try:
                self._look_on(diagnosis)
            finally:
                for change in diagnosis.tracker.finish():
                    self._tell(change)

    def _look_on(self, diagnosis: LiveDiagnosis) -> None:
        allowance = CpuAllowance(MOST_OF_A_CORE, most_s=_SAVED_S)
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
            took_s = self._look(diagnosis, is_last=is_last, has_time=allowance.is_half_left)
            pause_s = allowance.spend(took_s)
            if is_last:
                break
            is_owed = diagnosis.tracker.is_undecided and not is_owed
            self._is_hurried = is_owed or (diagnosis.sees_a_beginning and not pause_s)
            self._ends_pause.wait(0.0 if is_owed else min(pause_s, _LONGEST_PAUSE_S))
            self._ends_pause.clear()  # what closing has set, too: that is due

    def _look(self, diagnosis: LiveDiagnosis, *, is_last: bool, has_time: bool) -> float:
        """Tells what has changed; answers the CPU seconds that it took."""
        began_s = time.thread_time()
        try:
            self._writer.flush()
            for change in diagnosis.look(is_last=is_last, has_time=has_time):
                self._tell(change)
        except IngeroError as error:  # the disk refuses; the writer has said so
            log.debug("not diagnosed: %s", error)
        return_freed()
        return time.thread_time() - began_s

    def _tell(self, change: Change) -> None:
        rows = incident_rows(change.incident, self._writer.session)
        self._writer.append(tables.INCIDENTS, rows)
        self._writer.append(tables.CAUSAL_CHAINS, chain_rows(change.incident, self._writer.session))
        self._on_change(change)


def incident_rows(one: Incident, session: int) -> Sequence[Row]:
    """Its row; a later one of the same number replaces it."""
    line = one.where.line or one.line
    return tables.INCIDENTS.rows(
        1,
        incident=one.number,
        session=session,
        cause=one.cause,
        resource=one.resource,
        root=one.root,
        severity=one.severity.name,
        start_ns=one.start_ns,
        end_ns=one.end_ns,
        lost_ns=one.lost_ns,
        lost_ratio=one.lost_ratio,
        explained_ratio=one.explained_ratio,
        peak=one.peak_ratio,
        summary=one.summary,
        kind=one.kind.value,
        affected=json.dumps([record_json(affected) for affected in one.affected]),
        culprits=json.dumps([record_json(culprit) for culprit in one.culprits]),
        evidence=json.dumps(dict(one.evidence)),
        fixes=json.dumps([record_json(fix) for fix in one.fixes]),
        line=json.dumps(record_json(line) if line else None),
        chain=json.dumps([record_json(link) for link in one.chain]),
        breakdown=json.dumps(dict(one.breakdown)),
    )


def chain_rows(one: Incident, session: int) -> Sequence[Row]:
    """The same in the shape in which Ingero 0.x stored chains."""
    fixes = [f"{fix.text}: {fix.command}" if fix.command else fix.text for fix in one.fixes]
    timeline = [
        {"layer": "HOST", "op": one.cause, "detail": link.text, "dur_us": link.seen_ns // 1000} for link in one.chain
    ]
    return tables.CAUSAL_CHAINS.rows(
        1,
        chain=f"{session}-{one.number}",
        session=session,
        incident=one.number,
        detected_ns=one.start_ns,
        severity=one.severity.name,
        summary=one.summary,
        root_cause=one.cause,
        explanation="; ".join(link.text for link in one.chain),
        recommendations=json.dumps(fixes),
        timeline=json.dumps(timeline),
    )
