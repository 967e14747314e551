"""A node's server: whom it lets in, what it never changes, and that its rows lose nothing on the way."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from ingero.fleet.access import client_context
from ingero.fleet.node_lists import Node
from ingero.serve.http.addresses import Address, listen
from ingero.serve.sql import Answer, run_sql
from ingero.serve.structured.row_lines import Identity, LineReader, LinesError, row_lines
from tests.unit.dashboard_client import client_of
from tests.unit.fleet_nodes import NOW, Certificates, make_certificates, record_node, serving_node
from tests.unit.serve.test_sql import REFUSED

TOKEN = "0123456789abcdef0123456789abcdef"
REQUEST = b"GET /api/v1/chains HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
MORE_WRITES = (
    "INSERT INTO events SELECT * FROM events",
    "DELETE FROM events WHERE 1",
    "/* SELECT */ DELETE FROM sessions",
    "--\nUPDATE raw_sessions SET node = 'x'",
    "WITH RECURSIVE c(x) AS (SELECT 1) INSERT INTO ops SELECT x, x, '', '' FROM c",
    "INSERT INTO raw_strings VALUES (1, 'x') ON CONFLICT DO UPDATE SET text = 'x'",
    "INSERT INTO raw_strings VALUES (999, 'x') RETURNING *",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = 1",
    "PRAGMA user_version = 9",
    "CREATE TRIGGER t AFTER INSERT ON raw_events BEGIN DELETE FROM raw_events; END",
    "SELECT 1;\tDROP TABLE raw_sessions",
)
WRITES = [*REFUSED.values(), *MORE_WRITES]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


def test_no_answer_waits_for_the_acknowledgement_of_its_head() -> None:
    with (
        listen(Address("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority."""
    return make_certificates(tmp_path_factory.mktemp("certificates") / "other")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_node(tmp_path_factory.mktemp("node") / "node.db", "gpu-01", is_late=True)


@pytest.fixture(scope="module")
def node(database: Path, certificates: Certificates) -> Iterator[Node]:
    with serving_node(database, made=certificates.make("node"), client_ca=certificates.ca) as found:
        yield found


def plain_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca)
    context.check_hostname = False
    return context


def application_bytes(node: Node, context: ssl.SSLContext, request: bytes = REQUEST) -> bytes:
    """What a client is sent above TLS, however that ends."""
    got = b""
    try:
        with (
            socket.create_connection((node.host, node.port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname=node.host) as client,
        ):
            client.sendall(request)
            while part := client.recv(1 << 16):
                got += part
    except (ssl.SSLError, ConnectionError):
        pass
    return got


def without(own: Certificates, _: Certificates) -> ssl.SSLContext:
    return plain_context(own)


def of_another_authority(own: Certificates, others: Certificates) -> ssl.SSLContext:
    made = others.make("stranger", "stranger", is_server=False)
    context = plain_context(own)
    context.load_cert_chain(made.certificate, made.key)
    return context


def expired(own: Certificates, _: Certificates) -> ssl.SSLContext:
    made = own.make("late", "late", is_server=False, now=NOW - timedelta(days=3), days=1)
    context = plain_context(own)
    context.load_cert_chain(made.certificate, made.key)
    return context


def of_a_node(own: Certificates, _: Certificates) -> ssl.SSLContext:
    made = own.make("another-node")
    context = plain_context(own)
    context.load_cert_chain(made.certificate, made.key)
    return context


def older_tls(own: Certificates, _: Certificates) -> ssl.SSLContext:
    made = own.make("client", "client", is_server=False)
    context = plain_context(own)
    context.load_cert_chain(made.certificate, made.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


STRANGERS = (without, of_another_authority, expired, of_a_node, older_tls)


@pytest.mark.parametrize("client", STRANGERS)
def test_who_has_no_certificate_of_the_authority_gets_no_byte(
    node: Node,
    certificates: Certificates,
    others: Certificates,
    client: Callable[[Certificates, Certificates], ssl.SSLContext],
) -> None:
    assert application_bytes(node, client(certificates, others)) == b""


def test_who_has_one_is_answered(node: Node, certificates: Certificates) -> None:
    context = client_context(certificates.client())
    assert context is not None
    context.check_hostname = False
    assert application_bytes(node, context).startswith(b"HTTP/1.1 200")


def test_a_node_is_called_by_the_names_of_its_certificate(database: Path, certificates: Certificates) -> None:
    made = certificates.make("named", "127.0.0.1", "gpu-01.cluster", "*.rack7.cluster")
    context = client_context(certificates.client())
    with serving_node(database, made=made, client_ca=certificates.ca) as found:
        for host, status in (("gpu-01.cluster", 200), ("n3.rack7.cluster:8080", 200), ("evil.example", 421)):
            connection = http.client.HTTPSConnection("127.0.0.1", found.port, context=context, timeout=60)
            connection.request("GET", "/api/v1/health", headers={"Host": host})
            assert (connection.getresponse().status, host) == (status, host)
            connection.close()


@pytest.fixture
def untouched(database: Path) -> Iterator[None]:
    def digests() -> dict[str, str]:
        paths = (database, database.with_name(f"{database.name}-wal"))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.exists()}

    def rows() -> object:
        return run_sql(database, "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM op_stats)").rows

    before = digests(), rows()
    yield
    assert (digests(), rows()) == before


@pytest.mark.usefixtures("untouched")
def test_a_writing_statement_changes_nothing_over_the_network(database: Path) -> None:
    assert len(WRITES) >= 60
    client = client_of(database)
    for sql in WRITES:
        question = json.dumps({"sql": sql})
        for path in ("/api/v1/query", "/api/v2/query"):
            response = client.post(path, content=question, headers={"content-type": "application/json"})
            assert (response.status_code // 100, sql) == (4, sql)


def test_a_question_of_older_clients_is_answered_in_their_shape(database: Path) -> None:
    client = client_of(database)
    answer = client.post("/api/v1/query", json={"sql": "SELECT 9007199254740993 AS x", "limit": 10}).json()
    assert (answer["columns"], answer["rows"]) == (["x"], [[9007199254740993]])
    assert client.get("/api/v1/time").json()["timestamp_ns"] > 0
    assert client.get("/api/v1/health").json()["status"] == "ok"
    overview = client.get("/api/v1/overview").json()
    assert (overview["event_count"], overview["session_count"], overview["chain_count"]) == (8, 1, 1)
    assert overview["top_chain"]["severity"] == "HIGH"
    [chain] = client.get("/api/v1/chains?since=5m").json()["chains"]
    assert {"id", "detected_at", "severity", "summary", "root_cause", "explanation", "recommendations", "cuda_op",
            "cuda_p99_us", "cuda_p50_us", "tail_ratio", "timeline", "node"} <= chain.keys()  # fmt: skip
    assert (chain["node"], chain["root_cause"], chain["timeline"][0]["detail"]) == (
        "gpu-01", "cpu-contention", chain["explanation"].split("; ")[0],
    )  # fmt: skip
    ops = client.get("/api/v1/ops").json()
    assert ops["mode"] in {"percentile", "aggregate"}
    assert {"operation", "count", "p50_us", "p95_us", "p99_us", "avg_us", "max_us"} <= ops["ops"][0].keys()


def test_an_exchange_of_clocks_is_stamped_between_asking_and_answer(database: Path) -> None:
    answer = client_of(database).get("/api/v2/time").json()
    assert 0 < answer["received_ns"] <= answer["sent_ns"]


def test_a_node_says_whose_recording_it_has(database: Path, tmp_path: Path) -> None:
    answer = client_of(database).get("/api/v2/node").json()
    again = client_of(database).get("/api/v2/node").json()
    other = client_of(record_node(tmp_path / "other.db", "gpu-01", machine_id="ab" * 16)).get("/api/v2/node").json()
    assert (answer["nodes"], answer["machine_id"], answer["recording"]) == (["gpu-01"], "", again["recording"])
    assert (other["machine_id"], other["recording"] != answer["recording"]) == ("ab" * 16, True)


WHO = Identity(nodes=["n"], machine_id="", recording="r")
VALUES = (2**63 - 1, -(2**63), 9007199254740993, 1.0, -0.0, 1e300, float("inf"), float("-inf"), "", "ä\x1b\u202e\0",
          b"\x00\xff", b"", None)  # fmt: skip


def answer_of(*rows: tuple[object, ...]) -> Answer:
    columns = tuple(f"c{place}" for place in range(len(rows[0])))
    return Answer(columns=columns, rows=list(rows), is_truncated=False, elapsed_ns=1, notes=())  # type: ignore[arg-type]  # as SQLite's


def test_no_value_changes_on_the_way() -> None:
    sent = b"".join(row_lines(answer_of(VALUES), WHO))
    for size in (1, 7, len(sent)):
        reader = LineReader(most_rows=1)
        for at in range(0, len(sent), size):
            reader.feed(sent[at : at + size])
        header = reader.end()
        assert [(type(value), value) for value in reader.rows[0]] == [(type(value), value) for value in VALUES]
    assert header.types == ["integer"] * 3 + ["real"] * 5 + ["text"] * 2 + ["blob"] * 2 + [""]


def test_a_column_of_integers_and_reals_is_real_and_of_other_kinds_mixed() -> None:
    lines = b"".join(row_lines(answer_of((1, 1), (1.5, "x"), (None, None)), WHO)).splitlines()
    assert msgspec.json.decode(lines[0])["types"] == ["real", "mixed"]


HEADER = (
    b'{"node":{"nodes":["n"],"machine_id":"","recording":"r"},"columns":["a"],"types":["integer"],"rows":2,'
    b'"is_truncated":false,"elapsed_ns":1,"notes":[]}\n'
)


def read(sent: bytes) -> None:
    reader = LineReader(most_rows=2)
    reader.feed(sent)
    reader.end()


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"\n", b"garbage\n", b"[]\n", b"{}\n", HEADER, HEADER + b"[1]\n", HEADER + b"[1]\n[2]\n[3]\n",
        HEADER + b"[1]\n[2]", HEADER + b"[1, 2]\n[2]\n", HEADER + b"[18446744073709551616]\n[2]\n",
        HEADER + b"[[1]]\n[2]\n", HEADER + b'[{"x":1}]\n[2]\n', HEADER + b'[{"b64":"?"}]\n[2]\n',
        HEADER + b"[true]\n[2]\n", HEADER + b'["\xff"]\n[2]\n', HEADER + b"[" * 100_000 + b"\n",
        HEADER.replace(b'"rows":2', b'"rows":3'), HEADER.replace(b'["integer"]', b"[]") + b"[1]\n[2]\n",
        HEADER.replace(b'"rows":2', b'"rows":-1'), HEADER.replace(b'["a"]', b'["a","b"]') + b"[1]\n[2]\n",
        HEADER.replace(b'"a"', b'"' + b"a" * 5000 + b'"') + b"[1]\n[2]\n",
    ],
)  # fmt: skip
def test_lines_that_are_no_answer_are_refused(sent: bytes) -> None:
    with pytest.raises(LinesError):
        read(sent)
