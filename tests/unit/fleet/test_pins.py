"""Nodes that no authority vouches for: known by the certificate that each showed first, and by no other."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner, Result

from ingero.cli import certs
from ingero.cli.fleet import options as fleet_options
from ingero.cli.main import cli
from ingero.fleet.authority import IssuedCertificate
from ingero.fleet.known_nodes import KnownNodeError, KnownNodes, KnownNodesError, forget
from ingero.fleet.node_lists import Node
from ingero.serve.http import renewal
from ingero.serve.http.tls import self_signed
from ingero.store.opening.locations import Owner
from tests.unit.fleet.test_page import got, refused
from tests.unit.fleet_nodes import record_node, serving_node
from tests.unit.hostile_nodes import listening

TOKEN = "fleet-token-0123456789abcdef"
NODE = Node("gpu-01")
# The command, for somebody whose home is another folder.
AT_HOME = """
import runpy, sys
from dataclasses import replace
from pathlib import Path
from ingero.cli.fleet import options as fleet_options
real, home = fleet_options.invoking_user, Path(sys.argv.pop(1))
fleet_options.invoking_user = lambda *given, **named: replace(real(*given, **named), home=home)
runpy.run_module("ingero.cli.main", run_name="__main__")
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of who asks: nobody's own files have a part in these tests."""
    owner = Owner(uid=os.getuid(), gid=os.getgid(), home=tmp_path / "home")
    for module in (fleet_options, certs):
        monkeypatch.setattr(module, "invoking_user", lambda *_, **__: owner)
    (tmp_path / "ingero.yaml").write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DB", raising=False)
    return owner.home


@pytest.fixture
def known(home: Path) -> Path:
    return home / ".ingero" / "known_nodes"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return record_node(tmp_path / "n1.db", "n1")


def pair(folder: Path, name: str) -> IssuedCertificate:
    """A self-signed certificate that stays, for 127.0.0.1."""
    made = self_signed(("127.0.0.1",), now=datetime.now(timezone.utc))
    files = folder / f"{name}.pem", folder / f"{name}.key"
    for file, text in zip(files, (made.certificate, made.key), strict=True):
        file.write_bytes(text)
    return IssuedCertificate(certificate=files[0], key=files[1], names=("127.0.0.1",), until=datetime.now(timezone.utc))


def query(node: Node, *more: str) -> Result:
    sql = "SELECT count(*) AS calls FROM events"
    return CliRunner().invoke(cli, ["query", "--nodes", node.authority, "--csv", "--timeout", "60s", *more, sql])


def test_a_node_is_known_from_its_first_use_on(tmp_path: Path, recording: Path, known: Path) -> None:
    with serving_node(recording, made=pair(tmp_path, "own")) as node:
        refused = query(node)
        assert "no trusted authority signed it" in str(refused.exception)
        assert not known.exists()
        first, second = query(node, "--pin"), query(node, "--pin")
    assert [(done.stdout, done.exit_code) for done in (first, second)] == [("calls\n8\n", 0)] * 2
    assert f"note: {node.authority} is known from now on by its certificate, SHA-256 " in first.stderr
    assert "known" not in second.stderr
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    [line] = [line for line in known.read_text().splitlines() if not line.startswith("#")]
    assert line.split()[0] == node.authority
    shown = ":".join(line.split()[1][at : at + 2] for at in range(0, 64, 2))
    assert shown in first.stderr


def test_another_certificate_is_refused_before_a_byte_is_said_until_the_node_is_forgotten(
    tmp_path: Path, recording: Path, known: Path
) -> None:
    heard = []

    def hear(client: socket.socket, _: threading.Event) -> None:
        heard.append(client.recv(1 << 16))

    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other = pair(tmp_path, "other")
    context.load_cert_chain(other.certificate, other.key)
    with serving_node(recording, made=pair(tmp_path, "own"), token=TOKEN) as node:
        assert query(node, "--pin", "--token-file", str(token)).exit_code == 0
        line = known.read_text().splitlines()[-1]
    with listening(hear, context=context) as stranger:
        known.write_text(line.replace(str(node.port), str(stranger.port)) + "\n")
        done = query(stranger, "--pin", "--token-file", str(token))
        assert "its certificate is not the one it is known by since " in str(done.exception)
        assert f"ingero certs forget {stranger}" in done.exception.hint  # type: ignore[union-attr]  # an IngeroError
        said = CliRunner().invoke(cli, ["certs", "forget", str(stranger), "gpu-99"]).stdout
        assert said == f"{stranger}: forgotten\ngpu-99: was not known\n"
    assert b"".join(heard) == b""  # it has heard all there was
    with serving_node(recording, made=other, token=TOKEN) as node:
        assert query(node, "--pin", "--token-file", str(token)).exit_code == 0


def test_a_node_that_is_refused_is_missing_and_costs_the_others_nothing(
    tmp_path: Path, recording: Path, known: Path
) -> None:
    other = record_node(tmp_path / "n2.db", "n2")
    with (
        serving_node(recording, made=pair(tmp_path, "a")) as good,
        serving_node(other, made=pair(tmp_path, "b")) as bad,
    ):
        known.parent.mkdir(parents=True)
        known.write_text(f"{bad.authority} {'0' * 64} 2026-01-02\n")
        known.chmod(0o600)
        done = CliRunner().invoke(
            cli, ["explain", "--nodes", f"{good.authority},{bad.authority}", "--pin", "--timeout", "60s"]
        )
    assert done.exit_code == 3
    assert f"{bad.authority}: its certificate is not the one it is known by since 2026-01-02" in done.stderr
    assert known.read_text().splitlines()[1:] == sorted(known.read_text().splitlines()[1:])
    assert f"{bad.authority} {'0' * 64} 2026-01-02" in known.read_text()
    assert good.authority in known.read_text()


def test_what_another_process_kept_first_stays(known: Path) -> None:
    one, other = KnownNodes(known), KnownNodes(known)
    one.check(NODE, b"first")
    other.check(NODE, b"second")
    other.check(Node("gpu-02"), b"x")
    one.keep()
    other.keep()
    later = KnownNodes(known)
    later.check(NODE, b"first")
    later.check(Node("gpu-02"), b"x")
    with pytest.raises(KnownNodeError):
        later.check(NODE, b"second")
    later.keep()
    assert later.kept == {}


def test_one_run_believes_one_certificate_of_a_node(known: Path) -> None:
    found = KnownNodes(known)
    found.check(NODE, b"first")
    with pytest.raises(KnownNodeError):
        found.check(NODE, b"second")
    found.check(Node("gpu-01", 8081), b"second")  # another server


def test_processes_that_meet_new_nodes_at_once_lose_none(known: Path) -> None:
    def meet(name: str) -> None:
        found = KnownNodes(known)
        found.check(Node(name), name.encode())
        found.keep()

    threads = [threading.Thread(target=meet, args=(f"gpu-{number:02}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.split(":")[0] for line in known.read_text().splitlines()[1:]] == [f"gpu-{n:02}" for n in range(20)]


def test_a_file_that_was_being_written_when_its_writer_died_is_not_read(known: Path) -> None:
    found = KnownNodes(known)
    found.check(NODE, b"first")
    found.keep()
    known.with_name(".known_nodes.new").write_text("half a li")
    later = KnownNodes(known)
    later.check(Node("gpu-02"), b"x")
    later.keep()
    assert len(known.read_text().splitlines()) == 3
    assert forget(known, [NODE]) == [NODE]
    assert forget(known, [NODE]) == []


@pytest.mark.parametrize(
    ("content", "mode", "wrong"),
    [
        (f"gpu-01:8080 {'A' * 64} 2026-01-02\nrubbish\n", 0o600, "line 2: it is not a known node"),
        (f"gpu-01:8080 {'a' * 64} 2026-01-02\n", 0o600, "line 1: it is not a known node"),
        ("\x1b[2J\n", 0o600, "line 1: it is not a known node"),
        (f"gpu-01:8080 {'A' * 64} 2026-01-02\n", 0o602, "others may write"),
        ("#\n" * (3 << 20), 0o600, "is larger than 4 MiB"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_not_used(known: Path, content: str, mode: int, wrong: str) -> None:
    known.parent.mkdir(parents=True)
    known.write_text(content)
    known.chmod(mode)
    done = query(Node("127.0.0.1", 1), "--pin")
    assert isinstance(done.exception, KnownNodesError)
    assert wrong in str(done.exception)
    assert done.exception.hint


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(tmp_path: Path, known: Path) -> None:
    known.parent.mkdir(parents=True)
    target = tmp_path / "target"
    target.write_text("")
    target.chmod(0o600)
    known.symlink_to(target)
    found = KnownNodes(known)
    found.check(NODE, b"first")
    found.keep()
    assert target.read_text() == ""
    assert not known.is_symlink()


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (("--pin", "--ca-cert", "ca.pem"), "--pin and --ca-cert exclude each other"),
        (("--pin", "--no-tls"), "without TLS there are no certificates"),
    ],
)
def test_what_contradicts_it_is_refused(more: tuple[str, ...], wrong: str) -> None:
    assert str(query(NODE, *more).exception) == wrong


def test_the_configuration_may_ask_for_it(tmp_path: Path, recording: Path, known: Path) -> None:
    with serving_node(recording, made=pair(tmp_path, "own")) as node:
        (tmp_path / "ingero.yaml").write_text(f"fleet:\n  nodes: {node.authority}\n  pin: true\n")
        sql = "SELECT count(*) AS calls FROM events"
        assert CliRunner().invoke(cli, ["query", "--csv", "--timeout", "60s", sql]).stdout == "calls\n8\n"
    assert known.exists()
    (tmp_path / "ingero.yaml").write_text("fleet:\n  nodes: a\n  pin: perhaps\n")
    assert str(CliRunner().invoke(cli, ["query", "SELECT 1"]).exception).endswith(
        "line 3: fleet.pin: 'perhaps' is neither true nor false"
    )


def test_whoever_asks_for_days_learns_that_a_node_was_forgotten(known: Path) -> None:
    found = KnownNodes(known)
    found.check(NODE, b"first")
    found.keep()
    with pytest.raises(KnownNodeError):
        found.check(NODE, b"second")
    assert forget(known, [NODE]) == [NODE]
    found.check(NODE, b"second")
    found.keep()
    KnownNodes(known).check(NODE, b"second")


def test_whoever_asks_for_days_believes_what_another_process_kept_first(known: Path) -> None:
    one, other = KnownNodes(known), KnownNodes(known)
    one.check(NODE, b"first")
    other.check(NODE, b"second")
    one.keep()
    other.keep()
    assert other.kept == {}
    with pytest.raises(KnownNodeError):
        other.check(NODE, b"second")


def test_threads_that_meet_new_nodes_at_once_lose_none(known: Path) -> None:
    found = KnownNodes(known)
    begin = threading.Barrier(20)

    def meet(name: str) -> None:
        begin.wait()
        found.check(Node(name), name.encode())
        found.keep()

    threads = [threading.Thread(target=meet, args=(f"gpu-{number:02}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(known.read_text().splitlines()) == 21
    assert len(found.kept) == 20


def test_what_could_not_be_written_is_tried_again(known: Path) -> None:
    found = KnownNodes(known)
    found.check(NODE, b"first")
    beside = known.with_name(".known_nodes.new")
    beside.mkdir(parents=True)  # in the place of the new file
    with pytest.raises(KnownNodesError):
        found.keep()
    beside.rmdir()
    found.keep()
    KnownNodes(known).check(NODE, b"first")


@contextmanager
def dashboard(node: Node, home: Path) -> Iterator[tuple[str, IO[str]]]:
    """The page of a node, in a process of its own: its address, and what the process says."""
    command = [sys.executable, "-c", AT_HOME, str(home), "dashboard", "--nodes", node.authority, "--pin", "--no-tls"]
    with subprocess.Popen([*command, "--addr", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            listening_at = re.match(r"1 nodes at (http://\S+)   ", process.stderr.readline())
            assert listening_at
            assert "everybody on this host can read it" in process.stderr.readline()
            yield listening_at[1], process.stderr
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def test_the_dashboard_of_nodes_knows_them_by_their_certificates(
    tmp_path: Path, recording: Path, home: Path, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "_CHECK_EVERY_S", 0.0)  # the node shows a new certificate at once
    monkeypatch.delenv("INGERO_DASHBOARD_TOKEN", raising=False)
    shown, other = pair(tmp_path, "shown"), pair(tmp_path, "other")
    with serving_node(recording, made=shown) as node, dashboard(node, home) as (page, says):
        heard = f"note: {node.authority} is known from now on by its certificate, SHA-256 "
        assert [row["node"] for row in got(f"{page}api/v1/fleet?since=1h")["nodes"]] == ["n1"]
        assert says.readline().startswith(heard)
        [line] = [line for line in known.read_text().splitlines() if not line.startswith("#")]
        assert line.startswith(f"{node.authority} ")

        for mine, its in ((shown.key, other.key), (shown.certificate, other.certificate)):
            mine.write_bytes(its.read_bytes())
        found = got(f"{page}api/v1/fleet?since=2h")
        assert (found["nodes"], found["missing_count"]) == ([], 1)
        assert found["missing"][0]["nodes"] == [str(node)]
        assert found["missing"][0]["reason"].startswith("its certificate is not the one it is known by since ")
        assert f"ingero certs forget {node}" in found["missing"][0]["hint"]
        view = refused(f"{page}api/v1/fleet/nodes/0/overview")
        assert view["message"].startswith(f"{node}: its certificate is not the one")

        CliRunner().invoke(cli, ["certs", "forget", str(node)])
        assert [row["node"] for row in got(f"{page}api/v1/fleet?since=3h")["nodes"]] == ["n1"]
        assert says.readline().startswith(heard)
    assert line not in known.read_text()
