"""Databases of Ingero 0.8 to 0.17: today's tables and published views over an old file that stays untouched."""

from __future__ import annotations

import re
from pathlib import Path

import apsw

from ingero.store import views, vocabulary
from ingero.store.opening.own_schema import require_tables_of_older
from ingero.store.sql_text import sql_text
from ingero.store.writing.migrations import NEWEST_VERSION

# Tables of schema.sql that such a file can answer; the rest was not recorded.
RECORDED = frozenset(
    {"raw_sessions", "raw_processes", "raw_events", "raw_offcpu", "raw_op_stats", "raw_snapshots", "raw_stacks"}
    | {"raw_causal_chains", "raw_cgroups"}
)

# Columns that came with later versions, with what stands in for them.
_LATER_COLUMNS = {
    "sessions.node": ("sessions", "node", "node", "''"),
    "events.node": ("events", "node", "e.node", "''"),
    "events.cgroup_id": ("events", "cgroup_id", "e.cgroup_id", "0"),
    "events.comm": ("events", "comm", "e.comm", "''"),
    "chains.node": ("causal_chains", "node", "node", "''"),
    "s.rank": ("sessions", "rank", "s.rank", "NULL"),
    "s.local_rank": ("sessions", "local_rank", "s.local_rank", "NULL"),
    "s.world_size": ("sessions", "world_size", "s.world_size", "NULL"),
}
_AGGREGATES = (
    "(SELECT 0 AS bucket, 0 AS source, 0 AS op, 0 AS pid, 0 AS count, 0 AS stored, 0 AS sum_dur, 0 AS max_dur, "
    "0 AS sum_arg0 WHERE false)"
)
_CGROUPS = "(SELECT 0 AS cgroup_id, '' AS container_id, '' AS cgroup_path, '' AS pod_name, '' AS namespace WHERE false)"

_PROCESS = "e.pid"
_PROCESS_OF_NODE = "((SELECT min(session) FROM raw_sessions s WHERE s.node = e.node) << 23 | e.pid)"

_SUM_OF_STORED = """
INSERT INTO raw_op_stats(session, start_ns, period_s, process, source, op, count, recorded, nested, errors, sum_ns,
                         max_ns, bytes)
SELECT session, start_ns / 1000000000 * 1000000000, 1, process, source, op, count(*), count(*), NULL,
       sum(ret_code <> 0), sum(duration_ns), max(duration_ns), sum(arg0)
FROM raw_events GROUP BY 2, 4, 5, 6
"""


def attach(db: apsw.Connection, uri: str, path: Path) -> bool:
    """Attach an old file read-only to an in-memory connection and give it today's tables and views.

    Answers whether its operation totals are exact; they are not where the file lost its aggregates: then they are sums
    of the calls that happened to be stored.
    """
    db.execute("ATTACH ? AS old", (uri,))
    require_tables_of_older(db, path)
    db.execute(sql_text("schema.sql"))
    vocabulary.fill(db)
    db.execute("DROP TABLE main.raw_events; DROP TABLE main.raw_offcpu")
    _run(db, "legacy.sql")
    if _has_several_nodes(db):
        _run(db, "legacy_nodes.sql")
    views.make_temporary(db, are_all_there=True, version=NEWEST_VERSION)
    is_exact = bool(next(iter(db.execute("SELECT EXISTS (SELECT 1 FROM raw_op_stats)")))[0])
    if not is_exact:
        db.execute(_SUM_OF_STORED)
    return is_exact


def version_of(db: apsw.Connection) -> str:
    """The schema version that the old file states, e.g. "0.9"; "" if none."""
    if not _columns(db, "schema_info"):
        return ""
    rows = list(db.execute("SELECT value FROM old.schema_info WHERE key = 'version'"))
    return str(rows[0][0]) if rows else ""


def _run(db: apsw.Connection, name: str) -> None:
    db.execute(re.sub(r"\{([\w.]+)\}", lambda mark: _fill(db, mark[1]), sql_text(name)))


def _has_several_nodes(db: apsw.Connection) -> bool:
    if "node" not in _columns(db, "sessions") or "node" not in _columns(db, "events"):
        return False
    return bool(next(iter(db.execute("SELECT count(DISTINCT node) > 1 FROM old.sessions")))[0])


def _fill(db: apsw.Connection, mark: str) -> str:
    if mark == "process":
        return _PROCESS_OF_NODE if _has_several_nodes(db) else _PROCESS
    if mark == "aggregates":
        return "old.event_aggregates" if _columns(db, "event_aggregates") else _AGGREGATES
    if mark == "cgroups":
        return "old.cgroup_metadata" if _columns(db, "cgroup_metadata") else _CGROUPS
    if mark == "events.seq":
        is_number = next(iter(db.execute("SELECT type FROM pragma_table_info('events', 'old') WHERE name = 'id'")))
        text = "CAST(substr(e.id, instr(e.id, ':') + 1) AS INTEGER)"
        return "e.id" if is_number[0] == "INTEGER" else text
    table, column, expression, default = _LATER_COLUMNS[mark]
    return expression if column in _columns(db, table) else default


def _columns(db: apsw.Connection, table: str) -> set[str]:
    return {str(name) for (name,) in db.execute("SELECT name FROM pragma_table_info(?, 'old')", (table,))}
