"""Narrows a recording of several nodes to one: its tables without the rows of the other nodes.

Code that reads a recording assumes one host, where a pid, a CPU and a cgroup are unique. So a query about a node
runs on a connection that cannot see other nodes' rows, instead of every query naming the node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import apsw

from ingero.store.errors import UnknownNodeError
from ingero.store.opening.own_schema import own_columns

# Rows of one merged file have ids from a multiple of it on (raw_sessions.seq_base).
ID_STEP = 1 << 40

_HEAD = re.compile(r"^CREATE (?:TEMP )?VIEW \w+ AS\s")


def nodes(db: apsw.Connection) -> list[str]:
    """The nodes of a recording by name; "" for sessions without one."""
    return [str(node) for (node,) in db.execute("SELECT DISTINCT node FROM raw_sessions ORDER BY 1")]


def narrow(db: apsw.Connection, node: str) -> None:
    """Make every raw_ table of the connection show one node's rows only, by temporary views of the same names.

    Raises:
        UnknownNodeError: the recording has no such node.
    """
    sessions = list(db.execute("SELECT session, seq_base FROM raw_sessions WHERE node = ?", (node,)))
    if not sessions:
        raise UnknownNodeError(node, nodes(db))
    shown = {str(name): str(text) for name, text in db.execute("SELECT name, sql FROM temp.sqlite_schema")}
    there = {str(name) for (name,) in db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")}
    for table, columns in own_columns().items():
        condition = _condition(table, columns, [int(one) for one, _ in sessions], {int(base) for _, base in sessions})
        if not condition or not (table in shown or table in there):
            continue
        body = f"SELECT * FROM main.{table}"
        if table in shown:
            body = f"SELECT * FROM ({_HEAD.sub('', shown[table])})"
            db.execute(f"DROP VIEW temp.{table}")
        db.execute(f"CREATE TEMP VIEW {table} AS {body} WHERE {condition}")


def _condition(table: str, columns: Collection[str], sessions: Iterable[int], bases: Iterable[int]) -> str:
    if "session" in columns:
        return f"session IN ({', '.join(map(str, sessions)) or 'NULL'})"
    if table == "raw_pruned":
        return f"seq_base IN ({', '.join(map(str, bases)) or 'NULL'})"
    if table == "raw_cgroups":  # "": from a database that an older Ingero merged without keeping the node
        return "node IN ('', (SELECT node FROM raw_sessions LIMIT 1))"
    # a stack is asked for by its hash, which is of one process already
    return "process IN (SELECT process FROM raw_processes)" if "process" in columns and table != "raw_stacks" else ""
