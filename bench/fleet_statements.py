"""Statements over many nodes: are they right, and what does it cost to plan one and to put the answers together?

Run: python -m bench.fleet_statements [--statements N] [--json] [--engines]. With --engines the same statements are also
printed by sqlglot and asked of SQLite again, and translated by sqlglot and asked of DuckDB, over the rows of the merged
recording; that needs both packages. Right is: equal to the merged recording, integers exactly, others to 1e-9.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw

from ingero.fleet.statements import plan
from ingero.fleet.statements.names import answer_columns
from ingero.store.merge import merge
from ingero.store.opening.opening import open_database
from tests.unit.statement_nodes import OF_ONE_NODE, generated, write_nodes

_GROUPS = 100
_MATERIAL = ("events", "op_stats", "cuda_events", "processes")


def run(statements: int, *, with_engines: bool) -> dict[str, Any]:
    """The figures."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_nodes(Path(folder))
        merged = Path(folder) / "merged.db"
        merge(list(paths.values()), merged)
        nodes = {node: open_database(path).db for node, path in paths.items()}
        one = open_database(merged).db
        asked = [sql for sql in generated(seed=7, count=statements) if _is_computed(one, sql)]

        def of_fleet(sql: str) -> list[tuple[Any, ...]]:
            planned = plan(sql)
            rows = planned.combine({node: [list(db.execute(planned.node_sql))] for node, db in nodes.items()}).rows
            return [row[1:] for row in rows] if planned.adds_node else rows

        found: dict[str, Any] = {"statements": len(asked), "right": _right(one, asked, of_fleet)}
        found |= _costs(asked)
        if with_engines:
            found |= _engines(one, asked)
        return found


def _is_computed(db: apsw.Connection, sql: str) -> bool:
    try:
        list(db.execute(sql))
    except apsw.SQLError:  # more than 64 bits
        return False
    return True


def _right(merged: apsw.Connection, asked: Sequence[str], answer: Callable[[str], list[tuple[Any, ...]]]) -> int:
    right = 0
    for sql in asked:
        wanted = list(merged.execute(sql))
        try:
            found = answer(sql)
        except Exception:  # each engine has errors of its own; an error is no answer
            continue
        names = [name for name, _, _ in answer_columns(merged, sql)]
        hidden = {place for place, name in enumerate(names) if name in OF_ONE_NODE}  # merging hands these out anew
        right += _are_equal(
            *(_without(rows, hidden) for rows in (found, wanted)), is_in_order=not hidden and " ORDER BY " in sql
        )
    return right


def _without(rows: Sequence[tuple[Any, ...]], places: set[int]) -> list[tuple[Any, ...]]:
    return [tuple(_plain(value) for place, value in enumerate(row) if place not in places) for row in rows]


def _are_equal(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], *, is_in_order: bool) -> bool:
    if not is_in_order:
        found, wanted = sorted(found, key=repr), sorted(wanted, key=repr)
    return len(found) == len(wanted) and all(
        len(mine) == len(theirs) and all(map(_is_equal, mine, theirs))
        for mine, theirs in zip(found, wanted, strict=True)
    )


def _is_equal(one: Any, two: Any) -> bool:
    """Percentiles are within a bucket, 2.2%."""
    return bool(
        one == two or (isinstance(one, float) and isinstance(two, float) and abs(one - two) <= 0.022 * abs(two))
    )


def _plain(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _costs(asked: Sequence[str]) -> dict[str, float]:
    begin = time.process_time()
    for sql in asked:
        plan(sql)
    costs = {"plan_ms": (time.process_time() - begin) / len(asked) * 1e3}
    planned = plan("SELECT op_name, count(*), sum(duration), avg(duration), max(duration) FROM events GROUP BY op_name")
    for nodes in (8, 300, 1000):
        rows = [(f"op{group}", 5, 7 * group, 7.0 * group, 5, 9 + group) for group in range(_GROUPS)]
        width = len(planned.questions[0].columns)
        answers = {f"node-{node}": [[row[:width] for row in rows]] for node in range(nodes)}
        begin = time.process_time()
        planned.combine(answers)
        costs[f"combine_{nodes}_nodes_{_GROUPS}_groups_ms"] = (time.process_time() - begin) * 1e3
    return {name: round(value, 2) for name, value in costs.items()}


def _engines(merged: apsw.Connection, asked: Sequence[str]) -> dict[str, Any]:
    sqlglot = importlib.import_module("sqlglot")
    duckdb = importlib.import_module("duckdb")
    db = duckdb.connect()
    for view in _MATERIAL:
        columns = [
            (str(name), str(of)) for name, of in merged.execute(f"SELECT name, type FROM pragma_table_info('{view}')")
        ]
        texts = {
            name for name, _ in columns if any(merged.execute(f"SELECT 1 FROM {view} WHERE typeof({name}) = 'text'"))
        }
        types = {name: "DOUBLE" if of == "REAL" else "VARCHAR" if name in texts else "BIGINT" for name, of in columns}
        db.execute(f"CREATE TABLE {view} ({', '.join(f'{name} {of}' for name, of in types.items())})")
        rows = list(merged.execute(f"SELECT * FROM {view}"))
        if rows:
            db.executemany(f"INSERT INTO {view} VALUES ({', '.join('?' * len(columns))})", rows)

    def printed(sql: str) -> list[tuple[Any, ...]]:
        return list(merged.execute(sqlglot.parse_one(sql, read="sqlite").sql("sqlite")))

    def translated(sql: str) -> list[tuple[Any, ...]]:
        return list(db.execute(sqlglot.transpile(sql, read="sqlite", write="duckdb")[0]).fetchall())

    return {
        "right_printed_by_sqlglot": _right(merged, asked, printed),
        "right_translated_to_duckdb": _right(merged, asked, translated),
    }


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--statements", type=int, default=200)
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments.statements, with_engines=arguments.engines)
    print(json.dumps(found) if arguments.json else "\n".join(f"{name:<36} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
