"""The agent as systemd runs it: user, capabilities and system calls of its unit, READY, the watchdog, and a reload."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.cli.service.units import DASHBOARD, TRACE, units
from ingero.serve.sql import run_sql
from tests.integration.callers import Caller, build_library, caller
from tests.integration.targets import rows
from tests.integration.test_faults_of_the_agent import INGERO
from tests.integration.unit_confinement import UID, allowed_calls, confined

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt-get install systemd"),
]
LIMIT_S = 60
QUESTION = "SELECT op_name, sum(count) FROM op_stats GROUP BY 1 ORDER BY 1"


@pytest.fixture
def traced_process(tmp_path: Path) -> Iterator[Caller]:
    with caller() as process:
        process.do("load", build_library(tmp_path / "lib"))
        yield process


class Service:
    """An agent that a service manager started, and what it told it."""

    def __init__(self, folder: Path) -> None:
        self.database, self.settings = folder / "state" / "ingero.db", folder / "ingero.yaml"
        self.messages: list[str] = []
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.settimeout(1)
        (folder / "notify").chmod(0o666)
        for name in ("state", "run"):
            (folder / name).mkdir()
            os.chown(folder / name, UID, UID)

    def start(self, unit: str, *command: str, uid: int = UID) -> None:
        """Starts a command as its unit says."""
        variables = {
            "NOTIFY_SOCKET": str(self._folder / "notify"), "WATCHDOG_USEC": str(LIMIT_S * 1_000_000),
            "INGERO_CONFIG": str(self.settings), "INGERO_RUN_DIR": str(self._folder / "run"),
            "HOME": str(self._folder / "state"), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        line = confined(units()[unit], self._folder, [*INGERO, *command], uid=uid)
        with (self._folder / "journal").open("wb") as journal:
            self.process = subprocess.Popen(line, env={**os.environ, **variables}, stdout=journal, stderr=journal)

    def journal(self) -> str:
        return (self._folder / "journal").read_text(errors="replace")

    def wait_for(self, wanted: str) -> str:
        """The next message that holds a text."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            assert self.process.poll() is None, self.journal()
            try:
                self.messages.append(self._socket.recv(65536).decode())
            except TimeoutError:
                continue
            if wanted in self.messages[-1]:
                return self.messages[-1]
        raise AssertionError(f"{wanted!r} was not told in {LIMIT_S} s: {self.messages} {self.journal()}")

    def close(self) -> None:
        self._socket.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path)
    yield found
    found.close()


def test_the_filter_allows_what_tracing_needs_and_not_what_it_does_not() -> None:
    allowed = allowed_calls(units()[TRACE])
    assert {"bpf", "perf_event_open", "capset", "openat", "clone"} <= allowed
    assert not {"ptrace", "mount", "setuid", "init_module", "reboot", "chroot", "chown"} & allowed


def test_the_agent_records_as_its_unit_lets_it_and_begins_anew_when_its_settings_change(
    service: Service, traced_process: Caller
) -> None:
    service.settings.write_text(f"db: {service.database}\npid: {traced_process.pid}\n")
    service.start(TRACE, "trace")
    ready = service.wait_for("READY=1")
    assert f"recording 1 process into {service.database}" in ready
    assert list(service.database.parent.glob("ingero.db"))  # what is told is there
    traced_process.do("call", 11, 1)
    service.wait_for("WATCHDOG=1")
    pid = service.process.pid

    service.settings.write_text(f"db: {service.database}\nmax-dp: 1g\n")
    os.kill(pid, signal.SIGHUP)
    service.wait_for("RELOADING=1")
    assert "max-dp" in service.wait_for("READY=1")
    assert "the settings stay as they were" in service.journal()

    service.settings.write_text(f"db: {service.database}\npid: {traced_process.pid}\nsampling-rate: 3\n")
    os.kill(pid, signal.SIGHUP)
    service.wait_for("RELOADING=1")
    assert "WATCHDOG_USEC=60000000" in service.wait_for("READY=1")
    traced_process.do("call", 13, 1)
    service.wait_for("WATCHDOG=1")
    service.wait_for("WATCHDOG=1")
    os.kill(pid, signal.SIGTERM)
    assert service.process.wait(LIMIT_S) == 0, service.journal()

    sessions = rows(service.database, "SELECT stopped_ns IS NOT NULL, options FROM raw_sessions ORDER BY session")
    assert [(has_ended, json.loads(options)["sampling_rate"]) for has_ended, options in sessions] == [(1, 0), (1, 3)]
    assert rows(service.database, "SELECT sum(count) FROM raw_op_stats") == [(24,)]
    assert service.database.stat().st_uid == UID
    assert "Traceback" not in service.journal()
    assert "tracing took" not in service.journal()  # no line each second: a journal is kept


def test_the_dashboard_answers_as_its_unit_lets_it(service: Service) -> None:
    """Without capabilities, and with processes that run statements. Root without any may read its own files only."""
    example = Path(__file__).resolve().parents[2] / "examples/recordings/incident.db"
    service.settings.write_text(f"db: {example}\ndashboard:\n  addr: 127.0.0.1:0\n  no-tls: true\n")
    service.start(DASHBOARD, "dashboard", uid=0)
    url = service.wait_for("READY=1").rpartition(" at ")[2].strip()
    question = json.dumps({"sql": QUESTION}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}api/v1/query", question, headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        rows_found = json.load(answer)["rows"]
    assert rows_found == [list(row) for row in run_sql(example, QUESTION).rows]
    service.process.send_signal(signal.SIGTERM)
    service.process.wait(LIMIT_S)
    assert "Traceback" not in service.journal()
