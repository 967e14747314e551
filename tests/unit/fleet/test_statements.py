"""One statement over many nodes answers what it answers on the merged recording, or says why it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingero.fleet import statements
from ingero.fleet.statements import Answers, Plan, Result, TooManyRowsError, plan
from ingero.serve.sql import run_sql
from ingero.store.merge import merge
from ingero.store.opening.opening import Opened, open_database
from ingero.store.user_sql.errors import (
    SqlError,
    SqlRefusedError,
    SqlSyntaxError,
    UnknownColumnError,
    UnknownTableError,
)
from tests.unit.statement_nodes import EXOTIC, NODES, OF_ONE_NODE, generated, write_nodes

_BUCKET = 2 ** (1 / 32) - 1  # how much of a value a bucket of percentiles is wide


class Fleet:
    """Eight nodes, and what their recordings are when merged."""

    def __init__(self, folder: Path) -> None:
        self.paths = write_nodes(folder)
        self.merged = folder / "merged.db"
        merge(list(self.paths.values()), self.merged)
        self._open: dict[Path, Opened] = {path: open_database(path) for path in (*self.paths.values(), self.merged)}
        for opened in self._open.values():
            opened.limit.lift()

    def close(self) -> None:
        for opened in self._open.values():
            opened.db.close()

    def answers(self, planned: Plan) -> dict[str, list[list[tuple[Any, ...]]]]:
        return {
            node: [list(self._open[path].db.execute(question.sql)) for question in planned.questions]
            for node, path in self.paths.items()
        }

    def ask(self, sql: str) -> tuple[Plan, Result]:
        planned = plan(sql)
        while planned.first:
            planned = planned.after([one.combine(self.answers(one)) for one in planned.first])
        return planned, planned.combine(self.answers(planned))

    def of_merged(self, sql: str) -> list[tuple[Any, ...]]:
        return list(self._open[self.merged].db.execute(sql))

    def compare(self, sql: str) -> str:
        """Whether both answer the same, numbers that merging hands out anew aside; what differs, else ""."""
        try:
            wanted = self.of_merged(sql)
        except apsw.Error as error:  # whatever SQLite says of it, the fleet has to say
            with pytest.raises(SqlError) as caught:
                self.ask(sql)
            return "" if str(error).rpartition(": ")[2] in str(caught.value) else f"{sql}\n{caught.value}\n{error}"
        planned, result = self.ask(sql)
        rows = [row[1:] if planned.adds_node else row for row in result.rows]
        hidden = [place for place, name in enumerate(planned.columns) if name in OF_ONE_NODE]
        found, wanted = _without(rows, hidden), _without(wanted, hidden)
        if hidden or " ORDER BY " not in sql:
            found, wanted = _sorted(found), _sorted(wanted)
        tolerance = _BUCKET if "percentile" in sql or "median" in sql else 1e-9
        if len(found) == len(wanted) and all(map(lambda a, b: _are_equal(a, b, tolerance), found, wanted)):
            return ""
        return f"{sql}\nfleet:  {found[:5]}\nmerged: {wanted[:5]}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    yield made
    made.close()


def _without(rows: Sequence[Sequence[Any]], places: Sequence[int]) -> list[tuple[Any, ...]]:
    return [tuple(value for place, value in enumerate(row) if place not in places) for row in rows]


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [f"{one:.6g}" if isinstance(one, float) else repr(one) for one in row])


def _are_equal(row: tuple[Any, ...], other: tuple[Any, ...], tolerance: float) -> bool:
    return len(row) == len(other) and all(
        one == two
        or (isinstance(one, float) and isinstance(two, float) and abs(one - two) <= tolerance * max(abs(one), abs(two)))
        for one, two in zip(row, other, strict=True)
    )


def test_generated_aggregate_queries_answer_as_on_the_merged_recording(fleet: Fleet) -> None:
    different = [text for sql in generated(seed=1, count=200) if (text := fleet.compare(sql))]
    assert not different, "\n".join(different[:3])


@pytest.mark.parametrize("sql", EXOTIC)
def test_answers_as_on_the_merged_recording(fleet: Fleet, sql: str) -> None:
    assert fleet.compare(sql) == ""


def test_what_sqlite_cannot_compute_is_an_error_here_as_there(fleet: Fleet) -> None:
    assert fleet.compare("SELECT percentile(comm, 50) FROM events") == ""
    assert fleet.compare("SELECT percentile(duration, 500) FROM events") == ""
    with pytest.raises(SqlError, match="integer overflow"):
        plan("SELECT sum(arg1) FROM events").combine({"a": [[(2**62,)]], "b": [[(2**62,)]]})


def test_comments_end_where_they_end(fleet: Fleet) -> None:
    assert fleet.compare("SELECT /* a -- comment */ count(*) -- what\n FROM events -- end") == ""


def test_generated_queries_are_answered_by_nodes_and_not_fetched() -> None:
    assert {plan(sql).reason for sql in generated(seed=2, count=50)} == {""}


def test_what_nodes_are_asked_passes_their_sandbox(fleet: Fleet) -> None:
    for sql in [
        *generated(seed=3, count=5),
        EXOTIC[0],
        "SELECT percentile(duration, 95), count(DISTINCT pid) FROM events",
    ]:
        planned = plan(sql)
        rows = {
            node: [run_sql(path, one.sql, max_rows=10**6).rows for one in planned.questions]
            for node, path in fleet.paths.items()
        }
        assert planned.combine(rows).rows == planned.combine(fleet.answers(planned)).rows


def test_the_published_statement_has_one_column_node(fleet: Fleet) -> None:
    sql = "SELECT node, source, count(*) as cnt, avg(duration)/1000 as avg_us FROM events GROUP BY node, source"
    _, result = fleet.ask(sql)
    assert result.columns == ("node", "source", "cnt", "avg_us")
    assert Counter(row[0] for row in result.rows).keys() == fleet.paths.keys() - {"node-6"}
    assert result.nodes == tuple(sorted(fleet.paths))


def test_a_list_of_rows_gets_a_column_node_unless_it_has_one(fleet: Fleet) -> None:
    assert fleet.ask("SELECT pid, name FROM processes")[1].columns == ("node", "pid", "name")
    assert fleet.ask("SELECT pid, node FROM processes")[1].columns == ("pid", "node")
    assert fleet.ask("SELECT * FROM processes")[1].columns.count("node") == 1
    assert fleet.ask("SELECT count(*) FROM processes")[1].columns == ("count(*)",)


def test_numbers_that_each_node_gives_itself_are_not_put_together(fleet: Fleet) -> None:
    _, result = fleet.ask("SELECT process, count(*) FROM processes GROUP BY process")
    assert result.columns == ("node", "process", "count(*)")
    assert {row[1:] for row in result.rows} == {(process, 1) for process in range(1, 6)}
    assert len(result.rows) == 5 * (NODES - 2)
    assert fleet.ask("SELECT count(DISTINCT process) FROM processes")[1].rows == [(5 * (NODES - 2),)]


def test_a_number_of_one_node_cannot_be_asked_for_where_rows_of_all_are_looked_at() -> None:
    for condition in ("process = 3", "3 = e.process", "e.process IN (1, 2)", "process BETWEEN 1 AND 3", "session <> 1"):
        with pytest.raises(SqlRefusedError, match="number that each node gives itself") as caught:
            plan(f"SELECT row_number() OVER (ORDER BY timestamp) FROM events e WHERE {condition}")
        assert "pid and node" in caught.value.hint
    assert plan("SELECT count(*) FROM events WHERE process = 3").reason == ""  # each node looks for its own


def test_two_nodes_of_one_name_stay_two() -> None:
    planned = plan("SELECT node, count(*) FROM events GROUP BY node")
    rows = {"a:8080": [[("gpu", 1)]], "b:8080": [[("gpu", 2)]], "c:8080": [[("other", 4)]]}
    assert planned.combine(rows).rows == [("gpu@a:8080", 1), ("gpu@b:8080", 2), ("other", 4)]
    assert planned.combine({"a:8080": [[("", 1)]], "b:8080": [[("", 2)]]}).rows == [("a:8080", 1), ("b:8080", 2)]


def test_integers_of_64_bits_and_texts_and_blobs_arrive_as_they_are() -> None:
    values = [2**63 - 1, -(2**63), 9007199254740993, "Ω\n\x1b[31m", b"\x00\xff", None, 0.1, float("inf")]
    planned = plan("SELECT detail FROM events ORDER BY typeof(detail), detail")
    rows = {"a": [[(value, "x") for value in values]]}
    assert Counter(row[1] for row in planned.combine(rows).rows) == Counter(values)
    assert plan("SELECT max(arg1), min(arg1), count(*) FROM events").combine(
        {"a": [[(2**63 - 1, 9007199254740993, 2)]], "b": [[(5, 9007199254740995, 1)]]}
    ).rows == [(2**63 - 1, 9007199254740993, 3)]


HOSTILE: Mapping[str, Any] = {
    "no list": 7,
    "other questions": [[], []],
    "rows of no rows": [[1, 2]],
    "a row too long": [[("n", 1, 2)]],
    "a row too short": [[("n",)]],
    "a count of text": [[("n", "9")]],
    "a count below 0": [[("n", -1)]],
    "a count of true": [[("n", True)]],
    "no count": [[("n", None)]],
    "more than 64 bits": [[(2**63, 1)]],
    "an object": [[({"a": 1}, 1)]],
    "half a character": [[("\ud800", 1)]],
    "a large value": [[("x" * (2 << 20), 1)]],
    "a text for rows": ["abc"],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_node_that_answers_nonsense_is_left_out_and_costs_nobody_else(name: str) -> None:
    planned = plan("SELECT node, count(*) FROM events GROUP BY node")
    result = planned.combine({"good": [[("good", 5)]], "bad": HOSTILE[name]})
    assert result.rows == [("good", 5)]
    assert result.nodes == ("good",)
    assert result.refused["bad"]


def test_too_many_rows_are_an_error_that_says_why_they_were_needed_and_what_to_do() -> None:
    planned = plan("SELECT a.node, b.node FROM events a JOIN events b ON a.comm = b.comm", node_rows=3)
    with pytest.raises(TooManyRowsError, match="a has more than 3 rows for it, because a join may put") as caught:
        planned.combine({"a": [[("x", "y")] * 4]})
    assert "merge" in caught.value.hint
    many: Answers = {str(node): [[("x", "y")] * 99_999] for node in range(11)}
    with pytest.raises(TooManyRowsError, match="more than 1,000,000 rows"):
        plan("SELECT a.node, b.node FROM events a JOIN events b ON a.comm = b.comm").combine(many)


def test_a_group_too_many_is_an_error_and_never_a_wrong_sum() -> None:
    planned = plan("SELECT pid, count(*) FROM events GROUP BY pid", node_rows=2)
    with pytest.raises(TooManyRowsError):
        planned.combine({"a": [[(1, 1), (2, 1), (3, 1)]]})


def test_a_list_is_cut_for_all_nodes_together_and_says_whose_rows_are_missing() -> None:
    planned = plan("SELECT pid FROM events ORDER BY pid", limit=2)
    assert planned.node_sql.endswith("LIMIT 3")
    result = planned.combine({"a": [[(1,), (3,), (5,)]], "b": [[(2,)]]})
    assert (result.rows, result.is_truncated, result.truncated) == ([("a", 1), ("b", 2)], True, ("a",))
    assert plan("SELECT pid FROM events LIMIT 5 OFFSET 2").node_sql.endswith("LIMIT 7")
    assert plan("SELECT pid FROM events LIMIT 5 OFFSET 2", limit=1).node_sql.endswith("LIMIT 7")


def test_no_nodes_are_an_empty_recording() -> None:
    assert plan("SELECT count(*), sum(duration), max(pid) FROM events").combine({}).rows == [(0, None, None)]
    assert plan("SELECT node, count(*) FROM events GROUP BY node").combine({}).rows == []


def test_conditions_on_one_table_are_looked_at_by_nodes_before_rows_are_fetched() -> None:
    sql = "SELECT rank() OVER (ORDER BY duration) FROM events e WHERE e.op_name LIKE 'a%' AND (pid = 1 OR tid = 2)"
    assert plan(sql).node_sql == (
        'SELECT "pid", "tid", "op_name", "duration" FROM "events" AS "e" '
        "WHERE ( e . op_name LIKE 'a%' ) AND ( ( pid = 1 OR tid = 2 ) ) LIMIT 100000"
    )


def test_a_select_in_a_condition_is_asked_first_and_not_fetched() -> None:
    planned = plan("SELECT count(*) FROM events WHERE timestamp > (SELECT max(timestamp) FROM events) - 60e9")
    assert "max(timestamp)" in planned.first[0].node_sql
    latest = planned.first[0].combine({"a": [[(70,)]], "b": [[(90,)]]})
    after = planned.after([latest])
    assert "WHERE timestamp > ( 90 ) - 60e9" in after.node_sql
    assert after.columns == ("count(*)",)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("WITH x AS (SELECT 1) DELETE\tFROM events", SqlError),
        ("DELETE FROM events", SqlError),
        ("PRAGMA journal_mode = DELETE", SqlError),
        ("ATTACH 'x' AS y", SqlError),
        ("SELECT 1; DELETE FROM events", SqlRefusedError),
        ("SELECT load_extension('x') FROM events", SqlRefusedError),
        ("SELECT * FROM raw_events", SqlRefusedError),
        ("SELECT evnt FROM events", UnknownColumnError),
        ("SELECT 1 FROM evnts", UnknownTableError),
        ("SELECT pid FROM events WHERE pid = ?", SqlError),
        ("SELECT FROM", SqlSyntaxError),
        ("", SqlRefusedError),
    ],
)  # fmt: skip
def test_what_a_node_would_refuse_is_sent_to_none(sql: str, error: type[SqlError]) -> None:
    with pytest.raises(error):
        plan(sql)


def test_process_ids_grouped_over_nodes_say_that_they_are_of_several_processes() -> None:
    assert "several nodes" in plan("SELECT pid, count(*) FROM events GROUP BY pid").combine({}).notes[0]
    assert not plan("SELECT node, pid, count(*) FROM events GROUP BY 1, 2").combine({}).notes


def test_large_values_of_a_node_are_refused_where_a_function_could_not_be_stopped_on_them() -> None:
    planned = plan("SELECT comm LIKE '%a%b%', count(*) OVER () FROM events")
    with pytest.raises(SqlError, match="larger than"):
        planned.combine({"a": [[("a" * 100_000,)]]})
    assert planned.combine({"a": [[("xaxb",)]]}).rows == [(1, 1)]


def test_a_time_limit_ends_what_is_computed_here() -> None:
    planned = plan(
        "SELECT count(*) FROM (SELECT a.comm FROM events a JOIN events b ON a.tid < b.tid OR a.comm > b.comm)"
    )
    rows = [(number, str(number)) for number in range(20_000)]
    with pytest.raises(statements.TimeLimitError):
        planned.combine({"a": [rows]}, timeout_s=0.05)
