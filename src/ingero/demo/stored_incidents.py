"""Stores the incidents of a finished recording in it, as `ingero trace` does while it records."""

from __future__ import annotations

from pathlib import Path

import apsw

from ingero.capture.loop.live_findings import chain_rows, incident_rows
from ingero.diagnose.diagnosis import diagnose
from ingero.store.reader import open_reader
from ingero.store.writing import tables

_SESSION = 1  # the only one


def store_incidents(path: Path) -> None:
    """Diagnoses a recording of one session and stores the incidents in it."""
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        incidents = diagnose(reader, window).incidents if window else ()
    db = apsw.Connection(str(path))
    try:
        for incident in incidents:
            for table, rows in (
                (tables.INCIDENTS, incident_rows(incident, _SESSION)),
                (tables.CAUSAL_CHAINS, chain_rows(incident, _SESSION)),
            ):
                db.executemany(table.insert_sql(), rows)
    finally:
        db.close()
