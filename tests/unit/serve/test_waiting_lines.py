"""Every answer shows the line of the thread that waits for calls without Python frames, and marks it as that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Affected, CodeLine, FindingKind, Incident, Severity
from ingero.diagnose.incidents.incident_json import record_json
from ingero.serve.dashboard.incident_stacks import incident_stacks
from ingero.serve.mcp.untrusted import traced
from ingero.store import waiters
from tests.unit.dashboard_client import client_of, get
from tests.unit.mcp_client import call as call_tool
from tests.unit.mcp_client import content, server_of, text
from tests.unit.store.test_waiters import LAUNCH, MS, PID, Reader, call, look, recorded, sleep

INCIDENT = Incident(
    number=1, cause="cold-start", resource="", root="", kind=FindingKind.INCIDENT, severity=Severity.LOW, start_ns=0,
    end_ns=None, lost_ns=1, lost_ratio=0.1, explained_ratio=1.0, peak_ratio=0.1, summary="",
    affected=(Affected(process=1, pid=PID, name="python", lost_ns=1),),
)  # fmt: skip
PLACE, MARK = "/srv/me/train.py:58 in step", "[Python, of the thread that waits: 100/100]"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Two calls of a native thread in a sleep of the main thread, and one afterwards."""
    with recorded(
        tmp_path,
        lambda w: sleep(w, 10, 50),
        lambda w: look(w, 30),
        *(lambda w, at_ms=at_ms: call(w, at_ms) for at_ms in (20, 25, 60)),
    ) as opened:
        yield opened


@pytest.fixture
def client(reader: Reader) -> TestClient:
    return client_of(reader.path)


def steps(node: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    for child in node["children"]:
        yield child["kind"], child["name"], child["count"]
        yield from steps(child)


def test_the_tree_has_the_waiting_frames_as_a_kind_of_their_own(client: TestClient) -> None:
    tree = get(client, "tree?process=1")
    assert list(steps(tree["root"])) == [
        ("waiting", "train.py:58 in step", 2),
        ("native", "engine_run (libtorch.so)", 2),
        ("op", "cudaLaunchKernel", 2),
        ("native", "engine_run (libtorch.so)", 1),
        ("op", "cudaLaunchKernel", 1),
    ]
    assert tree["root"]["ns"] == 3 * MS


def test_the_line_that_waits_leads_to_the_calls_that_it_waits_for(client: TestClient) -> None:
    through = get(client, f"calls?process=1&line={quote(PLACE)}")["calls"]
    assert [(one["waiting_thread"], one["place"].endswith(f"train.py:58 in step {MARK}")) for one in through] == [
        ("100/100", True)
    ] * 2
    assert get(client, f"tree?process=1&line={quote(PLACE)}")["root"]["ns"] == 2 * MS
    frames = get(client, f"stacks/{through[0]['waiting']}")["frames"]
    assert [(one["file"], one["line"]) for one in frames] == [("/srv/me/train.py", 58)]


def test_a_call_that_nobody_waits_for_has_no_waiting_thread(client: TestClient) -> None:
    found = get(client, "calls?process=1")["calls"]
    assert sorted((one["waiting_thread"], one["waiting"] == "") for one in found) == [
        ("", True), ("100/100", False), ("100/100", False),
    ]  # fmt: skip


def test_an_incidents_stacks_end_in_the_frames_that_wait(reader: Reader) -> None:
    window = reader.window(None, 0)
    assert window
    state = {"now_ns": 0, "is_live": False, "older_version": "", "window": {}}
    found = incident_stacks(reader, window, state, INCIDENT)
    assert [(one.waiting_thread, [frame.kind for frame in one.frames], one.count) for one in found.calls] == [
        ("100/100", ["native", "waiting"], 2),
        ("", ["native"], 1),
    ]


def test_an_assistant_is_told_whose_line_it_is(reader: Reader) -> None:
    answer = call_tool(server_of(reader.path), "get_stacks")
    waited, alone = content(answer)["stacks"]
    assert (waited["waiting_thread"], waited["waiting_python"]) == ("100/100", [traced(PLACE)])
    assert waited["waiting_line"] == f"{traced(PLACE)} {MARK}"
    assert (waited["count"], alone["count"]) == (2, 1)
    assert "line" not in waited
    assert "waiting_line" not in alone
    assert f"from {traced(PLACE)} {MARK}" in text(answer)


def test_an_incidents_line_says_that_it_is_the_waiting_threads(reader: Reader) -> None:
    window = reader.window(None, 0)
    assert window
    line = Evidence(reader, window).call_line(window, 1, int(LAUNCH.source), LAUNCH.code)
    assert line == CodeLine(file="/srv/me/train.py", line=58, function="step", waiting_thread="100/100")
    assert str(line) == f"step() at /srv/me/train.py:58 {MARK}"
    assert json.loads(json.dumps(record_json(line)))["waiting_thread"] == "100/100"


def test_of_too_many_calls_nobody_is_looked_for_and_the_answers_say_so(
    reader: Reader, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "_MAX_CALLS", 2)
    tree = get(client, "tree?process=1")
    assert "waiting" not in {kind for kind, _, _ in steps(tree["root"])}
    assert tree["note"].startswith("3 recorded calls of threads without the user's own lines are too many")
    assert "too many" in content(call_tool(server_of(reader.path), "get_stacks"))["note"]
