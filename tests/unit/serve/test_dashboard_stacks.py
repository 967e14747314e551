"""From an incident to its stacks: of its time, its operation and its line, with Python and native frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from ingero.demo.labeled_scenarios import SCENARIOS, record
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Incident
from ingero.serve.dashboard.incident_stacks import selection_of
from ingero.store.reader import open_reader
from ingero.units import SECOND_NS
from tests.unit.dashboard_client import client_of, get

SCENARIO = SCENARIOS["allocations"]  # in each step of the incident, line 42 calls cudaMalloc


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stacks") / "recording.db"
    record(SCENARIO, path)
    return path


@pytest.fixture(scope="module")
def client(database: Path) -> TestClient:
    return client_of(database)


@pytest.fixture(scope="module")
def incident(database: Path) -> Incident:
    with open_reader(database) as reader:
        window = reader.window(None, 1 << 62)
        assert window is not None
        return next(one for one in diagnose(reader, window).incidents if one.cause == SCENARIO.cause)


@pytest.fixture(scope="module")
def stacks(client: TestClient, incident: Incident) -> Any:
    return get(client, f"incidents/{incident.number}/stacks")


def test_an_incident_shows_the_native_and_the_python_frames_of_its_line(stacks: Any, incident: Incident) -> None:
    worst = stacks["calls"][0]
    assert (worst["what"], worst["is_on_line"], stacks["process"]) == ("cudaMalloc", True, incident.affected[0].process)
    assert [(one["kind"], one["function"], one["line"], one["is_own"]) for one in worst["frames"]] == [
        ("native", "at::native::call", 0, False),
        ("python", "to", 900, False),
        ("python", "train_step", 42, True),
    ]


def test_an_incident_leads_to_just_its_own_calls(client: TestClient, stacks: Any, incident: Incident) -> None:
    assert incident.line is not None
    assert stacks["where"]["line"].startswith(f"{incident.line.file}:{incident.line.line}")
    found = get(client, f"calls?{urlencode({'process': stacks['process'], **stacks['where']})}")
    assert {one["stack"] for one in found["calls"]} == {stacks["calls"][0]["stack"]}
    assert len(found["calls"]) == stacks["calls"][0]["count"]
    assert found["window"]["begin_ns"] == incident.start_ns
    assert all(one["start_ns"] >= incident.start_ns for one in found["calls"])


def test_the_tree_of_an_incident_is_that_of_its_calls(client: TestClient, stacks: Any) -> None:
    tree = get(client, f"tree?{urlencode({'process': stacks['process'], **stacks['where']})}")
    assert tree["root"]["ns"] == stacks["calls"][0]["ns"]


def test_calls_of_one_operation_are_only_its_own_and_so_is_their_total(client: TestClient) -> None:
    assert {one["op"] for one in get(client, "calls?op=cudaMalloc")["calls"]} == {"cudaMalloc"}
    assert get(client, "calls?op=cudaFree")["calls"] == []
    ops = {one["name"]: one["sum_ns"] for one in get(client, "ops?process=1")["ops"]}
    assert get(client, "tree?process=1&op=cudaMalloc")["total_ns"] == ops["cudaMalloc"]


def test_a_line_that_no_stack_goes_through_has_no_calls(client: TestClient) -> None:
    line = urlencode({"line": "/elsewhere.py:1 in nothing"})
    assert get(client, f"calls?{line}")["calls"] == []
    assert get(client, f"tree?process=1&{line}")["root"]["ns"] == 0
    assert get(client, f"tree?process=1&of=samples&{line}")["root"]["ns"] == 0


def test_a_time_outside_the_recording_has_no_calls(client: TestClient) -> None:
    found = get(client, "calls?begin_ns=1&end_ns=2")
    assert (found["calls"], found["window"]["duration_ns"]) == ([], 0)


def test_an_operation_that_does_not_exist_is_an_error(client: TestClient) -> None:
    error = get(client, "calls?op=cudaMalocc", 404)["error"]
    assert (error["code"], "cudaMalloc" in error["message"]) == ("no_operation", True)


def test_what_happened_at_one_moment_has_a_second_around_it(incident: Incident) -> None:
    moment = replace(incident, end_ns=incident.start_ns)
    assert selection_of(moment).begin_ns == incident.start_ns - SECOND_NS
    assert selection_of(moment).end_ns == incident.start_ns + SECOND_NS


def test_an_incident_without_a_time_is_that_of_the_whole_recording(incident: Incident) -> None:
    found = selection_of(replace(incident, start_ns=0, end_ns=0))
    assert (found.begin_ns, found.end_ns) == (0, None)


def test_an_incident_whose_calls_were_not_recorded_says_how_many_have_no_stack(tmp_path: Path) -> None:
    path = tmp_path / "recording.db"
    record(SCENARIOS["cpu-hog"], path)
    found = get(client_of(path), "incidents/1/stacks")
    assert (found["calls"], found["samples"], found["count"], found["without_stack"]) == ([], [], 0, 0)
