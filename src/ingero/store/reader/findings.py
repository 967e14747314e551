"""Incidents that were found while recording."""

from __future__ import annotations

from ingero.store.conditions import within
from ingero.store.reader.questions import Questions, fields_of
from ingero.store.records import CausalChain, StoredIncident, Window


class FindingQuestions(Questions):
    """Queries for stored findings."""

    def incidents(self, window: Window) -> list[StoredIncident]:
        """Incidents found while recording that overlap the window, oldest first."""
        return self._records(
            StoredIncident,
            f"SELECT {fields_of(StoredIncident)} FROM raw_incidents WHERE start_ns < :end "
            f"AND coalesce(end_ns, :end) >= :begin ORDER BY start_ns, incident",
            window,
            table="raw_incidents",
        )

    def last_incident(self) -> int:
        """The highest incident number; 0 if there are no incidents."""
        return int(self._rows("SELECT coalesce(max(incident), 0) FROM raw_incidents")[0][0])

    def causal_chains(self, window: Window, *, without_incident: bool = False) -> list[CausalChain]:
        """Stored chains that were detected in the window, oldest first.

        without_incident: only chains of older versions; today's are copies of incidents in the older shape.
        """
        only = " AND c.incident IS NULL" if without_incident else ""
        return self._records(
            CausalChain,
            "SELECT c.chain, coalesce(s.node, ''), c.detected_ns, c.severity, c.summary, c.root_cause, c.explanation, "
            "c.recommendations, c.cuda_op, c.cuda_p99_us, c.cuda_p50_us, c.tail_ratio, c.timeline "
            "FROM raw_causal_chains c LEFT JOIN raw_sessions s ON s.session = c.session "
            f"WHERE {within('c.detected_ns')}{only} ORDER BY c.detected_ns, c.chain",
            window,
        )
