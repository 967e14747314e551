"""What assistants really send: values that stand for nothing, lists as text, durations as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ingero.demo.labeled_scenarios import SCENARIOS, record
from ingero.serve.mcp.arguments import ArgumentError, cleaned
from ingero.serve.mcp.fitting import MAX_BYTES, fitted, json_bytes
from ingero.serve.mcp.server import IngeroServer
from ingero.serve.recording_source import parse_since_ns
from ingero.store.records import SessionFacts
from ingero.store.vocabulary import STATE_COLUMNS
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer
from ingero.units import QuantityError
from tests.unit.mcp_client import call, content, server_of, text
from tests.unit.reader_recording import BEGIN_NS, fill

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "explain_incident": ("number", "since", "tsc"),
    "get_causal_chains": ("since", "pid", "pids", "top_n", "skip", "tsc"),
    "get_trace_stats": ("since", "pid", "skip", "tsc"),
    "get_stacks": ("source", "op", "pid", "since", "limit", "skip", "tsc"),
    "graph_lifecycle": ("pid", "since", "tsc"),
    "graph_frequency": ("pid", "window_seconds", "since", "tsc"),
    "run_demo": ("scenario", "tsc"),
    "get_test_report": ("tsc",),
    "fleet_nodes": ("tsc",),
}
NOTHING: tuple[object, ...] = (None, " ", "null", 0, "0", [], "[]", [None], "all")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> IngeroServer:
    path = tmp_path_factory.mktemp("mcp") / "allocations.db"
    record(SCENARIOS["allocations"], path)
    return server_of(path)


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "elapsed_ns"}


@pytest.mark.parametrize("nothing", NOTHING, ids=repr)
@pytest.mark.parametrize("tool", ARGUMENTS)
def test_what_stands_for_nothing_is_as_if_it_were_absent(server: IngeroServer, tool: str, nothing: object) -> None:
    arguments = {name: nothing for name in ARGUMENTS[tool] if not (name == "tsc" and nothing in (0, "0"))}
    assert without_times(content(call(server, tool, **arguments))) == without_times(content(call(server, tool)))


@pytest.mark.parametrize(
    ("tool", "sent", "meant"),
    [
        ("get_causal_chains", {"pids": "[100]"}, {"pids": [100]}),
        ("get_causal_chains", {"pids": 100}, {"pids": [100]}),
        ("get_causal_chains", {"pids": "100, 7"}, {"pids": [100, 7]}),
        ("get_causal_chains", {"pid": [100], "top_n": "3"}, {"pid": 100, "top_n": 3}),
        ("get_stacks", {"limit": "5", "source": "null"}, {"limit": 5}),
        ("get_trace_stats", {"since": "last 5 minutes"}, {"since": "5m"}),
        ("get_trace_stats", {"since": 300}, {"since": "5m"}),
        ("get_trace_stats", {"since": "last 30 days"}, {"since": "30d"}),
        ("get_check", {"random_string": "x"}, {}),
        ("run_sql", {"query": "```sql\nSELECT 1\n```", "limit": None}, {"query": "SELECT 1"}),
        ("query_fleet", {"action": "sql", "query": "null", "sql": "SELECT 1"}, {"action": "sql", "sql": "SELECT 1"}),
        ("get_causal_chains", {"topN": 3, "PID": "100"}, {"top_n": 3, "pid": 100}),
        ("get_stacks", {"arguments": {"pid": 100}}, {"pid": 100}),
    ],
)
def test_other_ways_of_writing_mean_the_same(
    server: IngeroServer, tool: str, sent: dict[str, object], meant: dict[str, object]
) -> None:
    assert without_times(content(call(server, tool, **sent))) == without_times(content(call(server, tool, **meant)))


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_stacks", {"pid": -4}, ["pid: «-4»", "a whole number from 1", "leave pid out (or null) for everything"]),
        ("get_stacks", {"limit": 101}, ["limit: «101»", "from 1 to 100", "leave limit out (or null) for 10"]),
        ("get_stacks", {"source": "vulkan"}, ["source: «vulkan»", "cuda, driver, graph, nccl"]),
        ("get_stacks", {"pid": [1, 2]}, ["pid: it is one value", "leave pid out"]),
        ("get_causal_chains", {"pids": ["x"]}, ["pids: ", "a list of whole numbers", "leave pids out"]),
        ("get_trace_stats", {"since": "soon"}, ["since: «soon»", '"last 5 minutes"', "leave since out"]),
        (
            "explain_incident",
            {"tsc": "perhaps"},
            ["tsc: «perhaps»", "true or false", "leave tsc out (or null) for true"],
        ),
        ("run_sql", {"query": None}, ["query is needed"]),
        ("query_fleet", {"action": "erase"}, ["action: «erase»", "one of chains, sql, ops, overview"]),
    ],
)
def test_an_error_names_the_argument_what_is_accepted_and_how_to_leave_it_out(
    server: IngeroServer, tool: str, arguments: dict[str, object], said: list[str]
) -> None:
    answer = call(server, tool, **arguments)
    assert answer.is_error
    for part in said:
        assert part in text(answer)
    assert "http" not in text(answer)
    assert "pydantic" not in text(answer)


def understood(server: IngeroServer, tool: str, sent: dict[str, object]) -> dict[str, Any]:
    """What a tool is called with, all of its arguments."""
    found = server._tool_manager.get_tool(tool)
    assert found is not None
    model = found.fn_metadata.arg_model
    return model.model_validate(cleaned(model.model_fields, sent)).model_dump()


@pytest.mark.parametrize(
    ("tool", "sent", "meant"),
    [
        ("get_stacks", {"arguments": '{"pid": 7}'}, {"pid": 7}),
        ("get_stacks", {"params": {"limit": 5, "pid": 8}, "pid": 7}, {"limit": 5, "pid": 7}),
        ("get_stacks", {"kwargs": "{}", "args": []}, {}),
        ("get_stacks", {"reason": "to see", "_meta": {}}, {}),
        ("explain_incident", {"input": "what stalls?"}, {}),
        ("graph_frequency", {"windowSeconds": 30}, {"window_seconds": 30}),
        ("get_causal_chains", {"top-n": "3"}, {"top_n": 3}),
        ("get_causal_chains", {"limit": 3, "processIds": [7, 8]}, {"top_n": 3, "pids": [7, 8]}),
        ("get_stacks", {"pid": 7, "PID": 8}, {"pid": 7}),
        ("get_stacks", {"process_id": "7", "max_results": 3, "offset": 2}, {"pid": 7, "limit": 3, "skip": 2}),
        ("get_stacks", {"pid": 7.0, "limit": "10.0"}, {"pid": 7, "limit": 10}),
        ("get_stacks", {"pid": '"7"'}, {"pid": 7}),
        ("get_stacks", {"pid": {"value": 7}}, {"pid": 7}),
        ("get_stacks", {"pid": "N/A", "since": "not specified", "op": "-"}, {}),
        ("get_stacks", {"op": "None", "source": "Null", "since": "default"}, {}),
        ("get_stacks", {"source": " CUDA "}, {"source": "cuda"}),
        ("get_stacks", {"source": ["NCCL"], "tsc": "False"}, {"source": "nccl", "tsc": False}),
        ("get_stacks", {"op": "`cudaStreamSynchronize()`"}, {"op": "cudaStreamSynchronize"}),
        ("explain_incident", {"number": "#1"}, {"number": 1}),
        ("explain_incident", {"incident_id": 2}, {"number": 2}),
        ("get_causal_chains", {"pids": "7 8"}, {"pids": [7, 8]}),
        ("get_causal_chains", {"pids": "7; 8"}, {"pids": [7, 8]}),
        ("get_causal_chains", {"pids": "['7', '8']"}, {"pids": [7, 8]}),
        ("get_causal_chains", {"pids": "(7, 8)"}, {"pids": [7, 8]}),
        ("get_causal_chains", {"pids": "[7,]"}, {"pids": [7]}),
        ("get_causal_chains", {"pids": ["null", 7]}, {"pids": [7]}),
        ("query_fleet", {"action": " SQL", "sql": "SELECT 1"}, {"action": "sql", "sql": "SELECT 1"}),
        ("query_fleet", {"action": ["chains"]}, {"action": "chains"}),
        ("run_sql", {"sql": "SELECT 1"}, {"query": "SELECT 1"}),
        ("run_sql", {"__arg1": "SELECT 1", "reason": "to see"}, {"query": "SELECT 1"}),
        ("run_sql", {"arguments": {"query": "SELECT 1", "limit": 3}}, {"query": "SELECT 1", "limit": 3}),
        ("run_sql", {"query": ["SELECT 1"]}, {"query": "SELECT 1"}),
        ("run_sql", {"query": {"sql": "SELECT 1"}}, {"query": "SELECT 1"}),
        ("run_sql", {"query": "```SELECT 1```"}, {"query": "SELECT 1"}),
        ("run_sql", {"query": "```sql SELECT 1```"}, {"query": "SELECT 1"}),
        ("run_sql", {"query": "```sql\nSELECT 1"}, {"query": "SELECT 1"}),
        ("run_sql", {"query": "Here it is:\n```sql\nSELECT 1\n```\nIt counts."}, {"query": "SELECT 1"}),
        ("run_sql", {"query": '"SELECT 1"'}, {"query": "SELECT 1"}),
        ("run_sql", {"query": "SELECT '```x```' AS `a`"}, {"query": "SELECT '```x```' AS `a`"}),
        ("run_sql", {"query": "-- a\n/* b */ (SELECT '```x```')"}, {"query": "-- a\n/* b */ (SELECT '```x```')"}),
    ],
)
def test_a_model_is_understood_in_its_own_way_of_writing(
    server: IngeroServer, tool: str, sent: dict[str, object], meant: dict[str, object]
) -> None:
    assert understood(server, tool, sent) == understood(server, tool, meant)


@pytest.mark.parametrize(
    ("tool", "sent"),
    [
        ("get_stacks", {"pid": True}),
        ("get_causal_chains", {"pids": [True]}),
        ("get_causal_chains", {"pids": {"0": 7}}),
        ("get_stacks", {"pid": "7,8"}),
        ("get_stacks", {"pids": [7, 8]}),
        ("get_stacks", {"limit": 10.5}),
        ("get_stacks", {"limit": "ten"}),
        ("get_stacks", {"source": "cuda,nccl"}),
        ("get_stacks", {"time_range": {"start": 1, "end": 2}}),
        ("get_trace_stats", {"since": True}),
        ("get_trace_stats", {"since": {"minutes": 5}}),
        ("get_trace_stats", {"since": -1}),
        ("get_trace_stats", {"since": 1764300000}),
        ("explain_incident", {"number": "first"}),
        ("query_fleet", {"action": "causal_chains"}),
        ("query_fleet", {"random_string": "x"}),
        ("run_sql", {"random_string": "x"}),
    ],
)
def test_what_cannot_be_understood_is_refused_not_guessed(
    server: IngeroServer, tool: str, sent: dict[str, object]
) -> None:
    with pytest.raises((ArgumentError, ValidationError)):
        understood(server, tool, sent)


def test_comments_without_end_do_not_hold_up_the_server(server: IngeroServer) -> None:
    assert understood(server, "run_sql", {"query": "/**/" * 20_000 + "``` x"})["limit"] == 100


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("5m", 300), ("last 5 minutes", 300), ("5 minutes", 300), ("5 minutes ago", 300), ("the past hour", 3600),
        ("an hour", 3600), ("last minute", 60), ("Last 90 Seconds", 90), ("-5m", 300), ("now-5m", 300), ("PT5M", 300),
        ("pt1h30m", 5400), ("in the last 2 hours", 7200), ("1 hour and 30 minutes", 5400), ("~10 s", 10), ("300", 300),
        ("5min", 300), ("2 hrs", 7200), ("1.5h", 5400), ("half an hour", 1800), ("five minutes", 300), ("P1D", 86400),
        ("the last two hours", 7200), ("P1DT2H", 93600), ("PT0.5H", 1800), ("last 5 minutes.", 300), ("one hour", 3600),
        ("last 5 minutes or so", 300), ("approximately 5 minutes", 300), ("thirty seconds", 30), ("5m0s", 300),
    ],
)  # fmt: skip
def test_durations_are_understood_as_people_write_them(written: str, seconds: int) -> None:
    assert parse_since_ns(written) == seconds * 1_000_000_000


@pytest.mark.parametrize(
    "written",
    ["", "all", "All of it", "everything", "the whole recording", "since the beginning", "start of recording"],
)
def test_all_of_the_recording_has_names(written: str) -> None:
    assert parse_since_ns(written) is None


NO_DURATION = ("soon", "0s", "yesterday", "5 parsecs", "x" * 100, "99999999 days", "PT", "1e9h", "now", "P", "-", "inf")


@pytest.mark.parametrize("written", [*NO_DURATION, "00:05:00", "2026-01-01T00:00:00Z", "one", "a few minutes", "NaN"])
def test_what_is_no_duration_is_refused_with_what_is_accepted(written: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_since_ns(written)
    assert "last 5 minutes" in refused.value.hint


def size(server: IngeroServer, tool: str, **arguments: object) -> int:
    answer = call(server, tool, **arguments)
    assert answer.structured_content is not None
    return json_bytes(answer.structured_content) + json_bytes(text(answer))


def test_an_answer_of_sql_fits_and_says_how_to_get_the_rest(server: IngeroServer) -> None:
    wide = "SELECT o.op_id, printf('%0500d', o.op_id) AS x FROM ops o, ops s"
    assert size(server, "run_sql", query=wide, limit=10_000) <= MAX_BYTES
    answer = content(call(server, "run_sql", query=wide, limit=10_000))
    assert 0 < answer["row_count"] < 10_000
    assert f"OFFSET {answer['row_count']}" in answer["notes"][-1]
    assert size(server, "run_sql", query="SELECT printf('%04000d', 1) FROM ops", limit=10_000) <= MAX_BYTES


def test_what_has_no_room_is_said_with_the_way_to_it() -> None:
    stacks = [{"op": "x", "python": ["«é" * 100] * 24} for _ in range(100)]
    content, text = fitted({"stacks": stacks, "more": 3}, "line\n" * 20_000, skipped=10)
    assert json_bytes(content) + json_bytes(text) <= MAX_BYTES
    shown = len(content["stacks"])
    assert 0 < shown < 100
    assert content["rest"][-1].startswith(f"stacks: {shown} of 100 are here")
    assert content["rest"][-1].endswith(f"skip={10 + shown}")
    assert content["rest"][-1] in text
    assert fitted({"stacks": stacks[:2]}, "short", skipped=0) == ({"stacks": stacks[:2]}, "short")


def test_the_next_of_a_list_come_with_skip(server: IngeroServer) -> None:
    every = content(call(server, "get_stacks", limit=100))["stacks"]
    assert content(call(server, "get_stacks", limit=100, skip=1)).get("stacks", []) == every[1:]
    assert "leaves out all of them" in text(call(server, "get_causal_chains", skip=50))


def test_operations_are_told_from_a_place_on(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.db", session=SessionFacts(uuid="u", started_ns=BEGIN_NS), node="n") as writer:
        fill(writer)
        clocks: dict[str, tables.Column] = dict.fromkeys(STATE_COLUMNS, 0)
        other = tables.OP_STATS.rows(
            1,
            session=1,
            start_ns=BEGIN_NS,
            process=1,
            source=1,
            op=3,
            count=7,
            recorded=1,
            sum_ns=70,
            max_ns=10,
            **clocks,
        )
        writer.append(tables.OP_STATS, other)
    server = server_of(tmp_path / "a.db")
    ops = content(call(server, "get_trace_stats"))["ops"]
    assert len(ops) == 2
    assert content(call(server, "get_trace_stats", skip=1))["ops"] == ops[1:]


def test_frames_are_in_the_text_too(server: IngeroServer) -> None:
    answer = call(server, "get_stacks", limit=3)
    first = content(answer)["stacks"][0]
    assert first["python"][-1] in text(answer)
