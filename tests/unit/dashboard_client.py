"""A client of the dashboard's API, without a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from ingero.serve.dashboard.app import create_app
from ingero.serve.dashboard.security import Gate, Sessions
from ingero.serve.recording_source import RecordingSource


def client_of(path: Path) -> TestClient:
    """Asks a dashboard of this recording."""
    sessions = Sessions("", is_secure=True)
    return TestClient(
        Gate(create_app(RecordingSource(path, may_lag=True), sessions), hosts=("testserver",), sessions=sessions)
    )


def get(client: TestClient, path: str, status: int = 200) -> Any:
    """The JSON answer of the API to a request with this status."""
    response = client.get(f"/api/v1/{path}")
    assert response.status_code == status, response.text
    return response.json()
