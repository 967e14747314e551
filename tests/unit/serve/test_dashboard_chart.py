"""The first screen's questions: the chart over time, a selected time, detections, the file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from ingero.demo.scene import BEGIN_NS, ScriptedRun
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.causes.rule import all_rules
from ingero.serve.html_report.report import BEGINNING
from tests.unit.dashboard_client import client_of, get
from tests.unit.dashboard_recording import END_S, QUIET_S, make_recording

SECOND_NS = 1_000_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return client_of(make_recording(tmp_path_factory.mktemp("chart") / "recording.db"))


def selected(begin_s: float, end_s: float) -> str:
    return f"begin_ns={BEGIN_NS + round(begin_s * SECOND_NS)}&end_ns={BEGIN_NS + round(end_s * SECOND_NS)}"


def columns_of(chart: Any) -> list[list[float]]:
    """The shares of each column in which anything was measured, lost time behind the parts."""
    columns = zip(*(one["values"] for one in (*chart["parts"], *chart["lost"])), strict=True)
    return [list(column) for column in columns if None not in column]


@pytest.mark.parametrize("lost", ["false", "true"])
@pytest.mark.parametrize("columns", [20, 600])
def test_the_shares_of_a_column_are_its_wall_time(client: TestClient, columns: int, lost: str) -> None:
    chart = get(client, f"time-chart?columns={columns}&lost={lost}")
    assert len(chart["times_ns"]) <= columns
    assert [sum(column) for column in columns_of(chart)] == pytest.approx([1.0] * len(columns_of(chart)), abs=0.001)


def test_lost_time_is_that_of_the_incidents(client: TestClient) -> None:
    chart = get(client, "time-chart?lost=true")
    incidents = {one["number"]: one for one in get(client, "incidents")["incidents"]}
    assert {one["number"] for one in chart["lost"]} == set(incidents)
    for one in chart["lost"]:
        shown_ns = sum(value or 0 for value in one["values"]) * chart["step_ns"] * len(chart["processes"])
        assert shown_ns == pytest.approx(incidents[one["number"]]["impact"]["lost_ns"], rel=0.03)


def test_no_time_is_lost_before_an_incident(client: TestClient) -> None:
    chart = get(client, "time-chart?lost=true")
    quiet = sum(time < BEGIN_NS + QUIET_S * SECOND_NS for time in chart["times_ns"]) - 2  # one may reach into it
    assert [sum(one["values"][:quiet]) for one in chart["lost"]] == pytest.approx([0.0, 0.0], abs=0.05)


def test_one_process_has_only_its_own_lost_time(client: TestClient) -> None:
    chart = get(client, "time-chart?lost=true&process=1")
    assert [one["cause"] for one in chart["lost"]] == ["cpu-contention"]


def test_the_host_and_the_pace_are_beside_it(client: TestClient) -> None:
    chart = get(client, "time-chart?columns=16")
    assert chart["rate_of"] == "sync interval"
    assert chart["rate"][2] == pytest.approx(153, rel=0.01)
    assert (chart["cpu"][2], chart["cpu"][12]) == pytest.approx((0.24, 0.98))


def test_a_selected_time_has_columns_of_its_own_and_the_same_shares(client: TestClient) -> None:
    part = get(client, f"time-chart?columns=600&{selected(10, 12)}")
    assert part["window"]["duration_ns"] == 2 * SECOND_NS
    assert len(part["times_ns"]) == 60
    whole = get(client, "time-chart?columns=16")
    busy = [next(one["values"] for one in chart["parts"] if one["name"] == "busy") for chart in (part, whole)]
    assert sum(busy[0]) / 60 == pytest.approx(busy[1][11], abs=0.01)


def test_steps_found_by_repetition_have_host_time_and_time_blocked_on_the_gpu(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "a.db", seconds=10) as run:
        add_steps(run, run.process(100, "python"), 0, 10, RepeatedStep(host_ms=6.0, blocked={"launch": 4.0}, noise=0))
    chart = get(client_of(tmp_path / "a.db"), "time-chart?columns=10")
    assert {one["name"]: one["values"][3] for one in chart["parts"]} == pytest.approx({"host": 0.6, "blocked": 0.4})
    assert (chart["rate_of"], chart["rate"][3]) == ("step", pytest.approx(100, rel=0.01))


def test_a_recording_without_a_pace_has_no_parts(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "a.db", seconds=3) as run:
        run.op(run.process(100, "python"), "cudaLaunchKernel", 1, 10, 0.1)
    chart = get(client_of(tmp_path / "a.db"), "time-chart?lost=true")
    assert (chart["parts"], chart["lost"], chart["processes"]) == ([], [], [])


def test_a_selected_time_has_the_incidents_that_touch_it_by_their_numbers(client: TestClient) -> None:
    whole = get(client, "incidents")["incidents"]
    assert get(client, f"incidents?{selected(1, 3)}")["incidents"] == []
    assert get(client, f"incidents?{selected(9, 10)}")["incidents"] == whole


@pytest.mark.parametrize("view", ["facts", "ops", "processes", "snapshots", "nccl", "memory", "containers", "drops"])
def test_every_view_is_of_the_selected_time(client: TestClient, view: str) -> None:
    found = get(client, f"{view}?{selected(2, 5)}")
    assert found["window"] == {
        "begin_ns": BEGIN_NS + 2 * SECOND_NS, "end_ns": BEGIN_NS + 5 * SECOND_NS, "duration_ns": 3 * SECOND_NS
    }  # fmt: skip


def test_a_time_outside_of_the_recording_is_empty(client: TestClient) -> None:
    found = get(client, f"ops?{selected(END_S + 50, END_S + 60)}")
    assert (found["ops"], found["window"]["duration_ns"]) == ([], 0)
    assert get(client, f"time-chart?{selected(END_S + 50, END_S + 60)}")["parts"] == []


def test_each_cause_has_what_proves_it_and_what_it_cannot_say(client: TestClient) -> None:
    found = get(client, "detections")["detections"]
    assert {one["cause"] for one in found} == {rule.cause for rule in all_rules()}
    assert all(one["evidence"] and one["limits"] for one in found)


def test_the_file_for_perfetto_is_a_trace_of_the_selected_time(client: TestClient) -> None:
    whole, part = (client.get(f"/api/v1/perfetto?{time}") for time in ("", selected(2, 3)))
    assert whole.headers["content-disposition"] == 'attachment; filename="ingero.pftrace"'
    assert whole.content[0] == 0x0A  # a packet of a trace
    assert 0 < len(part.content) < len(whole.content) / 5


def test_a_time_without_anything_gives_no_file(client: TestClient) -> None:
    response = client.get(f"/api/v1/perfetto?{selected(END_S + 50, END_S + 60)}")
    assert response.status_code == 400
    assert "was recorded" in response.json()["error"]["message"]


def test_the_report_of_a_time_is_one_file_to_take_away(client: TestClient) -> None:
    response = client.get("/api/v1/report")
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-disposition"] == 'attachment; filename="ingero-report.html"'
    assert response.content.startswith(BEGINNING)
    assert "cpu-contention" in response.text
    assert client.get(f"/api/v1/report?{selected(END_S + 50, END_S + 60)}").status_code == 404
