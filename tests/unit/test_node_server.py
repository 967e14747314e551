"""`ingero trace --serve`: the node's server beside a recording, in a process that can do less and harm nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero.cli.config.option_table import OptionError
from ingero.cli.config.settings import TraceSettings, resolve
from ingero.cli.main import cli
from ingero.cli.node_server import ServerBeside, server_options, serving_beside
from ingero.errors import IngeroError
from tests.unit.fleet_nodes import Certificates, make_certificates, record_node

NOBODY = 65534
PROGRAM = """
import os, sys, time
from ingero.cli.node_server import serving_beside
from ingero.cli.config.settings import resolve
from ingero.cli.node_server import server_options
settings = resolve({"serve": "127.0.0.1:0", "db": sys.argv[1]}, {}, uid=os.getuid())
with serving_beside(settings, server_options(settings, {}, {}), {}) as server:
    server.say_where()
    print(server._pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's own ingero.yaml has a part in these tests."""
    (tmp_path / "ingero.yaml").write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DASHBOARD_TOKEN", raising=False)


def settings(database: Path, **flags: str) -> TraceSettings:
    return resolve({"db": str(database), "serve": "127.0.0.1:0"} | flags, dict(os.environ), uid=os.getuid())


@contextmanager
def beside(wanted: TraceSettings, **flags: str) -> Iterator[ServerBeside]:
    """flags: those of the dashboard."""
    with serving_beside(wanted, server_options(wanted, flags, os.environ), os.environ) as server:
        assert server is not None
        server.say_where()
        yield server


def port_of(said: str) -> int:
    found = re.search(r"serving at https?://127\.0\.0\.1:(\d+)/", said)
    assert found, said
    return int(found[1])


def is_there(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def test_it_answers_other_machines_as_the_dashboard_does(
    tmp_path: Path, certificates: Certificates, capfd: pytest.CaptureFixture[str]
) -> None:
    made, client = certificates.make("node"), certificates.client()
    wanted = settings(record_node(tmp_path / "a.db", "gpu-01"))
    flags = {"tls_cert": str(made.certificate), "tls_key": str(made.key), "client_ca": str(certificates.ca)}
    with beside(wanted, **flags) as server:
        said = capfd.readouterr().err
        address = f"127.0.0.1:{port_of(said)}"
        asked = ["query", "--nodes", address, "--ca-cert", str(certificates.ca), "--csv", "SELECT node FROM sessions",
                 "--timeout", "60s"]  # fmt: skip  # others may use the machine
        shown = ["--client-cert", str(client.client_cert), "--client-key", str(client.client_key)]
        assert CliRunner().invoke(cli, [*asked, *shown]).stdout == "node\ngpu-01\n"
        assert CliRunner().invoke(cli, asked).exception is not None  # nobody without a certificate
        assert is_there(server._pid)
        server.report_end()
    assert not is_there(server._pid)
    assert capfd.readouterr().err == ""


def test_without_certificates_it_says_who_can_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with beside(settings(tmp_path / "not-yet.db")):  # what is recorded comes later
        said = capfd.readouterr().err
    assert "SHA-256" in said
    assert "everybody on this host can read it" in said


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"serve": "0.0.0.0:0"}, "can be reached from other hosts, and there is no token"),
        ({"serve": "0.0.0.0:0", "no_tls": "true"}, "--no-tls on"),
        ({"tls_cert": "/nowhere"}, "a certificate needs its key"),
        ({"tls_cert": "/nowhere", "tls_key": "/nowhere"}, "/nowhere"),
        ({"token_file": "/nowhere"}, "/nowhere: No such file"),
    ],
)
def test_what_the_dashboard_refuses_is_refused_before_anything_is_recorded(
    tmp_path: Path, flags: dict[str, str], reason: str
) -> None:
    serve = flags.get("serve", "127.0.0.1:0")
    of_server = {name: text for name, text in flags.items() if name != "serve"}
    with (
        pytest.raises(IngeroError, match=reason) as raised,
        beside(settings(tmp_path / "a.db", serve=serve), **of_server),
    ):
        pass
    assert raised.value.hint


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(IngeroError, match=f"cannot listen on {where}"),
            beside(settings(tmp_path / "a.db", serve=where)),
        ):
            pass


def test_its_end_is_said_once_and_ends_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with beside(settings(tmp_path / "a.db", serve="127.0.0.1:0")) as server:
        os.kill(server._pid, signal.SIGKILL)
        until = time.monotonic() + 5
        while not caplog.records and time.monotonic() < until:
            server.report_end()
        server.report_end()
    (record,) = caplog.records
    assert record.getMessage().startswith("the node's server has ended (signal 9); the recording goes on. ingero dash")


def test_it_ends_with_the_recorder_however_that_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "a.db")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as recorder:
        assert recorder.stdout is not None
        pid = int(recorder.stdout.readline())
        assert is_there(pid)
        recorder.kill()
    until = time.monotonic() + 5
    while is_there(pid):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
def test_it_has_no_rights(certificates: Certificates, capfd: pytest.CaptureFixture[str]) -> None:
    """Who owns the recording reads it; keys that root alone may read were read before."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        database = record_node(folder / "a.db", "gpu-01")
        for path in (folder, *folder.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        made = certificates.make("node")
        wanted = resolve(
            {"db": str(database), "serve": "127.0.0.1:0"}, dict(os.environ) | {"SUDO_UID": str(NOBODY)}, uid=0
        )
        with beside(wanted, tls_cert=str(made.certificate), tls_key=str(made.key)) as server:
            status = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{server._pid}/status").read_text().splitlines()
                if ":\t" in line
            )
            port = port_of(capfd.readouterr().err)
            context = ssl.create_default_context(cafile=str(certificates.ca))
            with context.wrap_socket(
                socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1"
            ) as asking:
                asking.sendall(b"GET /api/v1/health HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n")
                answer = b"".join(iter(lambda: asking.recv(4096), b""))
    finally:
        shutil.rmtree(folder)
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(NOBODY)}
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert status["Groups"].strip() == ""
    assert b'"status":"ok"' in answer.replace(b" ", b"")


def test_nothing_is_served_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--serve has no effect with --record"):
        settings(tmp_path / "a.db", record="false")
    with pytest.raises(OptionError, match="--client-ca has no effect without --serve"):
        server_options(resolve({}, {}, uid=1), {"client_ca": "/a"}, {})
    (tmp_path / "serving.yaml").write_text("serve: :8080\n")
    only_watching = resolve({"config": str(tmp_path / "serving.yaml"), "record": "false"}, {}, uid=1)
    with serving_beside(only_watching, server_options(only_watching, {}, {}), {}) as server:
        assert server is None


def test_the_dashboards_section_of_the_file_says_how_it_is_served(tmp_path: Path) -> None:
    (tmp_path / "ingero.yaml").write_text(
        "serve: :8443\ndashboard:\n  addr: :9999\n  client-ca: /srv/ca.pem\n  tls-key: /srv/key\n"
    )
    options = server_options(resolve({}, os.environ, uid=os.getuid()), {"client_ca": "/a"}, os.environ)
    assert options is not None
    assert (options.address.port, options.client_ca, options.key) == (8443, Path("/a"), Path("/srv/key"))
