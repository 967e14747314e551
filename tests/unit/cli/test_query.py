"""`ingero query`: SQL and the filter, every format, and what goes wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingero.store.records import SessionFacts
from ingero.store.writing.writer import Writer
from tests.unit.reader_recording import BEGIN_NS, PER_CONTAINER, PER_CONTAINER_NCCL, fill
from tests.unit.run_ingero import Answer, run_ingero

Query = Callable[..., Answer]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("query") / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=BEGIN_NS), node="n1") as writer:
        fill(writer)
    return path


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: Path) -> Query:
    """Runs `ingero query ARGUMENTS` on the recording; returns exit code, standard output and standard error."""

    def invoke(*arguments: str, stdin: str = "") -> Answer:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return run_ingero(monkeypatch, capsys, "query", "-d", str(recorded), *arguments)

    return invoke


def test_an_answer_is_a_table_with_its_notes_on_standard_error(query: Query) -> None:
    code, out, err = query("SELECT op, count(*) AS calls, max(duration_ns) FROM cuda_events GROUP BY op ORDER BY 2")
    assert code == 0
    assert out.splitlines() == [
        "op                     calls  max(duration_ns)",
        "---------------------  -----  ----------------",
        "cudaStreamSynchronize     20           19.0 ms",
        "cuLaunchKernel            30           2.00 µs",
    ]
    assert err.startswith("note: cuda_events holds 20 of 1,000 CUDA calls (2.0%)")


@pytest.mark.parametrize("sql", [PER_CONTAINER, PER_CONTAINER_NCCL])
def test_the_questions_per_container_run_word_for_word(query: Query, sql: str) -> None:
    code, out, _ = query(sql)
    assert code == 0
    assert out.splitlines()[2].split()[0] == "abc"


@pytest.mark.parametrize("argument", [(), ("-",)])
def test_sql_comes_from_standard_input_too(query: Query, argument: tuple[str, ...]) -> None:
    assert query(*argument, "--csv", stdin="SELECT 1 AS a;\n")[1] == "a\n1\n"


def test_without_sql_calls_are_listed_newest_first(query: Query) -> None:
    _, out, _ = query("--json")
    times = [json.loads(line)["timestamp"] for line in out.splitlines()]
    assert len(times) == 54
    assert times == sorted(times, reverse=True)


def test_the_filter_takes_time_process_and_operation(query: Query) -> None:
    _, out, _ = query("--json", "--pid", "10", "--op", "cudaStreamSynchronize")
    calls = [json.loads(line) for line in out.splitlines()]
    assert {(call["pid"], call["op_name"]) for call in calls} == {(10, "cudaStreamSynchronize")}
    newest = calls[0]["timestamp"]
    _, out, _ = query("--json", "--since", "3s", "--op", "cudaStreamSynchronize")
    recent = [json.loads(line)["timestamp"] for line in out.splitlines()]
    assert 0 < len(recent) < len(calls)
    assert min(recent) >= newest - 3_000_000_000
    assert query("--csv", "--pid", "4711")[1].count("\n") == 1


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaStreamSync", "CUDASTREAMSYNC"])
def test_short_names_of_older_versions_name_the_same_operation(query: Query, name: str) -> None:
    assert query("--csv", "--op", name)[1] == query("--csv", "--op", "cudaStreamSynchronize")[1]


def test_an_unknown_operation_brings_the_nearest(query: Query) -> None:
    code, _, err = query("--op", "cudaStrmSync")
    assert code == 2
    assert "did you mean cudaStreamSync" in err


def test_a_cut_table_says_how_many_rows_there_are(query: Query) -> None:
    _, out, err = query("--limit", "3", "SELECT * FROM events")
    assert out.count("cudaStreamSynchronize") == 3
    assert "note: 3 of 54 rows are shown" in err


def test_a_whole_table_says_nothing(query: Query) -> None:
    assert query("SELECT * FROM events")[2] == ""


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_limit_cuts_every_format(query: Query, form: str) -> None:
    assert query(form, "--limit", "2", "SELECT pid FROM events")[1].count("\n") == (2 if form == "--json" else 3)


def test_no_text_of_a_csv_file_is_a_formula(query: Query) -> None:
    assert query("--csv", "SELECT '=1+1' AS a, '-x' AS b, -1 AS c")[1] == "a,b,c\n'=1+1,'-x,-1\n"


def test_line_breaks_and_controls_in_a_csv_file_are_seen(query: Query) -> None:
    out = query("--csv", "SELECT 'a' || char(13) || '=1' AS text, 1 AS one UNION ALL SELECT 'b', 2")[1]
    assert list(csv.reader(io.StringIO(out, newline=""))) == [["text", "one"], [r"a\r=1", "1"], ["b", "2"]]


def test_csv_keeps_values_as_stored(query: Query) -> None:
    _, out, _ = query("--csv", "SELECT timestamp, NULL AS none, 'a,\"b' AS text, x'00ff' AS blob FROM events LIMIT 1")
    assert list(csv.reader(io.StringIO(out))) == [
        ["timestamp", "none", "text", "blob"],
        [str(BEGIN_NS), "", 'a,"b', "00ff"],
    ]


def test_json_keeps_values_as_stored_and_tells_equal_names_apart(query: Query) -> None:
    _, out, _ = query("--json", "SELECT 9223372036854775807 AS big, NULL AS big, 'é\x1b' AS Big, 0.5 AS half")
    assert json.loads(out) == {"big": 9223372036854775807, "big_2": None, "Big_3": "é\x1b", "half": 0.5}


def test_parquet_holds_the_same_rows(query: Query, tmp_path: Path) -> None:
    import duckdb  # noqa: PLC0415  # it fills the memory of every other test

    file = tmp_path / "it's.parquet"
    code, out, err = query(
        "--parquet", str(file), "SELECT *, iif(id = 'n1:54', 0.5, 1) AS mixed FROM events ORDER BY id"
    )
    assert (code, out) == (0, "")
    assert err == f"{file}: 54 rows\n"
    found = duckdb.sql(f"SELECT id, timestamp, op_name, gpu_id, mixed FROM '{str(file).replace(chr(39), chr(39) * 2)}'")
    _, lines, _ = query(
        "--json", "SELECT id, timestamp, op_name, gpu_id, iif(id = 'n1:54', 0.5, 1) AS mixed FROM events ORDER BY id"
    )
    assert found.fetchall() == [tuple(json.loads(line).values()) for line in lines.splitlines()]
    assert [str(kind) for kind in found.types] == ["VARCHAR", "BIGINT", "VARCHAR", "BIGINT", "DOUBLE"]


def test_parquet_columns_widen_as_values_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb  # noqa: PLC0415

    from ingero.serve.structured import parquet  # noqa: PLC0415

    monkeypatch.setattr(parquet, "_ROWS_AT_ONCE", 2)
    rows = [(1, None, b"a"), (2, None, b"b"), (0.5, "x", None), (None, 7, b"\0")]
    assert parquet.write_parquet(tmp_path / "w.parquet", ("n", "t", "b"), rows) == 4
    found = duckdb.sql(f"SELECT * FROM '{tmp_path / 'w.parquet'}'")
    assert found.fetchall() == [(1.0, None, b"a"), (2.0, None, b"b"), (0.5, "x", None), (None, "7", b"\0")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.parquet"]


def test_parquet_without_its_library_says_how_to_get_it(
    query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, _, err = query("--parquet", str(tmp_path / "a.parquet"), "SELECT 1")
    assert code == 2
    assert "pip install 'ingero[parquet]'" in err


def test_parquet_into_a_folder_that_is_missing_is_an_error(query: Query, tmp_path: Path) -> None:
    code, _, err = query("--parquet", str(tmp_path / "no" / "a.parquet"), "SELECT 1 AS a")
    assert code == 2
    assert "cannot write" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("SELECT 1", "--op", "cudaMalloc"), "list calls without SQL"),
        (("--csv", "--json"), "exclude each other"),
        (("DELETE FROM events",), "only SELECT"),
        (("SELEC 1",), "SQLite does not understand"),
        (("",), "there is no statement"),
        (("--since", "soon"), "is not a duration"),
        (
            ("--timeout", "0.000001s", "SELECT count(*) FROM events a, events b, events c, events d, events e"),
            "--timeout",
        ),
    ],
)
def test_an_error_ends_with_its_way_out_and_code_2(query: Query, arguments: tuple[str, ...], text: str) -> None:
    code, out, err = query(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert "  hint: " in err


def test_a_missing_database_is_an_error(query: Query, tmp_path: Path) -> None:
    code, _, err = query("-d", str(tmp_path / "none.db"), "SELECT 1")
    assert code == 2
    assert "no database" in err


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize(
    "sql", ["SELECT * FROM events LIMIT 3", "SELECT * FROM ops", "SELECT op_name, duration_ns FROM events"]
)
def test_a_table_fits_the_terminal(recorded: Path, sql: str, columns: int) -> None:
    shown = on_a_terminal(["query", "-d", str(recorded), sql], columns)
    assert shown
    assert max(map(len, shown)) <= columns


def test_what_a_stranger_named_does_not_act_on_the_terminal(recorded: Path) -> None:
    shown = on_a_terminal(["query", "-d", str(recorded), "SELECT char(27) || '[2Jx' AS name"], 80)
    assert shown[-1] == r"\x1b[2Jx"


def test_a_reader_that_has_seen_enough_ends_the_answer(recorded: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    command = [sys.executable, "-m", "ingero.cli.main", "query", "-d", str(recorded), "--csv", endless]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_small_question_needs_no_numpy(recorded: Path) -> None:
    text = (
        "import sys; from ingero.cli.main import main; "
        f"sys.argv = ['ingero', 'query', '-d', {str(recorded)!r}, 'SELECT 1']; main(); "
        "print([name for name in ('numpy', 'rich.table', 'duckdb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def on_a_terminal(arguments: list[str], columns: int) -> list[str]:
    """The lines that a command prints on a terminal of that width."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "ingero.cli.main", *arguments]
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(follower)
        text = b""
        try:
            while some := os.read(leader, 65536):
                text += some
        except OSError:  # the other end is closed
            pass
        process.wait()
    os.close(leader)
    return text.decode().replace("\r\n", "\n").splitlines()


def test_the_recording_is_not_written_over(query: Query, recorded: Path) -> None:
    before = recorded.read_bytes()
    code, _, told = query("SELECT 1", "--parquet", str(recorded))
    assert (code, "is the recording itself" in told) == (2, True)
    assert recorded.read_bytes() == before


def test_more_rows_than_there_can_be_is_a_wrong_value_and_no_bug(query: Query) -> None:
    code, _, told = query("SELECT 1", "--limit", str(1 << 80))
    assert (code, "Traceback" in told) == (2, False)


def test_blobs_are_in_hexadecimal_where_the_first_row_has_none(query: Query) -> None:
    out = query("--csv", "SELECT NULL AS blob, 1 AS one UNION ALL SELECT x'00ff', 2")[1]
    assert list(csv.reader(io.StringIO(out))) == [["blob", "one"], ["", "1"], ["00ff", "2"]]
