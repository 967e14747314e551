"""What `trace` refuses to give metrics to, and that it says so before it attaches anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.cli.config.settings import TraceSettings, resolve
from ingero.cli.metrics_outputs import MetricsError, open_outputs
from ingero.serve.otlp_endpoint import ENDPOINT_VARIABLE, PushError
from tests.unit.otlp_receiver import receiving


def settings(folder: Path, **flags: str) -> TraceSettings:
    return resolve({"db": str(folder / "a.db"), **flags}, {}, uid=os.getuid())


def test_without_an_output_nobody_takes_anything(tmp_path: Path) -> None:
    with open_outputs(settings(tmp_path), {}) as consumers:
        assert (consumers.on_second, consumers.on_finding) == ((), ())


def test_readable_metrics_do_not_leave_the_machine(tmp_path: Path) -> None:
    wanted = settings(tmp_path, otlp="collector.example:4318", otlp_insecure="true")
    with pytest.raises(PushError, match=r"collector\.example is another host"), open_outputs(wanted, {}):
        pass


def test_a_variable_alone_is_enough_and_what_it_cannot_do_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        receiving() as receiver,
        open_outputs(settings(tmp_path), {ENDPOINT_VARIABLE: f"http://127.0.0.1:{receiver.port}/x"}),
    ):
        pass
    assert receiver.requests[0][0] == "/x/v1/metrics"
    assert (
        f"metrics: pushed to http://127.0.0.1:{receiver.port}/x/v1/metrics ({ENDPOINT_VARIABLE})"
        in capsys.readouterr().err
    )
    with open_outputs(settings(tmp_path), {ENDPOINT_VARIABLE: "http://192.0.2.1:4318"}) as consumers:
        assert consumers.on_second == ()
    assert "metrics are not pushed: OTEL_EXPORTER_OTLP_ENDPOINT: 192.0.2.1 is another host" in capsys.readouterr().err


def test_variables_meant_for_others_do_not_keep_a_recording_from_being_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {ENDPOINT_VARIABLE: "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with open_outputs(settings(tmp_path), environ) as consumers:
        assert consumers.on_second == ()
    assert "metrics are not pushed: OTEL_EXPORTER_OTLP_PROTOCOL: gRPC is not supported" in capsys.readouterr().err
    with pytest.raises(PushError, match="gRPC"), open_outputs(settings(tmp_path, otlp="127.0.0.1:4318"), environ):
        pass


def test_an_address_that_others_reach_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_outputs(settings(tmp_path, prometheus="0.0.0.0:0")):
        assert "readable by everyone" in capsys.readouterr().err
    with open_outputs(settings(tmp_path, prometheus=":0")):
        assert "readable by everyone" not in capsys.readouterr().err


def test_failed_pushes_are_said_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_outputs(settings(tmp_path, otlp="127.0.0.1:1", otlp_insecure="true")):
        pass
    assert "/v1/metrics did not take 1 pushes; the last one: ConnectionRefusedError" in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ingero.serve.metrics.pushes", raising=False)
    monkeypatch.delitem(sys.modules, "ingero.serve.metrics.otlp", raising=False)
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # type: ignore[arg-type]  # how imports are refused
    wanted = settings(tmp_path, otlp=":4318", otlp_insecure="true")
    with pytest.raises(MetricsError, match="--otlp needs") as error, open_outputs(wanted):
        pass
    assert error.value.hint == "pip install 'ingero[metrics]'"


def test_a_recording_without_metrics_loads_nothing_for_them() -> None:
    code = "import sys, ingero.cli.trace.command; print([name for name in sys.modules if 'opentelemetry' in name or "
    code += "'serve.metrics' in name or name in ('http.server', 'prometheus_client')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
