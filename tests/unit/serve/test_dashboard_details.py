"""The details behind the verdict: NCCL with late ranks, memory by line and container, stacks, containers, facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from starlette.testclient import TestClient

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.ops import BY_NAME
from ingero.serve.dashboard.memory import level_at
from ingero.serve.dashboard.nccl import lateness
from ingero.serve.sql import run_sql
from ingero.store.arrays.arrays import MEMORY_SECOND_DTYPE, NCCL_CALL_DTYPE
from tests.unit.dashboard_client import client_of, get
from tests.unit.dashboard_recording import LATE_MS, make_detailed

MS = 1_000_000
SECOND_NS = 1_000_000_000
MODEL = [("/srv/train/model.py", 31, "forward")]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_detailed(tmp_path_factory.mktemp("details") / "recording.db")


@pytest.fixture(scope="module")
def client(database: Path) -> TestClient:
    return client_of(database)


def test_the_facts_are_the_overview_without_its_verdict(client: TestClient) -> None:
    facts, overview = get(client, "facts"), get(client, "overview")
    assert "diagnosis" not in facts
    shared = facts.keys() - {"now_ns"}
    assert {name: facts[name] for name in shared} == {name: overview[name] for name in shared}
    assert facts["calls"] > 0


def test_the_facts_do_not_wait_for_a_diagnosis(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a diagnosis was asked for")

    monkeypatch.setattr("ingero.diagnose.diagnosis.diagnose", never)
    client = client_of(database)
    for path in ("facts", "nccl", "memory", "containers", "calls", "tree?process=1"):
        assert get(client, path)["window"]


def test_nccl_totals_are_exact_per_rank(client: TestClient) -> None:
    totals = get(client, "nccl")["totals"]
    assert [(one["op"], one["rank"], one["calls"], one["bytes"]) for one in totals] == [
        ("ncclAllReduce", 0, 10, 10 << 20),
        ("ncclAllReduce", 1, 10, 10 << 20),
    ]


def test_a_rank_that_enters_its_collectives_late_is_seen_per_communicator(client: TestClient) -> None:
    first, late = get(client, "nccl")["by_communicator"]
    assert (first["communicator"], first["rank"], first["ranks"]) == ("0x4d", 0, 2)
    assert (first["lateness"]["p50_ns"], first["lateness"]["last"]) == (0, 0)
    assert late["lateness"] == {
        "matched": 10,
        "last": 10,
        "p50_ns": pytest.approx(LATE_MS * MS, abs=200),
        "p99_ns": pytest.approx(LATE_MS * MS, abs=200),
        "max_ns": pytest.approx(LATE_MS * MS, abs=200),
    }


def nccl_calls(*rows: tuple[int, int, int]) -> np.ndarray[Any, np.dtype[Any]]:
    """Calls of one collective by (session, sequence, start)."""
    calls = np.zeros(len(rows), NCCL_CALL_DTYPE)
    calls["comm_id_hash"] = 7
    calls["session"], calls["sequence"], calls["start_ns"] = np.array(rows).T
    return calls


def test_a_rank_whose_peers_are_not_recorded_is_not_said_to_be_on_time() -> None:
    late_ns, is_last = lateness(nccl_calls((1, 1, 100), (1, 2, 200), (1, 2, 250)))
    assert (late_ns.tolist(), is_last.tolist()) == ([-1, 0, 50], [False, False, True])


def test_sends_and_receives_are_no_step_of_the_collectives() -> None:
    calls = nccl_calls((1, 1, 100), (1, 1, 130), (1, 1, 900), (1, 1, 950))
    calls["op"] = [BY_NAME[name].code for name in ("ncclAllReduce", "ncclAllReduce", "ncclSend", "ncclRecv")]
    late_ns, is_last = lateness(calls)
    assert (late_ns.tolist(), is_last.tolist()) == ([0, 30, -1, -1], [False, True, False, False])


def test_ranks_of_different_sessions_are_not_compared_because_their_clocks_differ() -> None:
    late_ns, _ = lateness(nccl_calls((1, 5, 100), (2, 5, 900)))
    assert late_ns.tolist() == [-1, -1]


def test_a_call_whose_place_in_the_sequence_is_unknown_is_not_compared() -> None:
    late_ns, _ = lateness(nccl_calls((1, 0, 100), (1, 0, 900)))
    assert late_ns.tolist() == [-1, -1]


def test_live_memory_of_a_line_over_time_ends_at_what_it_holds(client: TestClient) -> None:
    found = get(client, "memory?points=32")
    series = next(one for one in found["by_place"] if "model.py:31" in one["name"])
    assert (series["values"][0], series["values"][-1]) == (0, 16 * (64 << 20))
    assert series["values"] == sorted(series["values"])
    assert len(series["values"]) == len(found["times_ns"]) == 32
    place = next(one for one in found["places"] if "model.py:31" in one["place"])
    assert place["live_bytes"] == series["values"][-1]


def test_memory_of_a_container_is_that_of_its_processes(client: TestClient) -> None:
    found = get(client, "memory")
    assert [(one["name"], one["values"][-1]) for one in found["by_container"]] == [("train-0", 16 * (64 << 20))]
    assert [(one["container"], one["kind"]) for one in found["holders"]] == [("train-0", "device")]


def test_refused_allocations_are_told_with_their_line(client: TestClient) -> None:
    failed = [one for one in get(client, "memory")["places"] if one["failures"]]
    assert [(one["failures"], one["failed_bytes"], "data.py:12" in one["place"]) for one in failed] == [
        (3, 3 * (64 << 20), True)
    ]


def test_what_the_driver_says_is_used_follows_its_samples(client: TestClient) -> None:
    (used,) = get(client, "memory")["used_gpus"]
    assert (used["name"], used["values"][0], used["values"][-1]) == ("GPU-0", 1 << 28, 16 << 28)


def test_what_was_used_before_the_first_sample_is_not_known(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "late.db", seconds=6) as script:
        script.train(script.process(100, "python"), 0, 6, Step())
        script.gpu(3, used_bytes=1 << 30)
    (used,) = get(client_of(tmp_path / "late.db"), "memory?points=4")["used_gpus"]
    assert used["values"] == [None, None, 1 << 30, 1 << 30]


def test_a_process_that_ended_holds_nothing() -> None:
    rows = np.zeros(2, MEMORY_SECOND_DTYPE)
    rows["start_ns"], rows["period_ns"], rows["live_bytes"] = [0, 2 * SECOND_NS], SECOND_NS, [10, 30]
    times = np.array([0, SECOND_NS, 2 * SECOND_NS, 3 * SECOND_NS, 5 * SECOND_NS])
    assert level_at(rows, times, None).tolist() == [0, 10, 10, 30, 30]
    assert level_at(rows, times, 4 * SECOND_NS).tolist() == [0, 10, 10, 30, 0]


def test_the_longest_recorded_calls_come_first_with_their_stacks(client: TestClient) -> None:
    found = get(client, "calls?process=1&limit=2")["calls"]
    assert [(one["op"], one["duration_ns"]) for one in found] == [
        ("cudaStreamSynchronize", 9 * MS),
        ("cudaMemcpyAsync", 3 * MS),
    ]
    frames = get(client, f"stacks/{found[0]['stack']}")["frames"]
    assert [(one["function"], one["line"], one["is_own"]) for one in frames] == [
        ("forward", 31, True),
        ("main", 90, True),
    ]


def test_a_call_without_a_stack_names_none(client: TestClient) -> None:
    assert [one["stack"] for one in get(client, "calls?process=1")["calls"] if one["op"] == "cudaLaunchKernel"] == [""]


def test_a_stack_that_is_not_stored_is_an_error_with_a_way_out(client: TestClient) -> None:
    assert get(client, "stacks/00000000000000ff", 404)["error"]["code"] == "no_stack"


def test_the_tree_of_a_process_adds_up_to_its_recorded_calls(client: TestClient, database: Path) -> None:
    root = get(client, "tree?process=1")["root"]
    ((recorded_ns,),) = run_sql(database, "SELECT sum(duration_ns) FROM events WHERE process = 1").rows
    assert root["ns"] == recorded_ns == sum(one["ns"] for one in root["children"])
    main = next(one for one in root["children"] if "main" in one["name"])
    assert (main["ns"], [one["name"] for one in main["children"]]) == (
        12 * MS,
        ["model.py:31 in forward", "data.py:12 in fetch"],
    )


def test_time_outside_calls_has_a_tree_of_its_own(client: TestClient) -> None:
    root = get(client, "tree?process=1&of=samples")["root"]
    assert (root["ns"], root["children"][0]["children"][0]["children"][0]["name"]) == (40 * MS, "[sleep]")


def test_a_container_has_its_processes_calls_and_what_it_took_from_others(client: TestClient) -> None:
    groups = {one["pod"]: one for one in get(client, "containers")["containers"]}
    assert [one["pid"] for one in groups["train-0"]["processes"]] == [100]
    assert groups["train-0"]["collective_bytes"] == 10 << 20
    assert (groups["train-0"]["took_ns"], groups["train-1"]["took_ns"]) == (0, 380 * MS)


def test_calls_of_all_containers_are_those_of_the_facts(client: TestClient) -> None:
    assert sum(one["calls"] for one in get(client, "containers")["containers"]) == get(client, "facts")["calls"]


def test_the_shapes_of_the_details_are_described(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for name in ("facts", "nccl", "memory", "containers", "calls", "tree", "stacks/{stack_hash}"):
        content = paths[f"/api/v1/{name}"]["get"]["responses"]["200"]["content"]
        assert content["application/json"]["schema"]["$ref"], name


def test_a_recording_without_allocations_says_so_instead_of_none(tmp_path: Path, database: Path) -> None:
    copy = tmp_path / "between.db"
    copy.write_bytes(database.read_bytes())
    db = apsw.Connection(str(copy))
    db.execute("DROP VIEW gpu_memory; DROP TABLE raw_allocations")
    db.close()
    found = get(client_of(copy), "memory")
    assert (found["has_allocations"], found["places"], bool(found["used_gpus"])) == (False, [], True)


def test_what_ended_processes_held_is_not_live_at_their_line(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "restarts.db", seconds=12) as script:
        line = script.stack(MODEL)
        for run in range(3):
            one = script.process(100 + run, "python", start_s=4 * run, exit_ns=script.at(4 * run + 3))
            script.train(one, 4 * run, 4 * run + 3, Step())
            script.memory(one, "cudaMalloc", 4 * run + 1, 1, 60 << 30, stack=line)
    found = get(client_of(tmp_path / "restarts.db"), "memory")
    assert [(one["live_bytes"], one["growth_bytes"]) for one in found["places"]] == [(0, 0)]
    assert [one["live_bytes"] for one in found["holders"]] == [0, 0, 0]


def test_a_process_of_an_earlier_recording_holds_its_memory_until_the_next_one_began(tmp_path: Path) -> None:
    path = tmp_path / "twice.db"
    for pid, begin_s, seconds in ((100, 0, 6), (101, 8, 12)):
        with ScriptedRun(path, seconds=seconds, seed=pid) as script:
            one = script.process(pid, "python")
            script.train(one, begin_s, seconds, Step())
            script.memory(one, "cudaMalloc", begin_s + 1, 1, 1 << 30, stack=script.stack(MODEL))
    db = apsw.Connection(str(path))
    db.execute("UPDATE raw_sessions SET started_ns = ? WHERE session = 2", (BEGIN_NS + 7 * SECOND_NS,))
    db.close()
    found = get(client_of(path), "memory?points=24")
    assert {one["pid"]: one["live_bytes"] for one in found["holders"]} == {100: 0, 101: 1 << 30}
    (series,) = found["by_container"]
    assert (max(series["values"]), series["values"][-1]) == (1 << 30, 1 << 30)
    assert [one["live_bytes"] for one in found["places"]] == [1 << 30]


def test_rates_are_of_the_time_in_which_somebody_recorded(tmp_path: Path) -> None:
    path, day_s = tmp_path / "twice.db", 86_400
    for begin_s in (0, day_s):
        with ScriptedRun(path, seconds=begin_s + 10, seed=begin_s) as script:
            one = script.process(100 + begin_s, "python")
            for second in range(begin_s, begin_s + 10):
                script.op(one, "cudaGraphLaunch", second, 100, 0.01)
    db = apsw.Connection(str(path))
    db.execute("UPDATE raw_sessions SET started_ns = ? WHERE session = 2", (BEGIN_NS + day_s * SECOND_NS,))
    db.close()
    rates = [one["per_second"] for one in get(client_of(path), "graph-metrics")["graph_ops"]]
    assert rates == pytest.approx([50, 50], rel=0.01)
