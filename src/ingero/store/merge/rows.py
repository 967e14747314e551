"""Copies the rows of one file into the merged one: numbers of sessions, processes, texts, stacks and cgroups change.

Every statement reads `raw_*` of the source (temporary views or tables of its connection) and writes `out.raw_*`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache

import apsw

from ingero.store.merge.part import Part
from ingero.store.merge.plan import PlannedSession
from ingero.store.merge.source import Source
from ingero.store.opening.own_schema import own_columns
from ingero.store.secrets import without_secrets
from ingero.store.sql_text import Value, sql_text

# Made before the others: rows of these are what others name.
_FIRST = ("raw_strings", "raw_sessions", "raw_cgroups", "raw_stacks")

_MAPS = """
CREATE TEMP TABLE session_map(old INTEGER PRIMARY KEY, new INTEGER, node TEXT, uuid TEXT, id_add INTEGER,
                              cgroup_add INTEGER, cgroup_base INTEGER, seq_base INTEGER);
CREATE TEMP TABLE group_map(base INTEGER PRIMARY KEY, base_add INTEGER, node TEXT);
CREATE TEMP TABLE string_map(old INTEGER PRIMARY KEY, new INTEGER);
CREATE TEMP TABLE stack_map(old INTEGER PRIMARY KEY, new INTEGER);
CREATE TEMP TABLE skipped_processes(process INTEGER PRIMARY KEY);
"""

# Of an affected process's JSON: its process's number in the file. What is no array of objects holds none.
_AFFECTED = """iif(json_valid(s.affected), (SELECT json_group_array(json(iif(json_type(value, '$.process') = 'integer'
    AND value ->> '$.process' <> 0, json_set(value, '$.process', (value ->> '$.process') + :process_add), value)))
    FROM json_each(s.affected) WHERE type = 'object'), s.affected)"""

_CHAIN = "iif(m.node <> '' AND substr(s.chain, 1, length(m.node) + 1) <> m.node || ':', m.node || ':', '') || s.chain"


def copy_rows(
    source: Source, sessions: Iterable[PlannedSession], *, id_add: int, part: Part | None = None
) -> Iterator[tuple[str, int]]:
    """Copy all that a source has of the sessions that are taken from it; yields each table with how many rows came.

    id_add: of rows that name no session. part: only what belongs to it. Raises apsw.Error where the file holds what no
    recorder writes.
    """
    copy = _Copy(source, tuple(sessions), id_add, part)
    for table in (*_FIRST, *(name for name in own_columns() if name not in _FIRST and name.startswith("raw_"))):
        if table in source.tables or (table == "raw_strings" and source.older_version):
            yield table, copy.table(table)


class _Copy:
    def __init__(self, source: Source, sessions: tuple[PlannedSession, ...], id_add: int, part: Part | None) -> None:
        self._source, self._db = source, source.db
        self._part = part.with_what_reaches_in(source.db, source.tables) if part else None
        if part:
            self._db.create_scalar_function("without_secrets", _hidden, 1, deterministic=True)
        self._db.execute(_MAPS)
        self._fill_maps(sessions)
        self._has_new_stacks = False
        self._values: dict[str, int | str] = {
            "process_add": self._number("SELECT coalesce(max(process), 0) FROM out.raw_processes"),
            "incident_add": self._number("SELECT coalesce(max(incident), 0) FROM out.raw_incidents"),
            "id_add": id_add,
            "older_version": source.older_version,
            "is_exact": int(source.has_exact_totals),
            "part_end": part.window.end_ns if part else 0,
        }
        self._special = {
            "raw_strings": self._strings,
            "raw_cgroups": self._cgroups,
            "raw_stacks": self._stacks,
        }

    def table(self, table: str) -> int:
        """Copy a table; the number of rows."""
        if table in self._special:
            return self._special[table]()
        columns = own_columns()[table]
        expressions = [self._expression(table, column, default) for column, default in columns.items()]
        joined, where = "", "true"
        if "session" in columns:
            joined, where = "LEFT JOIN session_map m ON m.old = s.session", "coalesce(m.new, 1)"
        elif table == "raw_pruned":
            joined = (
                "LEFT JOIN (SELECT seq_base - id_add AS old, id_add, max(new) AS new FROM session_map GROUP BY 1) m "
            )
            joined, where = joined + "ON m.old = s.seq_base", "coalesce(m.new, 1)"
        elif "process" in columns:
            where = "s.process NOT IN (SELECT process FROM skipped_processes)"
        return self._insert(
            f"INSERT INTO out.{table}({', '.join(columns)}) SELECT {', '.join(expressions)} "
            f"FROM {table} s {joined} WHERE {where} AND {self._of_part(table)}"
        )

    def _of_part(self, table: str) -> str:
        return self._part.condition(table, own_columns()[table]) if self._part else "true"

    def _used(self, columns: Mapping[str, Collection[str]], key: str) -> str:
        """Which of the rows that others name by these columns are named by what belongs to the part."""
        if self._part is None or self._source.older_version:
            return "true"
        named = (
            f"SELECT s.{column} FROM {table} s WHERE {self._of_part(table)}"
            for table, names in columns.items()
            for column in sorted(names)
            if table in self._source.tables
        )
        return f"{key} IN ({' UNION '.join(named)})"

    def _expression(self, table: str, column: str, default: str) -> str:
        """A column of the merged row; `s` is the source's, `m` its session."""
        own = f"s.{column}"
        value = _BY_TABLE.get((table, column)) or _BY_COLUMN.get(column)
        if column in string_columns().get(table, ()):
            value = self._string(own)
        elif column == "stack_hash" and self._has_new_stacks:
            value = f"coalesce((SELECT new FROM stack_map WHERE old = {own}), {own})"
        elif table == "raw_sessions" and self._source.older_version and column in _OF_OLDER:
            value = _OF_OLDER[column]
        elif self._part and (table, column) in _COLUMNS_OF_PART:
            value = _COLUMNS_OF_PART[table, column]
        value = value or own
        return value if default in ("", "NULL") or _is_nullable(table, column) else f"coalesce({value}, {default})"

    def _string(self, own: str) -> str:
        if self._source.older_version:  # holds the text itself where today's tables hold its number
            found = f"(SELECT string FROM out.raw_strings WHERE text = {own})"
            return f"iif(typeof({own}) = 'text', coalesce({found}, 0), 0)"
        return f"iif({own}, coalesce((SELECT new FROM string_map WHERE old = {own}), 0), 0)"

    def _strings(self) -> int:
        texts = f"SELECT s.text FROM raw_strings s WHERE {self._used(string_columns(), 's.string')}"
        if self._source.older_version:
            texts = "SELECT comm FROM raw_events WHERE typeof(comm) = 'text'"
        count = self._insert(
            f"INSERT INTO out.raw_strings(text) WITH own(text) AS ({texts}) SELECT DISTINCT text FROM own "
            "WHERE NOT EXISTS (SELECT 1 FROM out.raw_strings o WHERE o.text = own.text)"
        )
        if not self._source.older_version:
            self._insert(
                "INSERT INTO string_map SELECT s.string, min(o.string) FROM raw_strings s "
                "CROSS JOIN out.raw_strings o ON o.text = s.text GROUP BY s.string"
            )
        return count

    def _cgroups(self) -> int:
        columns = own_columns()["raw_cgroups"]
        special = {"cgroup_id": "s.cgroup_id + coalesce(g.base_add, 0)", "node": "coalesce(g.node, s.node)"}
        values = (special.get(column, f"s.{column}") for column in columns)
        return self._insert(
            f"INSERT OR IGNORE INTO out.raw_cgroups({', '.join(columns)}) SELECT {', '.join(values)} "
            "FROM raw_cgroups s LEFT JOIN group_map g ON g.base = s.cgroup_id - s.kernel_cgroup_id"
        )

    def _stacks(self) -> int:
        """Copy stacks by content: a hash that is taken by another stack here is replaced."""
        process = _BY_COLUMN["process"]
        not_skipped = "s.process NOT IN (SELECT process FROM skipped_processes)"
        differing = self._db.execute(
            f"SELECT s.hash, s.ips, s.frames, {process}, o.frames, o.process "
            "FROM raw_stacks s JOIN out.raw_stacks o ON o.hash = s.hash "
            f"WHERE {not_skipped} AND (o.ips, o.frames, o.process) IS NOT (s.ips, s.frames, {process})",
            self._values_of(process),
        )
        for number, ips, frames, of_process, other, of_other in list(differing):
            if not of_process and not of_other and _names(frames) == _names(other):
                continue
            self._db.execute("INSERT INTO stack_map VALUES (?, ?)", (number, self._free_hash(ips, frames, of_process)))
            self._has_new_stacks = True
        return self._insert(
            "INSERT OR IGNORE INTO out.raw_stacks(hash, ips, frames, note, process, is_python_whole) "
            f"SELECT coalesce(t.new, s.hash), s.ips, s.frames, s.note, {process}, s.is_python_whole "
            f"FROM raw_stacks s LEFT JOIN stack_map t ON t.old = s.hash WHERE {not_skipped} "
            f"AND {self._used(_stack_columns(), 's.hash')}"
        )

    def _free_hash(self, *content: object) -> int:
        for salt in range(1 << 16):
            text = repr((salt, content)).encode("utf-8", "backslashreplace")
            found = int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)
            taken = (
                "SELECT EXISTS (SELECT 1 FROM out.raw_stacks WHERE hash = ?1 "
                "UNION ALL SELECT 1 FROM raw_stacks WHERE hash = ?1)"
            )
            if found and not self._number(taken, found):
                return found
        raise AssertionError("no free hash among 65,536")

    def _fill_maps(self, sessions: tuple[PlannedSession, ...]) -> None:
        self._db.executemany(
            "INSERT INTO session_map VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    *(session.source.session, session.number, session.node, session.source.uuid),
                    *(session.id_add, session.cgroup_add, session.cgroup_base, session.seq_base),
                )
                for session in sessions
            ),
        )
        groups = {session.source.cgroup_base: session for session in sessions}
        are_of_several = {  # merged by an older version, which did not keep whose group it was
            base
            for base in groups
            if len({session.node for session in sessions if session.source.cgroup_base == base}) > 1
        }
        self._db.executemany(
            "INSERT INTO group_map VALUES (?, ?, ?)",
            ((base, one.cgroup_add, None if base in are_of_several else one.node) for base, one in groups.items()),
        )
        self._db.execute(
            "INSERT INTO skipped_processes SELECT p.process FROM raw_processes p "
            "JOIN session_map m ON m.old = p.session AND m.new = 0"
        )

    def _insert(self, sql: str) -> int:
        self._db.execute(sql, self._values_of(sql))
        return self._db.changes()

    def _values_of(self, sql: str) -> dict[str, int | str]:
        return {name: value for name, value in self._values.items() if f":{name}" in sql}

    def _number(self, sql: str, *values: int) -> int:
        ((value,),) = self._db.execute(sql, values)
        return int(value)


def _names(frames: str) -> str:
    """The text that Ingero 0.9 and later hash: symbols and files, without the addresses, which differ by process."""
    return _ADDRESS.sub("", frames)


_ADDRESS = re.compile(r'"i":"0x[0-9a-f]{1,16}",?')
_GROUP = "s.{0} + iif(s.{0}, coalesce(m.cgroup_add, 0), 0)"
_BY_COLUMN = {
    "id": "s.id + coalesce(m.id_add, :id_add)",
    "session": "coalesce(m.new, 0)",
    "process": "s.process + iif(s.process, :process_add, 0)",
    "halted": "s.halted + iif(s.halted, :process_add, 0)",
    "cgroup_id": _GROUP.format("cgroup_id"),
    "culprit_cgroup_id": _GROUP.format("culprit_cgroup_id"),
    "incident": "s.incident + :incident_add",
}
_BY_TABLE = {
    ("raw_sessions", "node"): "m.node",
    ("raw_sessions", "uuid"): "m.uuid",
    ("raw_sessions", "cgroup_base"): "m.cgroup_base",
    ("raw_sessions", "seq_base"): "m.seq_base",
    ("raw_incidents", "affected"): _AFFECTED,
    # also where an earlier recording of the node has that chain
    ("raw_causal_chains", "chain"): f"{_CHAIN} || iif(EXISTS (SELECT 1 FROM out.raw_causal_chains o "
    f"WHERE o.chain = {_CHAIN}), '#' || m.new, '')",
    ("raw_pruned", "seq_base"): "s.seq_base + coalesce(m.id_add, :id_add)",
}
# Of a part: it ended where the part does; a merge takes the whole recording where it has both.
_COLUMNS_OF_PART = {
    ("raw_sessions", "last_seen_ns"): "min(s.last_seen_ns, :part_end)",
    ("raw_sessions", "stopped_ns"): "min(coalesce(s.stopped_ns, s.last_seen_ns), :part_end)",
    ("raw_sessions", "options"): "without_secrets(s.options)",
    ("raw_sessions", "flags"): "without_secrets(s.flags)",
    ("raw_processes", "cmdline"): "without_secrets(s.cmdline)",
}
_OF_OLDER = {"older_version": ":older_version", "has_exact_totals": ":is_exact"}


def _hidden(*values: Value) -> Value:
    """An SQL function for SQLite, which does not know its number of arguments."""
    [text] = values
    return without_secrets(text) if isinstance(text, str) else text


@cache
def _stack_columns() -> dict[str, frozenset[str]]:
    """Columns that hold hashes of raw_stacks, by table."""
    return {name: frozenset({"stack_hash"}) for name, columns in own_columns().items() if "stack_hash" in columns}


@cache
def string_columns() -> dict[str, frozenset[str]]:
    """Columns that hold numbers of raw_strings, by table, as schema.sql says."""
    found = {}
    for name, text in re.findall(r"^CREATE TABLE (\w+) \((.*?)^\)", sql_text("schema.sql"), re.MULTILINE | re.DOTALL):
        found[name] = frozenset(re.findall(r"^\s+(\w+)\s+INTEGER[^\n]*-- string\b", text, re.MULTILINE))
    return {name: columns for name, columns in found.items() if columns}


@cache
def _nullable() -> frozenset[tuple[str, str]]:
    db = apsw.Connection(":memory:")
    try:
        db.execute(sql_text("schema.sql"))
        rows = db.execute(
            "SELECT s.name, c.name FROM sqlite_schema s, pragma_table_info(s.name) c "
            "WHERE s.type = 'table' AND NOT c.\"notnull\""
        )
        return frozenset((str(table), str(column)) for table, column in rows)
    finally:
        db.close()


def _is_nullable(table: str, column: str) -> bool:
    return (table, column) in _nullable()
