"""`ingero trace` says while it records what goes wrong, stores it, and `ingero explain` agrees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ingero.demo.faults import Fault, Workload
from ingero.demo.gpusim import build
from ingero.demo.workloads.program import Program
from tests.integration.targets import rows
from tests.integration.tracing import Tracer, tracing

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "src/ingero/cli/trace_events.schema.json").read_text())
HEALTHY_S = 6.0


@dataclass
class Hogged:
    """A training loop that hogs disturbed, and what the tracer said of it."""

    pid: int
    began_ns: int
    messages: list[dict[str, Any]]
    database: Path
    events: list[dict[str, Any]]

    def messages_of(self, kind: str) -> list[dict[str, Any]]:
        return [one["incident"] for one in self.messages if one["type"] == kind]


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address on this machine, and what was posted to it; what tells of an end is refused, as by a full disk."""
    events: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(507 if events[-1]["event"] == "closed" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing: standard error is the test's."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", events
        server.shutdown()


@pytest.fixture(scope="module")
def hogged(tmp_path_factory: pytest.TempPathFactory) -> Hogged:
    """CPU hogs disturb a training loop for six seconds after six quiet ones; each incident is posted."""
    with webhook() as (url, events):
        return recorded(tmp_path_factory.mktemp("live"), f"curl -sSf --data-binary @- {url}", events)


def recorded(folder: Path, command: str, events: list[dict[str, Any]]) -> Hogged:
    """command: of --on-incident, which adds to the events what it is given."""
    knobs, host_knobs = folder / "gpu.knobs", folder / "host.knobs"
    environment = {**os.environ, **build.environment(build.build(), ctl=knobs, sched="block")}
    arguments = ("--seconds", 60, "--workers", 1, "--knob", host_knobs, "--out", folder / "steps.jsonl")
    with Program.module("train", *arguments, environment=environment) as trainer:
        trainer.wait_for("ready")
        with tracing(folder, pids=[trainer.pid], options=["--on-incident", command]) as tracer:
            reader = threading.Thread(target=lambda: read(tracer))
            reader.start()
            time.sleep(HEALTHY_S)
            began_ns = time.time_ns()
            with Fault("cpu_hog").apply(Workload(pid=trainer.pid, knobs=knobs, host_knobs=host_knobs)):
                time.sleep(HEALTHY_S)
            tracer.process.send_signal(signal.SIGINT)
            reader.join()
            tracer.process.wait()
        return Hogged(trainer.pid, began_ns, tracer.messages, tracer.database, events)


def read(tracer: Tracer) -> None:
    """Every line until the tracer ends."""
    assert tracer.process.stdout is not None
    tracer.messages += [json.loads(line) | {"read_ns": time.time_ns()} for line in tracer.process.stdout]


def test_hogs_open_an_incident_while_they_run(hogged: Hogged) -> None:
    opened = hogged.messages_of("incident_opened")
    assert "cpu-contention" in [one["cause"] for one in opened]
    assert hogged.pid in [affected["pid"] for one in opened for affected in one["affected"]]


def test_a_webhook_gets_each_incident_as_it_opens_and_as_it_closes(hogged: Hogged) -> None:
    for event in ("opened", "closed"):
        reported = [(one["number"], one["start_ns"]) for one in hogged.messages_of(f"incident_{event}")]
        posted = [one["incident"] for one in hogged.events if one["event"] == event]
        assert [(one["number"], one["start_ns"]) for one in posted] == reported
    assert hogged.events[0]["recording"] == str(hogged.database)


def test_runs_of_the_command_that_failed_are_dropped_data_of_the_recording(hogged: Hogged) -> None:
    """Those that told of the end of an incident, and no others; at the very end the last second has been stored."""
    failed = len(hogged.messages_of("incident_closed"))
    assert failed > 0
    drops = {name: count for name, count in hogged.messages[-1]["drops"].items() if name.startswith("incident_command")}
    assert drops == {"incident_commands_failed": failed}
    stored = "SELECT sum(count) FROM drops WHERE counter = 'incident_commands_failed'"
    assert rows(hogged.database, stored) == [(failed,)]


def test_every_message_is_as_the_schema_says(hogged: Hogged) -> None:
    for message in hogged.messages:
        jsonschema.validate({name: value for name, value in message.items() if name != "read_ns"}, SCHEMA)


def test_the_incident_is_stored_and_closed(hogged: Hogged) -> None:
    found = rows(hogged.database, "SELECT cause, end_ns > timestamp, lost_ns > 0 FROM incidents")
    assert ("cpu-contention", 1, 1) in found
    chains = rows(hogged.database, "SELECT root_cause, incident FROM causal_chains")
    assert "cpu-contention" in [cause for cause, _ in chains]


def test_explain_finds_the_same_cause_and_says_so_by_its_exit_code(hogged: Hogged) -> None:
    command = [sys.executable, "-m", "ingero.cli.main", "explain", "--db", str(hogged.database)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "cpu-contention" in [one["cause"] for one in json.loads(done.stdout)["incidents"]]
    chains = subprocess.run([*command, "--chains"], capture_output=True, text=True, check=False)
    assert (chains.returncode, "cpu-contention" in chains.stdout) == (1, True)
