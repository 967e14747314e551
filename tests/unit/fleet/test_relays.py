"""Nodes asked through relays answer what they answer directly; a relay is no way to anywhere else, good or hostile."""

from __future__ import annotations

import dataclasses
import json
import random
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from click.testing import CliRunner, Result

from ingero.cli.fleet.options import Fleet
from ingero.cli.fleet.output import say_asking
from ingero.cli.main import cli
from ingero.fleet.access import Access, client_context
from ingero.fleet.client import PIECE_BYTES, NodeClient, NodeRows, Question
from ingero.fleet.clocks import EXCHANGES, Clock, Exchange, estimate, through_relay
from ingero.fleet.fan_out import FleetAnswer, Reach, ask_nodes
from ingero.fleet.node_lists import Node, NodeListError
from ingero.fleet.planned_rows import FleetRows, fleet_rows
from ingero.fleet.recordings import fetch_since, merge_parts
from ingero.fleet.relay_frames import (
    MEDIA_TYPE,
    RELAY_PATH,
    FrameError,
    FrameReader,
    end_of,
    failed,
    pieces_of,
    question_for,
    whole,
)
from ingero.fleet.relay_list import RelayList, parse_relay_list
from ingero.fleet.relay_server import RelayService
from ingero.fleet.relays import ViaError, longest_s, via_of
from ingero.serve.sql import Answer
from ingero.serve.structured.row_lines import MEDIA_TYPE as ROWS_TYPE
from ingero.serve.structured.row_lines import Identity, row_lines
from ingero.store.reader import open_reader
from ingero.store.user_sql.errors import SqlError
from tests.unit.delayed_clock import MessageDelay, simulated
from tests.unit.fleet_nodes import Certificates, make_certificates, record_node, serving_fleet, serving_node
from tests.unit.hostile_nodes import Handler, drip, endless_rows, endless_small_rows, http, listening, says, silence
from tests.unit.statement_nodes import EXOTIC, generated, write_nodes

NAMES = ("gpu-node-01", "gpu-node-02", "gpu-node-03", "gpu-node-04")
LOOPBACK = "127.0.0.0/8"
DEAD = Node("127.0.0.1", 1)
CALLS = "SELECT node, count(*) AS calls FROM events GROUP BY node ORDER BY node"
PLAIN = Access(has_tls=False)
LITTLE_S = 5.0  # for a relay that never answers, twice
MOST_MB = 200
_MS = 1_000_000


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(scope="module")
def client(certificates: Certificates) -> Access:
    return certificates.client()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def fleet(folder: Path, certificates: Certificates) -> Iterator[list[Node]]:
    with serving_fleet(folder, certificates, NAMES) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def relays(folder: Path, certificates: Certificates) -> Iterator[list[Node]]:
    """Two of them."""
    with ExitStack() as stack:
        yield [stack.enter_context(relaying(folder / f"relay-{number}.db", certificates)) for number in (1, 2)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's own ingero.yaml has a part in these tests."""
    path = tmp_path / "ingero.yaml"
    path.write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(path))
    monkeypatch.delenv("INGERO_DB", raising=False)
    return path


class AnyNode:
    """A list that has every node on it: ports of tests are not known before."""

    def allows(self, _: Node) -> bool:
        return True


def service(certificates: Certificates, allowed: RelayList | None = None) -> RelayService:
    """What asks nodes of that authority with a certificate of its own."""
    access = certificates.client("relay")
    context = client_context(access)
    assert context is not None
    return RelayService(access=access, context=context, allowed=allowed or cast("RelayList", AnyNode()))


@contextmanager
def relaying(path: Path, certificates: Certificates, allowed: RelayList | None = None, *, has_tls: bool = True,
             clock: Callable[[], int] | None = None) -> Iterator[Node]:  # fmt: skip
    """A node that asks others for its clients."""
    if not path.exists():
        record_node(path, path.stem)
    more = {"clock": clock} if clock else {}
    secured = {"made": certificates.make("node"), "client_ca": certificates.ca} if has_tls else {"has_tls": False}
    with serving_node(path, relay=service(certificates, allowed), **secured, **more) as node:  # type: ignore[arg-type]  # names and values go together
        yield node


def reach(
    nodes: Sequence[Node], access: Access, *levels: Sequence[Node], timeout_s: float = 60.0, **more: bool
) -> Reach:
    via = via_of(nodes, levels, **more) if levels else None
    return Reach(nodes=tuple(nodes), access=access, context=client_context(access), timeout_s=timeout_s, via=via)


def options(access: Access) -> list[str]:
    return ["--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert), "--client-key",
            str(access.client_key), "--timeout", "60s"]  # fmt: skip


def listed(nodes: Sequence[Node]) -> str:
    return ",".join(node.authority for node in nodes)


def run(command: str, nodes: Sequence[Node], access: Access, *more: str, via: Sequence[Node] = ()) -> Result:
    through = ["--via", listed(via)] if via else []
    return CliRunner().invoke(cli, [command, "--nodes", listed(nodes), *through, *options(access), *more])


def rows_of(found: Reach) -> FleetAnswer[NodeRows]:
    async def ask(one: NodeClient) -> NodeRows:
        return await one.rows("SELECT 1 AS x", limit=1, timeout_s=60)

    return ask_nodes(found, ask)


def answer(reached: Reach, sql: str, limit: int | None = None) -> FleetRows | str:
    """Without clocks, which are of the moment; the error where there is one."""
    try:
        return dataclasses.replace(fleet_rows(reached, sql, limit=limit), clocks={})
    except SqlError as error:
        return str(error)


def test_statements_answer_through_relays_what_they_answer_directly(
    tmp_path: Path, certificates: Certificates, client: Access, relays: list[Node]
) -> None:
    made = certificates.make("node")
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(serving_node(path, made=made, client_ca=certificates.ca))
            for path in write_nodes(tmp_path).values()
        ]
        direct, through = reach(nodes, client), reach(nodes, client, relays)
        rng = random.Random(7)
        for sql in [*generated(seed=5, count=6), *rng.sample(EXOTIC, 4)]:
            assert answer(through, sql) == answer(direct, sql), sql
        values = (
            "9223372036854775807 AS i, -9223372036854775808 AS least, 1.0 AS r, 'ä\x1b' AS t, x'00ff' AS b, 9e999 AS f"
        )
        for sql in (f"SELECT {values}, NULL AS n FROM sessions", "SELECT * FROM events", "SELECT pid FROM nowhere"):
            assert answer(through, sql, 5) == answer(direct, sql, 5), sql
        found = answer(through, f"SELECT {values} FROM sessions")
    assert isinstance(found, FleetRows)
    assert found.columns == ("node", "i", "least", "r", "t", "b", "f")
    assert found.rows[0][1:] == (2**63 - 1, -(2**63), 1.0, "ä\x1b", b"\x00\xff", float("inf"))


@pytest.mark.parametrize(
    "command",
    [("query", "--json", CALLS), ("explain", "--json"), ("check", "--json"), ("compare", "--json")],
    ids=" ".join,
)
def test_commands_say_through_relays_what_they_say_directly(
    fleet: list[Node], relays: list[Node], client: Access, command: tuple[str, ...]
) -> None:
    name, *more = command
    nodes = [*fleet, DEAD]

    def said(via: Sequence[Node]) -> tuple[Any, int]:
        done = run(name, nodes, client, *more, via=via)
        found = json.loads(done.stdout)
        found.pop("clocks", None)
        for one in found.get("order", []):
            one.pop("start_ns"), one.pop("bound_ns"), one.pop("is_order_known")
        for one in found.get("nodes", []):
            if isinstance(one, dict):
                one.pop("clock", None)
        return found, done.exit_code

    through = said(relays)
    assert through == said(())
    assert [(one["node"], one["reason"]) for one in through[0]["missing"]] == [(str(DEAD), "connection refused")]
    assert through[1] == 3


def test_parts_of_recordings_come_through_relays(
    fleet: list[Node], relays: list[Node], client: Access, tmp_path: Path
) -> None:
    counts = []
    for name, reached in (("direct", reach(fleet, client)), ("via", reach(fleet, client, relays))):
        (tmp_path / name).mkdir()
        found = fetch_since(reached, tmp_path / name, "", most_bytes=64 << 20)
        assert found.missing == ()
        whole_file = tmp_path / f"{name}.db"
        merge_parts(found, whole_file, progress=lambda _name, _share: None)
        with open_reader(whole_file) as reader:
            counts.append(reader.connection.execute("SELECT node, count(*) FROM events GROUP BY 1").fetchall())
    assert counts[0] == counts[1]
    assert len(counts[0]) == len(NAMES)


def test_reasons_of_nodes_come_through_as_they_are(
    fleet: list[Node], relays: list[Node], client: Access, certificates: Certificates, folder: Path
) -> None:
    path = record_node(folder / "fifth.db", "gpu-node-05")
    stranger = make_certificates(folder / "stranger")
    empty = folder / "absent.db"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own = certificates.make("hostile")
    context.load_cert_chain(own.certificate, own.key)
    with ExitStack() as stack:
        enter = stack.enter_context
        bad = [
            enter(serving_node(path, made=certificates.make("wrong", "gpu-77.example"), client_ca=certificates.ca)),
            enter(serving_node(path, made=stranger.make("theirs"), client_ca=certificates.ca)),
            enter(serving_node(empty, made=certificates.make("node"), client_ca=certificates.ca)),
            enter(listening(silence)),
            enter(listening(endless_rows, context=context)),
            enter(listening(endless_small_rows, context=context)),
            enter(listening(says(http("200 OK", b"hello")))),
            Node("nowhere.invalid"),
        ]
        nodes = [*fleet, *bad]
        direct, through = (rows_of(reach(nodes, client, *via, timeout_s=5)) for via in ((), (relays,)))
    told = [[(one.node, one.reason, one.is_said) for one in found.missing] for found in (direct, through)]
    assert told[0] == told[1]
    assert [one.node for one in through.missing] == bad
    assert [one.node for one in through.answered] == fleet


def test_the_nodes_of_a_relay_that_fails_are_each_missing_or_asked_directly(
    fleet: list[Node], relays: list[Node], client: Access
) -> None:
    via = [relays[0], DEAD]
    done = run("query", fleet, client, "--json", CALLS, via=via)
    found = json.loads(done.stdout)
    assert [row["node"] for row in found["rows"]] == list(NAMES[:2])
    reason = "its relay 127.0.0.1:1: connection refused"
    assert [(one["node"], one["reason"]) for one in found["missing"]] == [
        (node.authority, reason) for node in fleet[2:]
    ]
    assert (found["partial"], done.exit_code) == (True, 3)
    again = run("query", fleet, client, "--json", "--retry-directly", CALLS, via=via)
    assert [row["node"] for row in json.loads(again.stdout)["rows"]] == list(NAMES)
    assert again.exit_code == 0


def test_a_node_that_does_not_relay_says_how_it_would(fleet: list[Node], client: Access) -> None:
    found = rows_of(reach(fleet[1:], client, fleet[:1]))
    assert {one.reason for one in found.missing} == {f"its relay {fleet[0]}: it does not relay"}
    assert "--relay" in found.missing[0].hint


def test_relays_ask_through_further_relays(
    fleet: list[Node], relays: list[Node], client: Access, folder: Path, certificates: Certificates
) -> None:
    with ExitStack() as stack:
        below = [stack.enter_context(relaying(folder / f"below-{number}.db", certificates)) for number in (1, 2, 3)]
        nodes = [*fleet, DEAD]
        direct, through = reach(nodes, client), reach(nodes, client, relays, below)
        assert answer(through, CALLS) == answer(direct, CALLS)
        assert [share.further for share in (through.via.shares if through.via else ())] == [
            (tuple(below[:1]),),
            (tuple(below[1:]),),
        ]
        found = rows_of(through)
        assert all(one.clock is not None and one.clock.bound_ns > 0 for one in found.answered)
        lost = rows_of(reach(nodes, client, relays, [below[0], Node("127.0.0.1", 2), Node("127.0.0.1", 3)]))
    assert [one.node for one in lost.answered] == fleet[:2]
    assert {one.reason for one in lost.missing} == {
        "its relay 127.0.0.1:2: connection refused",
        "its relay 127.0.0.1:3: connection refused",
    }


def test_relays_that_would_ask_in_circles_or_too_deep_are_refused() -> None:
    nodes, one, two = [Node("n")], Node("r1"), Node("r2")
    with pytest.raises(ViaError, match="r1 is a relay of two levels"):
        via_of(nodes, [[one], [two, one]])
    with pytest.raises(ViaError, match="3 levels"):
        via_of(nodes, [[one], [two], [Node("r3")]])
    with pytest.raises(ViaError, match="fewer relays"):
        via_of(nodes, [[one, two], [Node("r3")]])


def test_nodes_are_shared_out_evenly_and_each_once() -> None:
    rng = random.Random(3)
    for _ in range(200):
        nodes = [Node(f"n{number}") for number in range(rng.randrange(1, 300))]
        found = via_of(nodes, [[Node(f"r{number}") for number in range(rng.randrange(1, 90))]])
        assert [node for share in found.shares for node in share.nodes] == nodes
        sizes = {len(share.nodes) for share in found.shares}
        assert max(sizes) - min(sizes) <= 1


def test_a_relay_has_the_time_that_its_nodes_may_take() -> None:
    assert longest_s(64, [], timeout_s=5, at_once=64) == 10
    assert longest_s(65, [], timeout_s=5, at_once=64) == 15
    assert longest_s(4096, [64], timeout_s=5, at_once=64) == 15
    assert longest_s(16, [], timeout_s=5, at_once=8) == 15


# --- what a relay may be asked -------------------------------------------------------------------------------------


def ask_relay(relay: Node, access: Access, body: bytes) -> tuple[int, bytes]:
    """Status and body of an answer of a relay, asked by hand."""
    context = client_context(access)
    assert context is not None
    head = f"POST {RELAY_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with (
        socket.create_connection((relay.host, relay.port), 30) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as asking,
    ):
        asking.sendall(head.encode() + body)
        said = b""
        while piece := asking.recv(1 << 16):
            said += piece
    return int(said.split(b" ", 2)[1]), said.partition(b"\r\n\r\n")[2]


NODE = ["127.0.0.1", 1, "", 0]
VIEW = {"path": "/api/v2/node", "media_type": "application/json"}
QUESTION: dict[str, Any] = {"questions": [VIEW], "nodes": [NODE], "timeout_s": 5}
REFUSED: dict[str, Any] = {
    "no JSON": b"\x00",
    "another host's path": QUESTION | {"questions": [VIEW | {"path": "http://169.254.169.254/latest"}]},
    "a path elsewhere": QUESTION | {"questions": [VIEW | {"path": "/login"}]},
    "a path that climbs": QUESTION | {"questions": [VIEW | {"path": "/api/v1/../../login"}]},
    "a second request in the path": QUESTION | {"questions": [VIEW | {"path": "/api/v1/ops\r\nX: y"}]},
    "a line's end behind the path": QUESTION | {"questions": [VIEW | {"path": "/api/v1/ops\n"}]},
    "a body for another address": QUESTION | {"questions": [VIEW | {"body": "{}"}]},
    "a statement without one": QUESTION | {"questions": [{"path": "/api/v2/query", "media_type": ROWS_TYPE}]},
    "the relay itself": QUESTION | {"questions": [{"path": RELAY_PATH, "media_type": MEDIA_TYPE, "body": "{}"}]},
    "another kind of answer": QUESTION | {"questions": [VIEW | {"media_type": "text/html"}]},
    "no nodes": QUESTION | {"nodes": []},
    "a node twice": QUESTION | {"nodes": [NODE, NODE]},
    "a node without a question": QUESTION | {"nodes": [["127.0.0.1", 1, "", 1]]},
    "no host": QUESTION | {"nodes": [["a b", 1, "", 0]]},
    "no address": QUESTION | {"nodes": [["a", 1, "b", 0]]},
    "too many nodes": QUESTION | {"nodes": [[f"n{number}", 1, "", 0] for number in range(2001)]},
    "too many at once": QUESTION | {"at_once": 65},
    "no time": QUESTION | {"timeout_s": 0},
    "too many relays to come": QUESTION | {"via": [[["a", 1, ""]], [["b", 1, ""]]]},
    "no relays to come": QUESTION | {"via": [[]]},
    "what nobody knows": QUESTION | {"token": "x"},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_relay_refuses_what_is_no_question_to_ingero(relays: list[Node], client: Access, name: str) -> None:
    body = REFUSED[name]
    status, said = ask_relay(relays[0], client, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert status == 400
    assert json.loads(said)["error"]["hint"]


def test_a_relay_asks_those_of_its_list_and_nobody_else(
    fleet: list[Node], certificates: Certificates, client: Access, folder: Path
) -> None:
    reached = threading.Event()
    with ExitStack() as stack:
        other = stack.enter_context(listening(lambda *_: reached.set(), is_read=False))
        allowed = parse_relay_list([listed(fleet[:2])])
        relay = stack.enter_context(relaying(folder / "strict.db", certificates, allowed))
        found = rows_of(reach([*fleet, other], client, [relay]))
        status, said = ask_relay(
            relay, client, json.dumps(QUESTION | {"via": [[[other.host, other.port, ""]]]}).encode()
        )
    assert [one.node for one in found.answered] == fleet[:2]
    assert {one.reason for one in found.missing} == {
        "its relay does not ask it: it is not in the list that the relay was given"
    }
    assert (status, "does not ask" in json.loads(said)["error"]["message"]) == (400, True)
    assert not reached.is_set()


def test_what_is_connected_to_has_to_be_in_the_list() -> None:
    allowed = parse_relay_list(["gpu[01-03],10.1.0.0/16:9443", "fd00::/64 [fd01::1]:99,node:81"])
    yes = [Node("gpu01"), Node("node", 81), Node("fd01::1", 99), Node("fd00::7"), Node("10.1.2.3", 9443),
           Node("pod", 9443, "10.1.2.3")]  # fmt: skip
    no = [Node("gpu04"), Node("gpu01", 81), Node("gpu01", 8080, "10.1.2.3"), Node("gpu01", 8080, "169.254.169.254"),
          Node("10.1.2.3"), Node("10.2.0.1", 9443), Node("fd02::1"), Node("::ffff:10.1.2.3", 9443)]  # fmt: skip
    assert [allowed.allows(node) for node in (*yes, *no)] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    "text", ["0.0.0.0/0", "::/0", "10.0.0.1/8", "10.0.0.0/8:0", "10.0.0.0/x", "gpu 1/8", "", "k8s:a/b"]
)
def test_a_list_that_allows_everybody_or_nobody_is_refused(text: str) -> None:
    with pytest.raises(NodeListError):
        parse_relay_list([text])


def test_a_node_gets_nothing_of_a_relay_without_tls(relays: list[Node], client: Access) -> None:
    heard: list[bytes] = []
    with listening(lambda one, _: heard.append(one.recv(1 << 16)), is_read=False) as plain:
        found = rows_of(reach([plain], client, relays[:1]))
    assert found.answered == ()
    assert heard
    assert all(piece[:1] == b"\x16" and b"HTTP" not in piece for piece in heard)  # the begin of a handshake


def test_who_has_no_certificate_of_the_authority_asks_through_no_relay(
    fleet: list[Node], relays: list[Node], certificates: Certificates
) -> None:
    found = rows_of(reach(fleet, Access(ca_cert=certificates.ca), relays))
    assert found.answered == ()
    assert "--client-cert" in found.missing[0].hint + found.missing[0].reason


def test_a_relay_gives_up_when_its_client_goes(relays: list[Node], client: Access, certificates: Certificates) -> None:
    came, gone = threading.Event(), threading.Event()
    made = certificates.make("node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)

    def waits(one: socket.socket, _: threading.Event) -> None:
        one.settimeout(60)
        came.set()
        try:
            while one.recv(1 << 16):
                pass
        finally:
            gone.set()

    with listening(waits, context=context) as node:
        asked = question_for([(node, Question("/api/v2/node", "application/json"))], [], timeout_s=600, at_once=64)
        to_relay = client_context(client)
        assert to_relay is not None
        head = f"POST {RELAY_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(asked)}\r\n\r\n".encode()
        with (
            socket.create_connection(("127.0.0.1", relays[0].port), 30) as raw,
            to_relay.wrap_socket(raw, server_hostname="127.0.0.1") as asking,
        ):
            asking.sendall(head + asked)
            assert came.wait(60)
        assert gone.wait(60)


# --- relays that are none -------------------------------------------------------------------------------------------

HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\n\r\n".encode()
ANSWER = b"".join(
    row_lines(
        Answer(columns=("x",), rows=[(1,)], is_truncated=False, elapsed_ns=1, notes=()),
        Identity(nodes=["evil"], machine_id="", recording="e"),
    )
)
GOOD = b"".join(pieces_of(0, ANSWER)) + end_of(0, whole("", None))


def endless_pieces(client: socket.socket, is_over: threading.Event) -> None:
    """Of a node that it was asked for, without end."""
    client.sendall(HEAD)
    while not is_over.is_set():
        client.sendall(b"".join(pieces_of(0, b"[" + b"1," * (PIECE_BYTES // 2 - 1))))


def endless_line(client: socket.socket, is_over: threading.Event) -> None:
    """A line that does not end."""
    client.sendall(HEAD)
    while not is_over.is_set():
        client.sendall(b"x" * (1 << 16))


def endless_end(client: socket.socket, is_over: threading.Event) -> None:
    """Whole, but it does not stop."""
    client.sendall(HEAD + GOOD)
    is_over.wait()


BAD: dict[str, tuple[Handler, str]] = {
    "a node that it was not asked for": (says(HEAD + GOOD.replace(b'"node":0', b'"node":7')), "was not asked for"),
    "more than two of one": (says(HEAD + GOOD[:-1] + b"\n" + GOOD), "good"),
    "rows for another behind its own": (says(HEAD + GOOD + b"".join(pieces_of(1, ANSWER))), "good"),
    "a place below zero": (says(HEAD + b'{"node":-1,"size":1}\n'), "a line is not what it should be"),
    "nothing said": (says(HEAD + b'{"node":0}\n'), "a line says nothing, or several things"),
    "whole and failed": (says(HEAD + b'{"node":0,"whole":{},"failed":{"reason":"x"}}\n'), "says nothing, or several"),
    "a piece of a gigabyte": (says(HEAD + b'{"node":0,"size":1073741824}\n'), "a line is not what it should be"),
    "half an answer": (says(HEAD + GOOD[:40]), "its answer broke off"),
    "no answer": (says(HEAD), "its answer broke off"),
    "garbage": (says(HEAD + b"\x00\xff\x1b[2J\n"), "a line is not what it should be"),
    "garbage for HTTP": (says(b"\x00\xff\x1b[2J garbage\r\n\r\n"), "it closed the connection, or does not speak HTTP"),
    "a line without end": (endless_line, "a line does not end"),
    "pieces without end": (endless_pieces, "its answer is larger than 32."),
    "a byte at a time": (drip, "another service answers there"),
    "silence": (silence, "it did not answer within 5.00 s"),
    "whole, without an end": (endless_end, "good"),
    "not ingero": (says(http("200 OK", b"<html>", "text/html")), "another service answers there"),
    "elsewhere": (says(http("302 Found", b"", Location="http://169.254.169.254/")), "redirects elsewhere"),
    "a refusal that acts on terminals": (
        says(http("400 Bad Request", b'{"error":{"message":"\\u001b[2Jboo","hint":"x"}}')), r"\x1b[2Jboo",
    ),
    "a reason that acts on terminals": (
        says(HEAD + end_of(0, failed("\x1b[2Jboo", "\x9b1m", is_said=True))), r"\x1b[2Jboo",
    ),
    "a certificate that ends at no time": (
        says(HEAD + b'{"node":0,"whole":{"certificate_until":"never"}}\n'), "a certificate ends at no time",
    ),
    "a clock that cannot be": (
        says(HEAD + b'{"node":0,"whole":{"clock":{"offset_ns":1,"bound_ns":-5,"at_ns":1,"exchanges":8}}}\n'),
        "a line is not what it should be",
    ),
}  # fmt: skip


def test_a_hostile_relay_costs_only_its_own_nodes(folder: Path, certificates: Certificates) -> None:
    made = certificates.make("node")
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with ExitStack() as stack:
        enter = stack.enter_context
        good = enter(relaying(folder / "plain.db", certificates, has_tls=False))
        own = enter(serving_node(record_node(folder / "own.db", "own"), made=made, client_ca=certificates.ca))
        bad = [enter(listening(handler)) for handler, _ in BAD.values()]
        nodes = [*(Node(f"n{place}") for place in range(len(bad))), own]
        found = rows_of(reach(nodes, PLAIN, [*bad, good], timeout_s=LITTLE_S))
    said = {one.node: one.reason + one.hint for one in found.missing} | {one.node: "good" for one in found.answered}
    slow = f"it did not answer within {2 * LITTLE_S:.2f} s"  # a machine that is busy reads no 32 MiB in that time
    told = {name: said[node] for name, node in zip(BAD, nodes, strict=False)}
    assert {name: text for name, text in told.items() if BAD[name][1] not in text and slow not in text} == {}
    assert said[own] == "good"
    assert "\x1b" not in "".join(told.values())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb < MOST_MB


def test_a_damaged_answer_of_a_relay_is_read_or_refused() -> None:
    clock = Clock(offset_ns=1, bound_ns=2, at_ns=3, exchanges=8)
    sound = b"".join(pieces_of(0, ANSWER)) + end_of(0, whole("x", clock)) + end_of(1, failed("no", "", is_said=False))
    rng = random.Random(11)
    outcomes = set()
    for _ in range(3000):
        damaged = bytearray(sound)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        reader = FrameReader()
        try:
            for at in range(0, len(damaged), 50):
                for frame, piece in reader.feed(bytes(damaged[at : at + 50])):
                    assert len(piece) == frame.size <= PIECE_BYTES
            outcomes.add("read")
        except FrameError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_what_is_known_of_a_clock_through_a_relay_is_within_both_bounds() -> None:
    rng = random.Random(5)
    near, far = MessageDelay(least_s=100e-6, beyond_s=80e-6), MessageDelay(least_s=250e-6, beyond_s=160e-6, waits=0.2)
    for _ in range(1000):
        relay_ppm, node_ppm = rng.uniform(-50, 50), rng.uniform(-50, 50)
        relay_ns, node_ns = (rng.randrange(-(10**10), 10**10) for _ in range(2))
        ours, _ = simulated(rng, far, near, offset_ns=relay_ns, ppm=relay_ppm, count=EXCHANGES)
        theirs, _ = simulated(rng, near, far, offset_ns=node_ns, ppm=node_ppm, count=EXCHANGES)
        later_ns = rng.randrange(10**9)
        relay, node = estimate(ours), estimate([shifted(one, later_ns + relay_ns) for one in theirs])
        found = through_relay(relay, node)
        assert found.bound_ns >= relay.bound_ns + node.bound_ns
        since_ns = found.at_ns - 10**18
        by_relay = relay_ns + since_ns * relay_ppm / 1e6
        by_node = node_ns + (node.at_ns - 10**18 - later_ns - relay_ns) * node_ppm / 1e6
        assert abs(found.offset_ns - by_relay - by_node) <= found.bound_ns


def shifted(one: Exchange, by_ns: int) -> Exchange:
    """The same some time later, all by clocks that differ as much as before."""
    return Exchange(**{name: getattr(one, name) + by_ns for name in Exchange.__dataclass_fields__})


def test_clocks_of_nodes_are_known_through_a_relay(
    certificates: Certificates, client: Access, relays: list[Node], tmp_path: Path
) -> None:
    with serving_node(
        record_node(tmp_path / "n.db", "n"), made=certificates.make("node"), client_ca=certificates.ca,
        clock=lambda: time.time_ns() + 37 * _MS,
    ) as node:  # fmt: skip
        [one] = rows_of(reach([node], client, relays[:1])).answered
    assert one.clock is not None
    assert abs(one.clock.offset_ns - 37 * _MS) <= one.clock.bound_ns


def test_nothing_is_known_of_clocks_behind_a_relay_whose_own_was_set_meanwhile(
    fleet: list[Node], certificates: Certificates, client: Access, folder: Path
) -> None:
    said = 0

    def stepping() -> int:
        nonlocal said
        said += 1
        return time.time_ns() + (60_000 * _MS if said > EXCHANGES else 0)  # two stamps each: after the first half

    with relaying(folder / "stepping.db", certificates, clock=stepping) as relay:
        found = rows_of(reach(fleet, client, [relay]))
    assert [one.clock for one in found.answered] == [None] * len(fleet)


# --- the command line -----------------------------------------------------------------------------------------------


def test_a_dashboard_relays_where_it_is_told_to(
    fleet: list[Node], certificates: Certificates, client: Access, folder: Path, home: Path
) -> None:
    made, shown = certificates.make("node"), certificates.client("relay")
    argv = [
        "dashboard", "--db", str(folder / f"{NAMES[0]}.db"), "--addr", "127.0.0.1:0", "--client-ca", certificates.ca,
        "--tls-cert", made.certificate, "--tls-key", made.key, "--relay", listed(fleet[:3]),
        "--ca-cert", shown.ca_cert, "--client-cert", shown.client_cert, "--client-key", shown.client_key,
    ]  # fmt: skip
    command = [sys.executable, "-m", "ingero.cli.main", *map(str, argv)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            where, about = process.stderr.readline(), process.stderr.readline()
            relay = Node("127.0.0.1", int(where.partition("https://127.0.0.1:")[2].partition("/")[0]))
            home.write_text(f"fleet:\n  via: ['{relay.authority}']\n")
            done = run("query", fleet, client, "--json", CALLS)
        finally:
            process.terminate()
    assert "relays for its clients: what they ask of 3 nodes" in about
    found = json.loads(done.stdout)
    assert [row["node"] for row in found["rows"]] == list(NAMES[:3])
    assert [one["node"] for one in found["missing"]] == [fleet[3].authority]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["dashboard", "--relay", "gpu-01", "--addr", "127.0.0.1:0"], "would let everybody read those nodes"),
        (["dashboard", "--relay", "gpu-01", "--no-tls"], "--relay needs TLS"),
        (["dashboard", "--relay", "0.0.0.0/0", "--client-ca", "CA"], "every address there is"),
        (["query", "--nodes", "a", "--via", "r", "--no-tls", "SELECT 1"], "relays speak TLS"),
        (["query", "--nodes", "a", "--retry-directly", "SELECT 1"], "no effect without --via"),
        (["query", "--nodes", "a", "--via", "r", "--via", "r,s", "SELECT 1"], "r is a relay of two levels"),
        (["query", "--db", "x.db", "--via", "r", "SELECT 1"], "no nodes are named"),
        (["dashboard", "--via", "r"], "no nodes are named"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, certificates: Certificates, argv: list[str], message: str
) -> None:
    given = [str(certificates.ca) if word == "CA" else word for word in argv]
    if argv[0] == "dashboard" and "--relay" in argv:
        given += ["--db", str(record_node(tmp_path / "n.db", "n"))]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code != 0
    assert message in f"{done.exception}{done.stderr}"


def test_configured_relays_are_left_out_where_that_is_said(fleet: list[Node], client: Access, home: Path) -> None:
    home.write_text(f"fleet:\n  via: {DEAD.authority}\n")
    assert run("query", fleet, client, CALLS).exit_code != 0
    assert run("query", fleet, client, "--via", "", CALLS).exit_code == 0


def test_what_very_many_nodes_cost_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [Node(f"n{number}") for number in range(2000)]
    for levels, lines in (((), 1), (([Node("r")],), 0)):
        say_asking(Fleet(reach=reach(nodes, PLAIN, *levels), origin="", skew_ns=0))
        said = capsys.readouterr().err.splitlines()
        assert len(said) == lines
        assert all("asking 2,000 nodes directly takes about 4.80 s of CPU here" in line for line in said)
    say_asking(Fleet(reach=reach(nodes[:1000], PLAIN), origin="", skew_ns=0))
    assert capsys.readouterr().err == ""


def test_a_question_that_many_nodes_are_asked_is_sent_once() -> None:
    same = Question("/api/v2/query", ROWS_TYPE, b'{"sql":"SELECT 1"}')
    body = question_for([(Node(f"n{number}"), same) for number in range(1000)], [], timeout_s=5, at_once=64)
    assert body.count(b"SELECT 1") == 1
    assert len(msgspec.json.decode(body)["nodes"]) == 1000
    assert len(body) < 64 << 10
