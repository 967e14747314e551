"""`ingero check --nodes`: which nodes can be asked, which record, and what is to be mended."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ingero import __version__
from ingero.cli.main import cli
from ingero.fleet.access import Access
from ingero.fleet.node_lists import Node
from tests.unit.fleet_nodes import Certificates, make_certificates, record_node, serving_node
from tests.unit.hostile_nodes import http, listening, says

DEAD = Node("127.0.0.1", 1)
_S = 1_000_000_000


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ingero.yaml"
    path.write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(path))
    return path


def live(path: Path, node: str) -> Path:
    """A recording that somebody writes, for as long as a test may take."""
    record_node(path, node)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE raw_sessions SET stopped_ns = NULL, last_seen_ns = ?", (time.time_ns() + 3600 * _S,))
    db.close()
    return path


@pytest.fixture
def two(tmp_path: Path, certificates: Certificates) -> Iterator[list[Node]]:
    """Both record."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                serving_node(
                    live(tmp_path / f"{name}.db", name), made=certificates.make("node"), client_ca=certificates.ca
                )
            )
            for name in ("n1", "n2")
        ]


def check(nodes: Sequence[Node], access: Access | None, *more: str) -> Result:
    shown = ["--no-tls"] if access is None else [
        "--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert),
        "--client-key", str(access.client_key),
    ]  # fmt: skip
    listed = ",".join(node.authority for node in nodes)
    return CliRunner().invoke(cli, ["check", "--nodes", listed, *shown, "--timeout", "60s", *more])


def test_nodes_that_record_are_ready(two: list[Node], certificates: Certificates) -> None:
    done = check(two, certificates.client())
    lines = done.stdout.splitlines()
    assert lines[0].split("  ")[0] == "node"
    assert lines[2].split()[:4] == ["n1", two[0].authority, __version__, "yes"]
    assert lines[-1] == "2 of 2 nodes record and can be asked"
    assert done.exit_code == 0
    answer = json.loads(check(two, certificates.client(), "--json").stdout)
    assert (answer["version"], answer["ready"], answer["partial"]) == (1, True, False)
    for one in answer["nodes"]:
        assert (one["ingero_version"], one["is_recording"], one["problems"]) == (__version__, True, [])
        assert abs(one["clock"]["offset_ns"]) <= one["clock"]["bound_ns"]
        assert one["certificate_until"] > time.time()


def test_a_node_that_does_not_record_or_has_nothing_to_read_is_to_be_mended(
    two: list[Node], certificates: Certificates, tmp_path: Path
) -> None:
    made = certificates.make("soon", days=3)
    old = record_node(tmp_path / "old.db", "old")
    with (
        serving_node(old, made=made, client_ca=certificates.ca) as done_one,
        serving_node(tmp_path / "none.db", made=certificates.make("none"), client_ca=certificates.ca) as none,
    ):
        done = check([*two, done_one, none], certificates.client())
        answer = json.loads(check([done_one, none], certificates.client(), "--json").stdout)
    assert "old: it does not record: on the node, run `ingero trace` as root" in done.stdout
    assert "old: its certificate ends on " in done.stdout
    assert f"{none}: it has no recording that can be read: " in done.stdout
    assert "2 of 4 nodes record and can be asked" in done.stdout
    assert done.exit_code == 1
    assert [one["is_recording"] for one in answer["nodes"]] == [False, False]
    assert answer["nodes"][1]["error"]


def test_missing_nodes_make_it_partial(two: list[Node], certificates: Certificates) -> None:
    done = check([*two, DEAD], certificates.client())
    assert done.exit_code == 3
    assert "127.0.0.1:1: connection refused" in done.stderr
    assert "2 of 3 nodes record" in done.stdout
    alone = check([DEAD], certificates.client())
    assert "127.0.0.1:1: connection refused" in str(alone.exception)


def test_clocks_and_versions_that_differ_are_told(two: list[Node], certificates: Certificates, tmp_path: Path) -> None:
    path = live(tmp_path / "off.db", "off")
    with serving_node(
        path, made=certificates.make("off"), client_ca=certificates.ca, clock=lambda: time.time_ns() - 7 * _S
    ) as off:
        done = check([*two, off], certificates.client())
    assert "the clock of off is 7.00 s behind the others" in done.stdout
    assert done.exit_code == 1


@pytest.mark.parametrize("answer", [b"[]", b'{"version":"' + b"9" * 300 + b'","is_live":true}', b"<html>"])
def test_what_is_no_node_is_missing(answer: bytes) -> None:
    with listening(says(http("200 OK", answer))) as bad:
        done = check([bad], None)
    assert "its answer" in str(done.exception)


def test_this_machine_is_checked_where_no_nodes_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("fleet:\n  nodes: nowhere.invalid\n")
    monkeypatch.setattr("ingero.cli.check.machine.gather", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    done = CliRunner().invoke(cli, ["check"])
    assert done.exit_code != 0
    assert "nowhere" not in done.output + repr(done.exception)
    for more in (["--no-tls"], ["--timeout", "5s"]):
        assert "--nodes" in getattr(CliRunner().invoke(cli, ["check", *more]).exception, "hint", "")
