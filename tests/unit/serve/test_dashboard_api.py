"""What machines get from the dashboard: the same numbers as SQL, errors with a way out, never an internal error."""

from __future__ import annotations

import csv
import io
import json
import lzma
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from starlette.testclient import TestClient

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import NotEvaluated
from ingero.serve.dashboard.answers import capabilities, processes
from ingero.serve.sql import run_sql
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing.writer import Writer
from tests.unit.dashboard_client import client_of, get
from tests.unit.dashboard_recording import QUIET_S, make_recording, serving

OLDER = sorted((Path(__file__).parents[2] / "data" / "ingero-0.x").glob("*.db.xz"))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recording(tmp_path_factory.mktemp("dashboard") / "recording.db")


@pytest.fixture(scope="module")
def client(database: Path) -> TestClient:
    return client_of(database)


def test_the_overview_has_the_verdict_with_the_worst_incident_first(client: TestClient) -> None:
    found = get(client, "overview")
    assert {one["cause"] for one in found["diagnosis"]["incidents"]} == {"cpu-contention", "cpu-throttled"}
    drops = [one["impact"]["lost_ns"] for one in found["diagnosis"]["incidents"]]
    assert drops == sorted(drops, reverse=True)
    assert found["incident_counts"] == {"HIGH": 2}
    assert (found["is_live"], found["lost"], found["database"]) == (False, 12, "recording.db")
    machine = {
        name: found["system"][name] for name in ("mem_percent", "swap_mb", "load_avg")
    }  # as older versions say it
    assert machine == {"mem_percent": 41.0, "swap_mb": None, "load_avg": 6.5}


def test_an_incident_has_its_breakdown_culprits_chain_and_remedies(client: TestClient) -> None:
    found = get(client, "incidents")["incidents"]
    number = next(one["number"] for one in found if one["cause"] == "cpu-contention")
    incident = get(client, f"incidents/{number}")["incident"]
    assert sum(one["lost_ns"] for one in incident["breakdown"]) == incident["impact"]["lost_ns"]
    assert [one["name"] for one in incident["culprits"]] == ["hog"]
    assert incident["evidence"]
    assert any("renice" in fix["command"] for fix in incident["fix"])


def test_operations_are_the_sums_of_sql(client: TestClient, database: Path) -> None:
    counts: dict[str, int] = {}
    for op in get(client, "ops")["ops"]:
        counts[op["name"]] = counts.get(op["name"], 0) + op["count"]
    answer = run_sql(database, "SELECT op_name, sum(count) FROM op_stats GROUP BY 1")
    assert counts == dict(answer.rows)


def test_operations_of_one_process_are_only_its_own(client: TestClient) -> None:
    assert {op["pid"] for op in get(client, "ops?process=1")["ops"]} == {100}


def test_operations_come_as_csv_with_a_column_per_clock(client: TestClient) -> None:
    response = client.get("/api/v1/ops?format=csv")
    assert response.headers["content-disposition"] == 'attachment; filename="ingero-ops.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text)))
    assert [int(row["runq_ns"]) for row in rows] == [op["clocks"]["runq_ns"] for op in get(client, "ops")["ops"]]


def test_no_text_of_a_csv_file_is_a_formula(client: TestClient) -> None:
    texts = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "plain", "a=b")
    values = ", ".join(f"('{text}')" for text in texts)
    question = {"sql": f"SELECT column1 AS [=name], -1 AS number FROM (VALUES {values})", "format": "csv"}
    response = client.post("/api/v1/query", json=question)
    names, *rows = list(csv.reader(io.StringIO(response.text, newline="")))
    assert names == ["'=name", "number"]
    assert [text for text, _ in rows] == [*(f"'{text}" for text in texts[:4]), r"\tx", r"\rx", "plain", "a=b"]
    assert {number for _, number in rows} == {"-1"}


def test_snapshots_are_thinned_to_means_and_sums(client: TestClient) -> None:
    whole = get(client, "snapshots")["snapshots"]
    found = get(client, "snapshots?points=4")["snapshots"]
    assert len(found) == 4
    assert sum(one["psi_cpu_some_ns"] for one in found) == sum(one["psi_cpu_some_ns"] for one in whole)
    assert [one["psi_cpu_some_ratio"] for one in found] == pytest.approx([0.003, 0.003, 0.6, 0.6])
    assert found[0]["cpu_percent"] == pytest.approx(24)


def test_a_sync_interval_is_idle_busy_and_return_delay_and_nothing_else(client: TestClient) -> None:
    gpu_streams = [
        gpu_stream for process in get(client, "processes")["processes"] for gpu_stream in process["gpu_streams"]
    ]
    assert len(gpu_streams) == 2
    for gpu_stream in gpu_streams:
        assert gpu_stream["wall_ns"] == gpu_stream["idle_ns"] + gpu_stream["busy_ns"] + gpu_stream["return_delay_ns"]


def test_a_process_has_its_steps_and_how_they_are_known(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=10) as run:
        trainer, synced = run.process(100, "python"), run.process(200, "synced")
        add_steps(run, trainer, 0, 10, RepeatedStep(host_ms=6.0, blocked={"launch": 3.0, "copy": 1.0}, noise=0))
        run.train(synced, 0, 10, Step(idle_ms=2, launch_ms=1, busy_ms=6, return_delay_ms=2, noise=0))
    with open_reader(path) as reader:
        window = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 10 * 10**9 + 1)
        steps, intervals = processes(reader, window)["processes"]
    assert steps["steps"] == {
        "how": "repetition",
        "count": 1000,
        "text": "1,000 steps found by repetition",
        "judged_by": "step",
        "wall_ns": 10 * 10**9,
        "host_ns": 6 * 10**9,
        "blocked_ns": {"sync": 0, "copy": 10**9, "launch": 3 * 10**9, "alloc": 0},
    }
    assert steps["gpu_idle"]["text"] == ""
    assert (intervals["steps"]["how"], intervals["steps"]["text"]) == ("sync", "1,000 sync intervals")
    assert intervals["steps"]["judged_by"] == "sync interval"
    assert intervals["steps"]["wall_ns"] is None
    assert intervals["gpu_idle"]["text"] == "GPU idle between 40 and 50% of the time (by sync intervals)"


def test_clocks_over_time_keep_every_nanosecond(client: TestClient) -> None:
    found = get(client, "clocks?process=1&points=3")
    assert len(found["points"]) <= 4
    total = get(client, "processes")["processes"][0]["clocks"]
    sums = [sum(point["ns"][index] for point in found["points"]) for index in range(len(found["clocks"]))]
    assert dict(zip([f"{name}_ns" for name in found["clocks"]], sums, strict=True)) == total


def test_since_looks_at_the_end_only(client: TestClient) -> None:
    assert get(client, "ops?since=4s")["window"]["duration_ns"] == 4 * 10**9


def test_capabilities_name_what_was_not_traced_and_why(client: TestClient) -> None:
    sources = {one["name"]: one for one in get(client, "capabilities")["sources"]}
    assert (sources["nccl"]["is_available"], sources["nccl"]["reason"]) == (False, "no NCCL library was mapped")
    assert sources["cuda"]["is_available"]


def test_a_cause_that_could_not_be_told_at_two_times_has_both_reasons(database: Path) -> None:
    with open_reader(database) as reader:
        window = reader.window(None, time.time_ns())
        assert window is not None
        found = diagnose(reader, window)
        gone = [NotEvaluated(cause="gil", reason=reason) for reason in ("no stacks", "no samples", "no stacks")]
        causes = capabilities(reader, replace(found, not_evaluated=tuple(gone)))["causes"]
    assert {one["name"]: one["reason"] for one in causes}["gil"] == "no stacks; no samples"
    assert [one["name"] for one in causes if not one["is_available"]] == ["gil"]


def test_drops_and_own_overhead_are_told(client: TestClient) -> None:
    found = get(client, "drops")
    assert [(one["counter"], one["count"]) for one in found["drops"]] == [("sync_intervals_ring_full", 12)]
    assert found["overhead"]["agent_rss_bytes"] == 60 << 20
    assert 0 < found["overhead"]["agent_cpu_ratio"] < 0.01


@pytest.mark.parametrize("path", ["time", "chains", "graph-metrics", "graph-events"])
def test_the_other_addresses_of_older_versions_answer(client: TestClient, path: str) -> None:
    assert get(client, path)


def test_a_question_in_sql_is_answered(client: TestClient) -> None:
    response = client.post("/api/v1/query", json={"sql": "SELECT 1 AS one, 'x' AS text", "limit": 5})
    assert (response.json()["columns"], response.json()["rows"]) == (["one", "text"], [[1, "x"]])


def test_a_question_that_would_write_is_refused(client: TestClient, database: Path) -> None:
    before = database.read_bytes()
    response = client.post("/api/v1/query", json={"sql": "WITH x AS (SELECT 1) DELETE\tFROM raw_events"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "sql_refused")
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("incidents/99", 404, "no_incident"),
        ("ops?since=soon", 422, "invalid_request"),
        ("ops?since=9999999999999999999d", 422, "invalid_request"),
        ("ops?process=99999999999999999999", 422, "invalid_request"),
        ("nowhere", 404, "http"),
    ],
)
def test_an_error_has_a_code_and_a_way_out(client: TestClient, path: str, status: int, code: str) -> None:
    error = get(client, path, status)["error"]
    assert error["code"] == code
    assert error["message"]
    assert error["hint"]


def test_no_database_is_an_error_that_says_how_to_record_one(tmp_path: Path) -> None:
    error = get(client_of(tmp_path / "none.db"), "overview", 404)["error"]
    assert (error["code"], "ingero trace" in error["hint"]) == ("no_database", True)


def test_a_file_that_is_no_database_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("This is not a database. " * 100)
    assert get(client_of(tmp_path / "text.db"), "overview", 503)["error"]["code"] == "unreadable_database"


def test_a_recording_that_lacks_a_column_is_unreadable_and_says_which(tmp_path: Path, database: Path) -> None:
    copy = tmp_path / "between.db"
    copy.write_bytes(database.read_bytes())
    db = apsw.Connection(str(copy))
    db.execute("DROP VIEW thread_state_seconds; ALTER TABLE raw_thread_state_seconds RENAME COLUMN run_ns TO ran_ns")
    db.close()
    error = get(client_of(copy), "processes", 503)["error"]
    assert (error["code"], "run_ns" in error["message"]) == ("unreadable_database", True)


def test_a_recording_that_goes_on_is_live_and_its_answers_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    client = client_of(path)
    with Writer(path, session=SessionFacts(uuid="live", started_ns=1), node="here") as writer:
        writer.flush()
        assert get(client, "ops")["is_live"]
    assert not get(client_of(path), "ops")["is_live"]


@pytest.mark.parametrize("path", ["overview", "incidents", "ops", "processes", "snapshots", "drops", "chains"])
@pytest.mark.parametrize("older", OLDER, ids=lambda path: path.name)
def test_a_recording_of_an_older_version_is_answered(tmp_path: Path, older: Path, path: str) -> None:
    copy = tmp_path / "older.db"
    copy.write_bytes(lzma.decompress(older.read_bytes()))
    assert get(client_of(copy), path)["older_version"]


def test_events_of_the_host_are_no_gpu_calls(tmp_path: Path) -> None:
    copy = tmp_path / "older.db"
    copy.write_bytes(lzma.decompress(OLDER[0].read_bytes()))
    found = get(client_of(copy), "overview")
    counted = run_sql(copy, "SELECT sum(count) FROM op_stats WHERE source IN (1, 4, 8, 9)").rows[0][0]
    assert found["calls"] == counted
    assert found["top_op"]["name"].startswith("cu")


def test_nobody_finds_a_request_that_fails_inside(database: Path, tmp_path: Path) -> None:
    addresses = sum(len(methods) for methods in client_of(database).get("/openapi.json").json()["paths"].values())
    with serving(database) as exposure:
        command = [
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{exposure.url}openapi.json"),
            *("--tls-verify", "false", "--checks", "not_a_server_error", "--max-examples", "5", "--phases", "fuzzing"),
            *("--generation-deterministic", "--no-color", "--suppress-health-check"),
            "all",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)  # it leaves a cache
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Tested: {addresses}" in done.stdout, done.stdout


def test_the_openapi_description_lists_the_addresses_of_older_versions(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    names = ("overview", "ops", "chains", "snapshots", "capabilities", "graph-metrics", "graph-events", "time", "query")
    assert {f"/api/v1/{name}" for name in names} <= set(paths)


def test_browsers_are_told_when_the_recording_grows(database: Path) -> None:
    with serving(database) as exposure:
        context = ssl._create_unverified_context()  # of this test's own server
        with urllib.request.urlopen(f"{exposure.url}api/v1/events", context=context, timeout=60) as stream:
            assert stream.readline() == b"event: connected\n"
            stream.readline()
            stream.readline()
            os.utime(database)
            assert stream.readline() == b"event: changed\n"
            assert json.loads(stream.readline().removeprefix(b"data: "))["now_ns"] > 0


def test_the_command_refuses_an_open_address_without_a_token(database: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("INGERO_")}
    command = [sys.executable, "-m", "ingero.cli.main", "dashboard", "--db", str(database), "--addr", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, "there is no token" in done.stderr) == (2, True)


def test_the_quiet_time_of_the_recording_has_no_incident(client: TestClient) -> None:
    for one in get(client, "incidents")["incidents"]:
        begin_ns = get(client, "ops")["window"]["begin_ns"]
        assert one["start_ns"] >= begin_ns + QUIET_S * 10**9
