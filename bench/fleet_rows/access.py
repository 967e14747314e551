"""F6 to F9: whom a node lets in, certificates that change, tokens, and statements that write."""

from __future__ import annotations

import http.client
import json
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import apsw
from starlette.testclient import TestClient

from bench.fleet_rows.figures import Figure, Fleet, listed, run, run_alone, said, serving, shown
from ingero.fleet.access import Access, client_context
from ingero.fleet.assistant import FleetQuestions
from ingero.fleet.node_lists import Node
from ingero.serve.sql import run_sql
from tests.unit.dashboard_client import client_of
from tests.unit.fleet.test_renewal import HALF_WRITTEN, ROTATIONS, serial, serial_of
from tests.unit.fleet.test_server import STRANGERS, WRITES, application_bytes
from tests.unit.fleet_nodes import NOW, make_certificates, serving_node
from tests.unit.hostile_nodes import listening, silence
from tests.unit.mcp_client import call, server_of

CALLS = "SELECT node, count(*) AS calls FROM events GROUP BY node ORDER BY node"
_REQUESTS, _NEW_WITHIN_S = 1000, 2.0


def who_is_let_in(folder: Path) -> Iterator[Figure]:
    """F6: no certificate, another authority's, an expired one, one of a node, TLS 1.2, each as `Host: localhost`."""
    others = make_certificates(folder / "others")
    with serving(folder, ["gpu-01"]) as fleet:
        [node], own = fleet.nodes, fleet.certificates
        for make in STRANGERS:
            got = len(application_bytes(node, make(own, others)))
            yield Figure(f"client {make.__name__.replace('_', ' ')}, Host: localhost: {got} bytes of data", not got)
        late = own.make("late-client", "late", is_server=False, now=NOW - timedelta(days=3), days=1)
        strangers = {
            "without a certificate": Access(ca_cert=own.ca),
            "of another authority": replace(others.client(), ca_cert=own.ca),
            "expired": replace(fleet.client, client_cert=late.certificate, client_key=late.key),
        }
        for name, access in strangers.items():
            yield _refused(f"client {name}", node, access)
        yield from _nodes_that_are_not_believed(fleet)


def _nodes_that_are_not_believed(fleet: Fleet) -> Iterator[Figure]:
    own, [path] = fleet.certificates, fleet.paths
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    made = own.make("older")
    older.load_cert_chain(made.certificate, made.key)
    late = own.make("late-node", now=NOW - timedelta(days=9), days=1)
    with (
        serving_node(path, made=own.make("wrong", "gpu-77.example"), client_ca=own.ca) as wrong_name,
        serving_node(path, made=late, client_ca=own.ca) as of_yesterday,
        listening(silence, context=older) as tls_1_2,
    ):
        nodes = {"of another name": wrong_name, "with an expired one": of_yesterday, "of TLS 1.2": tls_1_2}
        for name, node in nodes.items():
            yield _refused(f"node {name}", node, fleet.client)


def _refused(name: str, node: Node, access: Access) -> Figure:
    done = run("query", "--nodes", node.authority, *shown(access), CALLS)
    return Figure(f"{name}: {said(done).strip()}", done.exit_code != 0 and "gpu-01" not in done.stdout)


def certificates_change(folder: Path) -> Iterator[Figure]:
    """F7: requests while certificates change under a server with its own settings."""
    with serving(folder, ["gpu-01"]) as fleet:
        [node] = fleet.nodes
        context = client_context(fleet.client)
        assert context is not None
        with _asking(node, context) as count:
            seen_s = [_rotate(fleet, context, is_half=rotation < HALF_WRITTEN) for rotation in range(ROTATIONS)]
            while count[0] < _REQUESTS:
                time.sleep(0.1)
    asked, failed = count
    yield Figure(
        f"{asked:,} requests during {ROTATIONS} rotations, {HALF_WRITTEN} of them half written first: {failed} failed",
        failed == 0,
    )
    yield Figure(f"the new certificate was shown after {max(seen_s):.2f} s at most", max(seen_s) <= _NEW_WITHIN_S)


@contextmanager
def _asking(node: Node, context: ssl.SSLContext) -> Iterator[list[int]]:
    """Asks all the time; requests so far, and how many of them failed."""
    count, is_over = [0, 0], threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            connection = http.client.HTTPSConnection("127.0.0.1", node.port, context=context, timeout=60)
            try:
                connection.request("GET", "/api/v2/time")
                count[1] += connection.getresponse().status != 200
            except OSError:
                count[1] += 1
            finally:
                connection.close()
            count[0] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield count
    finally:
        is_over.set()
        thread.join()


def _rotate(fleet: Fleet, context: ssl.SSLContext, *, is_half: bool) -> float:
    """Seconds from when a new pair was whole until a client met it."""
    folder = fleet.certificates.folder
    if is_half:  # as a tool does that writes in place
        whole = (folder / "node.pem").read_bytes()
        (folder / "node.pem").write_bytes(whole[: len(whole) // 2])
        time.sleep(1.2)  # the server looks at it
    made = fleet.certificates.make("node")
    begin_s = time.monotonic()
    while serial(fleet.nodes[0], context) != serial_of(made):
        time.sleep(0.02)
    return time.monotonic() - begin_s


def tokens(folder: Path) -> Iterator[Figure]:
    """F8: right, wrong and missing, and where the token stands."""
    token = "0f" * 24
    given = {"right": f"Bearer {token}", "wrong": f"Bearer {token[::-1]}", "missing": ""}
    with serving(folder, ["gpu-01"]) as fleet, _served_with(fleet, token) as (node, server):
        context = ssl.create_default_context(cafile=fleet.certificates.ca)
        statuses = {name: _status(node, context, header) for name, header in given.items()}
        yield Figure(f"HTTP status: {statuses}", statuses == {"right": 200, "wrong": 401, "missing": 401})
        seen, codes = "", []
        for name in ("right", "wrong"):
            file = _private(folder / name, given[name].removeprefix("Bearer "))
            authority = ["--ca-cert", str(fleet.certificates.ca), "--token-file", str(file)]
            done = run_alone("query", "--nodes", node.authority, *authority, CALLS)
            seen += done.stdout + done.stderr
            codes.append(done.code)
        seen += Path(f"/proc/{server.pid}/cmdline").read_text()
        server.send_signal(signal.SIGINT)
        seen += server.communicate()[1]
    times = seen.count(token) + seen.count(token[::-1])
    yield Figure(f"exit codes of `query` with the right and the wrong one: {codes}", codes == [0, 2])
    yield Figure(f"it stands {times} times in {len(seen):,} characters of argv, answers, logs and errors", not times)


def _private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@contextmanager
def _served_with(fleet: Fleet, token: str) -> Iterator[tuple[Node, subprocess.Popen[str]]]:
    """`ingero dashboard` as a process of its own, which asks for a token."""
    made = fleet.certificates.make("with-token")
    command = [sys.executable, "-m", "ingero.cli.main", "dashboard", "--db", str(fleet.paths[0]), "--addr",
               "127.0.0.1:0", "--tls-cert", str(made.certificate), "--tls-key", str(made.key), "--token-file",
               str(_private(fleet.folder / "token", token))]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.search(r"https://127\.0\.0\.1:(\d+)/", server.stderr.readline())
        assert found is not None
        try:
            yield Node("127.0.0.1", int(found[1])), server
        finally:
            server.terminate()


def _status(node: Node, context: ssl.SSLContext, authorization: str) -> int:
    headers = {"Authorization": authorization} if authorization else {}
    request = urllib.request.Request(f"https://{node.authority}/api/v1/overview", headers=headers)
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def statements_that_write(folder: Path) -> Iterator[Figure]:
    """F9: each writing statement through --nodes, MCP and the API."""
    with serving(folder, ["gpu-01", "gpu-02"]) as fleet, ExitStack() as stack:
        for path in fleet.paths:
            stack.enter_context(_being_written(path))
        before = fleet.digests(), _rows(fleet)
        server = server_of(fleet.paths[0], fleet=FleetQuestions(nodes=fleet.nodes, access=fleet.client))
        client = client_of(fleet.paths[0])
        ways: dict[str, Callable[[str], bool]] = {
            "query --nodes": lambda sql: run(
                "query", "--nodes", listed(fleet.nodes), *shown(fleet.client), sql
            ).exit_code != 0,
            "query --db": lambda sql: run("query", "--db", str(fleet.paths[0]), sql).exit_code != 0,
            "MCP run_sql": lambda sql: call(server, "run_sql", query=sql).is_error,
            "MCP query_fleet": lambda sql: call(server, "query_fleet", action="sql", query=sql).is_error,
            "POST /api/v1/query": lambda sql: _is_refused(client, "/api/v1/query", sql),
            "POST /api/v2/query": lambda sql: _is_refused(client, "/api/v2/query", sql),
        }  # fmt: skip
        for name, is_refused in ways.items():
            refused = sum(is_refused(sql) for sql in WRITES)
            yield Figure(f"{name}: {refused} of {len(WRITES)} refused", refused == len(WRITES) >= 60)
        after = fleet.digests(), _rows(fleet)
    yield Figure(
        f"SHA-256 of {len(before[0])} files (databases and logs) and row counts {before[1]}: "
        f"{'unchanged' if after == before else 'CHANGED'}",
        after == before,
    )


@contextmanager
def _being_written(path: Path) -> Iterator[None]:
    """Somebody has it open, so that its log is there."""
    db = apsw.Connection(str(path))
    list(db.execute("PRAGMA journal_mode = wal"))
    db.execute("UPDATE raw_sessions SET last_seen_ns = last_seen_ns + 1")
    try:
        yield
    finally:
        db.close()


def _is_refused(client: TestClient, path: str, sql: str) -> bool:
    question = json.dumps({"sql": sql})  # half of a character, too, which httpx would not send
    answer = client.post(path, content=question, headers={"content-type": "application/json"})
    return answer.status_code // 100 == 4


def _rows(fleet: Fleet) -> list[tuple[object, ...]]:
    counts = "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM op_stats), (SELECT count(*) FROM sessions)"
    return [tuple(run_sql(path, counts).rows[0]) for path in fleet.paths]
