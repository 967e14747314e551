"""`ingero query --nodes`: the rows of all that answer, and what is missing, whatever a node does."""

from __future__ import annotations

import json
import lzma
import resource
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import httpcore2
import pytest
from click.testing import CliRunner, Result

from ingero.cli.config.settings import resolve
from ingero.cli.main import cli
from ingero.fleet.access import Access, AccessError, check_access, client_context
from ingero.fleet.budget import Budget, TooLargeError
from ingero.fleet.client import NodeClient, NodeRows
from ingero.fleet.fan_out import FleetAnswer, Reach, ask_nodes
from ingero.fleet.node_lists import Node, NodeListError, expand, parse_nodes
from ingero.fleet.reasons import is_worth_a_retry, reason_of, was_closed
from tests.unit.fleet.test_server import WRITES
from tests.unit.fleet_nodes import NOW, Certificates, make_certificates, record_node, serving_fleet, serving_node
from tests.unit.hostile_nodes import (
    HEADER,
    LINES,
    Handler,
    drip,
    endless_headers,
    endless_rows,
    endless_small_rows,
    http,
    listening,
    says,
    silence,
)

OLDER = Path(__file__).parents[2] / "data" / "ingero-0.x"
NAMES = ("gpu-node-01", "gpu-node-02", "gpu-node-03", "gpu-node-04")
TOKEN = "fleet-token-0123456789abcdef"
DEAD = Node("127.0.0.1", 1)
CALLS = "SELECT node, count(*) AS calls FROM events GROUP BY node ORDER BY node"
PUBLISHED = (
    "SELECT node, source, count(*) as cnt, avg(duration)/1000 as avg_us FROM events GROUP BY node, source ORDER BY 1, 2"
)
LITTLE_S = 5.0  # for a node that never answers; the good one beside it shares the machine with those that do
MOST_MB = 200


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


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's own ingero.yaml has a part in these tests."""
    path = tmp_path / "ingero.yaml"
    path.write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(path))
    monkeypatch.delenv("INGERO_DB", raising=False)
    return path


def options(access: Access) -> list[str]:
    return ["--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert), "--client-key",
            str(access.client_key)]  # fmt: skip


def listed(nodes: Sequence[Node]) -> str:
    return ",".join(node.authority for node in nodes)


def query(nodes: Sequence[Node], sql: str, access: Access | None, *more: str) -> Result:
    shown = ["--no-tls"] if access is None else options(access)
    return CliRunner().invoke(cli, ["query", "--nodes", listed(nodes), *shown, *more, sql])


def test_the_published_statement_has_the_column_node_once(fleet: list[Node], client: Access) -> None:
    done = query(fleet, PUBLISHED, client)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["node", "source", "cnt", "avg_us"]
    assert lines[2:6] == [f"{name}       1    8    3050" for name in NAMES]
    assert lines[6:] == ["", "  4 rows from 4 node(s)"]
    assert done.exit_code == 0


def test_rows_that_do_not_name_their_node_get_it(fleet: list[Node], client: Access) -> None:
    done = query(fleet, CALLS, client, "--json")
    answer = json.loads(done.stdout)
    assert answer["columns"] == ["node", "calls"]
    assert answer["rows"] == [{"node": name, "calls": 8} for name in NAMES]
    assert (answer["partial"], answer["missing"], answer["nodes"]) == (False, [], list(NAMES))


def test_a_node_without_rows_is_counted(fleet: list[Node], client: Access) -> None:
    assert (
        query(fleet, "SELECT pid FROM events WHERE pid = 0", client).stdout.splitlines()[-1]
        == "  0 rows from 4 node(s)"
    )


def test_integers_texts_and_blobs_arrive_as_they_are(fleet: list[Node], client: Access) -> None:
    values = "9223372036854775807 AS i, 9007199254740993 AS j, 1.0 AS r, 'ä' AS t, x'00ff' AS b, NULL AS n"
    sql = f"SELECT {values} FROM sessions"
    [row, *_] = json.loads(query(fleet, sql, client, "--json").stdout)["rows"]
    assert row == {"node": NAMES[0], "i": 2**63 - 1, "j": 9007199254740993, "r": 1.0, "t": "ä", "b": "AP8=", "n": None}
    assert query(fleet[:1], sql, client, "--csv").stdout == (
        f"node,i,j,r,t,b,n\n{NAMES[0]},9223372036854775807,9007199254740993,1.0,ä,00ff,\n"
    )


def test_the_limit_is_of_all_and_what_was_cut_is_said(fleet: list[Node], client: Access) -> None:
    answer = json.loads(query(fleet, "SELECT pid FROM events", client, "--json", "--limit", "5").stdout)
    assert (len(answer["rows"]), answer["truncated"], answer["is_cut"]) == (5, list(NAMES), True)
    assert "more rows: gpu-node-01" in query(fleet, "SELECT pid FROM events", client, "--limit", "5").stderr


def test_a_statement_that_writes_is_refused_by_every_node(fleet: list[Node], client: Access, folder: Path) -> None:
    def state() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.glob("*.db*") if not path.name.endswith("-shm")}

    before = state()
    for sql in WRITES[:4] + WRITES[-12:]:  # all of them against one node: test_server.py
        assert query(fleet, sql, client).exit_code != 0
    assert state() == before


@pytest.mark.parametrize("dead", [1, 3, 4])
def test_dead_nodes_cost_only_themselves(fleet: list[Node], client: Access, dead: int) -> None:
    nodes = [*fleet[dead:], *(Node("127.0.0.1", 1 + port) for port in range(dead))]
    done = query(nodes, CALLS, client, "--json")
    answer = json.loads(done.stdout)
    assert [row["node"] for row in answer["rows"]] == list(NAMES[dead:])
    assert [(one["node"], one["reason"]) for one in answer["missing"]] == [
        (f"127.0.0.1:{1 + port}", "connection refused") for port in range(dead)
    ]
    assert (answer["partial"], done.exit_code) == (True, 3 if dead < len(NAMES) else 1)
    if dead == len(NAMES):  # the group of commands prints it and ends with 2
        assert "none of 4 nodes answered; 127.0.0.1:1: connection refused" in str(done.exception)


def test_nodes_that_nobody_should_believe_are_missing_with_the_reason(
    fleet: list[Node], client: Access, certificates: Certificates, folder: Path
) -> None:
    path = record_node(folder / "fifth.db", "gpu-node-05")
    stranger = make_certificates(folder / "stranger")
    wrong_name = certificates.make("wrong-name", "gpu-77.example")
    expired = certificates.make("expired", now=NOW - timedelta(days=9), days=1)
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    own = certificates.make("older")
    older.load_cert_chain(own.certificate, own.key)
    with ExitStack() as stack:
        enter = stack.enter_context
        bad = [
            enter(serving_node(path, made=wrong_name, client_ca=certificates.ca)),
            enter(serving_node(path, made=expired, client_ca=certificates.ca)),
            enter(serving_node(path, made=stranger.make("theirs"), client_ca=certificates.ca)),
            enter(listening(silence, context=older)),
            enter(listening(says(http("200 OK", b"hello")))),
            Node("nowhere.invalid"),
        ]
        done = query([*fleet, *bad], CALLS, client, "--json", "--timeout", "20s")
    answer = json.loads(done.stdout)
    reasons = [one["reason"] for one in answer["missing"]]
    believed = "its certificate is not trusted: "
    assert [row["node"] for row in answer["rows"]] == list(NAMES)
    assert reasons == [
        believed + "ip address mismatch, certificate is not valid for '127.0.0.1'",
        believed + "certificate has expired",
        believed + "no trusted authority signed it",
        "it does not speak TLS 1.3",
        "it does not speak TLS",
        "its name is not known",
    ]
    assert done.exit_code == 3


def test_a_client_that_a_node_does_not_believe_is_told_what_it_may_lack(
    fleet: list[Node], certificates: Certificates, folder: Path
) -> None:
    stranger = make_certificates(folder / "stranger-client").client()
    bare = Access(ca_cert=certificates.ca)
    other = Access(ca_cert=certificates.ca, client_cert=stranger.client_cert, client_key=stranger.client_key)
    made = certificates.make("late", "late", is_server=False, now=NOW - timedelta(days=3), days=1)
    late = Access(ca_cert=certificates.ca, client_cert=made.certificate, client_key=made.key)
    day = f"{NOW - timedelta(days=2):%Y-%m-%d}"
    for access, hint in ((bare, "--client-cert"), (other, "--client-ca"), (late, f"late.pem, expired on {day}")):
        found = ask(fleet[:1], access)
        assert found.answered == ()
        assert hint in found.missing[0].reason + found.missing[0].hint


def ask(nodes: Sequence[Node], access: Access, *, timeout_s: float = 20.0) -> FleetAnswer[NodeRows]:
    async def rows(one: NodeClient) -> NodeRows:
        return await one.rows("SELECT 1", limit=1, timeout_s=timeout_s)

    reach = Reach(nodes=tuple(nodes), access=access, context=client_context(access), timeout_s=timeout_s)
    return ask_nodes(reach, rows)


HOSTILE: dict[str, tuple[Handler, str]] = {
    "ten gigabytes in a row": (endless_rows, "its answer is larger than 32.0 MiB"),
    "rows without end": (endless_small_rows, "its answer is invalid: rows do not fit its header"),
    "headers without end": (endless_headers, "it closed the connection, or does not speak HTTP"),
    "a byte at a time": (drip, "it did not answer within 5.00 s"),
    "silence": (silence, "it did not answer within 5.00 s"),
    "closes at once": (says(b""), "it closed the connection, or does not speak HTTP"),
    "garbage": (says(b"\x00\xff\x1b[2J garbage\r\n\r\n"), "it closed the connection, or does not speak HTTP"),
    "not ingero": (
        says(http("200 OK", b"<html>", "text/html")),
        "it is not ingero: another service answers there",
    ),
    "compressed": (
        says(http("200 OK", b"x", "application/x-ndjson", Content_Encoding="gzip")),
        "it is not ingero: another service answers there",
    ),
    "elsewhere": (
        says(http("302 Found", b"", Location="http://169.254.169.254/latest/meta-data")),
        "it redirects elsewhere, which is not followed",
    ),
    "wrong types": (says(LINES + b'{"columns":1}\n'), "its answer is invalid: a header is not what it should be"),
    "more rows than asked": (says(LINES + HEADER % 200_000), "it answers with more rows than the 100,000 asked for"),
    "half an answer": (says(LINES + HEADER % 3 + b"[1]\n"), "its answer broke off"),
    "an error that acts on terminals": (
        says(http("400 Bad Request", b'{"error":{"message":"\\u001b[2J\\u202eboo","hint":"\\u001b]0;x\\u0007"}}')),
        r"\x1b[2J\u202eboo",
    ),
    "an error without end": (says(http("400 Bad Request", b"x" * 1_000_000)), "HTTP status 400"),
    "an error of other types": (says(http("500 Oh", b'{"error":[1]}')), "HTTP status 500"),
    "no such address": (says(http("404 Not Found", b"<html>", "text/html")), "it is not ingero, or an older version"),
}  # fmt: skip


def test_hostile_nodes_cost_nobody_else_anything(folder: Path) -> None:
    path = record_node(folder / "good.db", "good")
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with ExitStack() as stack:
        good = stack.enter_context(serving_node(path, has_tls=False))
        bad = [stack.enter_context(listening(handler)) for handler, _ in HOSTILE.values()]
        begin_s = time.monotonic()
        done = query([*bad, good], CALLS, None, "--json", "--timeout", f"{LITTLE_S}s")
        took_s = time.monotonic() - begin_s
    answer = json.loads(done.stdout)
    assert answer["rows"] == [{"node": "good", "calls": 8}]
    reasons = dict(zip(HOSTILE, (one["reason"] for one in answer["missing"]), strict=True))
    slow = f"it did not answer within {LITTLE_S:.2f} s"  # a machine that is busy reads no 32 MiB in that time
    expected = {name: reason for name, (_, reason) in HOSTILE.items()}
    assert {name: reason for name, reason in reasons.items() if reason not in (expected[name], slow)} == {}
    assert reasons["silence"] == reasons["a byte at a time"] == slow
    assert "\x1b" not in done.stdout + done.stderr
    assert took_s < LITTLE_S + 10  # 0.5 on an idle machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb < MOST_MB


def test_totals_order_and_limits_are_of_all_nodes(fleet: list[Node], client: Access) -> None:
    assert query(fleet, "SELECT count(*) AS calls, sum(duration) FROM events", client, "--csv").stdout == (
        "calls,sum(duration)\n32,97600000\n"
    )
    sql = "SELECT op_name, count(*) AS calls FROM events GROUP BY op_name ORDER BY 2 DESC, 1 LIMIT 1"
    assert query(fleet, sql, client, "--csv").stdout == "op_name,calls\ncudaLaunchKernel,16\n"
    assert query(fleet, "SELECT 1 AS x", client, "--csv").stdout.splitlines()[0] in {"x", "node,x"}


def test_a_statement_that_waits_for_another_is_asked_of_the_same_nodes(fleet: list[Node], client: Access) -> None:
    sql = "SELECT count(*) AS longest FROM events WHERE duration = (SELECT max(duration) FROM events)"
    done = query([*fleet, DEAD], sql, client, "--json")
    assert json.loads(done.stdout)["rows"] == [{"longest": 16}]
    assert [one["node"] for one in json.loads(done.stdout)["missing"]] == [str(DEAD)]


def test_a_reason_is_found_below_what_others_make_of_it() -> None:
    """As of httpx2, which asks Kubernetes over the same connections."""
    above = RuntimeError("above")
    above.__cause__ = httpcore2.ReadError("below")
    above.__cause__.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    assert reason_of(above) == "connection reset by peer"
    assert was_closed(above)
    assert is_worth_a_retry(above)
    above.__cause__ = None
    assert (reason_of(above), was_closed(above), is_worth_a_retry(above)) == ("unexpected: RuntimeError", False, False)


def test_who_sends_most_gives_way() -> None:
    budget = Budget(most_bytes=100, max_node_bytes=90)
    kept, small, large = budget.begin(), budget.begin(), budget.begin()
    budget.take(kept, 30)
    budget.end(kept, is_kept=True)
    budget.take(small, 10)
    with pytest.raises(TooLargeError, match="this is the largest"):
        budget.take(large, 70)
    budget.end(large, is_kept=False)
    budget.take(small, 60)
    with pytest.raises(TooLargeError, match="larger than 90"):
        budget.take(small, 30)


def test_a_connection_that_ends_is_tried_again() -> None:
    seen = threading.Semaphore(2)  # attempts that fail

    def sometimes(client: object, _: threading.Event) -> None:
        if not seen.acquire(blocking=False):
            client.sendall(LINES + HEADER % 1 + b"[1]\n")  # type: ignore[attr-defined]  # a socket

    with listening(sometimes) as node:
        found = ask([node], Access(has_tls=False))
    assert [one.answer.rows for one in found.answered] == [[(1,)]]


def test_a_recording_that_two_addresses_reach_counts_once(folder: Path) -> None:
    path = record_node(folder / "twice.db", "twice")
    with serving_node(path, has_tls=False) as one, serving_node(path, has_tls=False) as two:
        answer = json.loads(query([one, two], CALLS, None, "--json").stdout)
    assert answer["rows"] == [{"node": "twice", "calls": 8}]
    assert answer["missing"][0]["reason"] == f"it has the same recording as {one}, which is counted once"


@pytest.mark.parametrize("sql", ["SELECT DISTINCT node, pid FROM events ORDER BY 1", "SELECT pid FROM events"])
def test_two_machines_of_one_name_stay_two_and_both_are_named(tmp_path: Path, sql: str) -> None:
    ids = ("ab" * 16, "cd" * 16)
    paths = [record_node(tmp_path / f"{each[:2]}.db", "gpu-01", machine_id=each) for each in ids]
    with serving_node(paths[0], has_tls=False) as one, serving_node(paths[1], has_tls=False) as two:
        answer = json.loads(query([one, two], sql, None, "--json").stdout)
    assert sorted({row["node"] for row in answer["rows"]}) == ["gpu-01@abababab", "gpu-01@cdcdcdcd"]
    assert answer["notes"][0] == (f"2 hosts call themselves gpu-01: gpu-01@abababab is {one}, gpu-01@cdcdcdcd is {two}")


def test_a_recording_that_names_no_node_is_called_by_its_address(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    path.write_bytes(lzma.decompress((OLDER / "pytorch-dataloader-starvation.db.xz").read_bytes()))
    with serving_node(path, has_tls=False) as node:
        rows = json.loads(query([node], "SELECT 1 FROM sessions", None, "--json", "--timeout", "60s").stdout)["rows"]
    assert {row["node"] for row in rows} == {str(node)}


def test_a_node_with_other_columns_is_left_out(tmp_path: Path) -> None:
    odd = LINES + (HEADER % 1).replace(b'"a"', b'"b"') + b"[1]\n"
    with ExitStack() as stack:
        bad = stack.enter_context(listening(says(odd)))
        good = [
            stack.enter_context(serving_node(record_node(tmp_path / f"{name}.db", name), has_tls=False))
            for name in ("n1", "n2")
        ]
        answer = json.loads(query([bad, *good], "SELECT pid, uid AS a FROM processes", None, "--json").stdout)
    assert [row["node"] for row in answer["rows"]] == ["n1", "n2"]
    assert [one["reason"] for one in answer["missing"]] == ["it sent a row that does not have 2 columns"]


def test_a_token_is_wanted_and_stands_nowhere(certificates: Certificates, folder: Path, tmp_path: Path) -> None:
    path, made = record_node(folder / "token.db", "with-token"), certificates.make("node-with-token")
    files = {name: tmp_path / name for name in ("right", "wrong")}
    for name, token in (("right", TOKEN), ("wrong", TOKEN[::-1])):
        files[name].write_text(f"{token}\n")
        files[name].chmod(0o600)
    said = ""
    with serving_node(path, made=made, token=TOKEN) as node:
        for file, code in ((None, 1), (files["wrong"], 1), (files["right"], 0)):
            shown = ["--token-file", str(file)] if file else []
            done = CliRunner().invoke(
                cli, ["query", "--nodes", node.authority, "--ca-cert", str(certificates.ca), *shown, "SELECT 1"]
            )
            said += done.output + repr(done.exception) + str(getattr(done.exception, "hint", ""))
            assert done.exit_code == code
    assert "it requires a valid token" in said
    assert TOKEN not in said
    assert TOKEN not in repr(Access(token=TOKEN))


def test_a_token_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    done = CliRunner().invoke(cli, ["query", "--nodes", "a", "--token-file", str(file), "SELECT 1"])
    assert (str(done.exception), done.exception.hint) == (  # type: ignore[union-attr]  # an IngeroError
        f"others may read or write {file}", f"chmod 600 {file}",
    )  # fmt: skip


def test_plain_http_goes_to_this_machine_only() -> None:
    check_access(Access(has_tls=False), [Node("127.0.0.1"), Node("::1"), Node("localhost")])
    check_access(Access(has_tls=False, is_trusted_network=True), [Node("10.0.0.1")])
    with pytest.raises(AccessError, match=r"between here and 10\.0\.0\.1"):
        check_access(Access(has_tls=False), [Node("127.0.0.1"), Node("10.0.0.1")])


def test_configured_nodes_are_asked_unless_a_recording_is_named(
    home: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record_node(folder / "configured.db", "configured")
    other = record_node(tmp_path / "other.db", "other")
    sql = "SELECT node FROM sessions"
    with serving_node(path, has_tls=False) as node:
        home.write_text(f"fleet:\n  nodes: [{node.authority}]\n")
        run = CliRunner().invoke
        asked = run(cli, ["query", "--no-tls", "--csv", sql])
        assert asked.stdout == "node\nconfigured\n"
        assert f"querying the 1 nodes of {home}" in asked.stderr
        assert run(cli, ["query", "--csv", "--db", str(other), sql]).stdout == "node\nother\n"
        monkeypatch.setenv("INGERO_DB", str(other))
        assert run(cli, ["query", "--csv", sql]).stdout == "node\nother\n"
        home.write_text("fleet:\n  nodes: nowhere.invalid\n")
        assert run(cli, ["query", "--no-tls", "--csv", "--nodes", node.authority, sql]).stdout == "node\nconfigured\n"


def test_the_configuration_of_the_current_folder_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INGERO_CONFIG")
    monkeypatch.setattr(
        "ingero.cli.fleet.options.invoking_user", lambda *_, **__: type("O", (), {"home": tmp_path / "h"})
    )
    (tmp_path / "ingero.yaml").write_text("fleet:\n  nodes: evil.example\n")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["query", "--ca-cert", "x.pem", "SELECT 1"])
    assert str(done.exception) == "no nodes are named"


def test_trace_and_fleet_share_one_file(home: Path) -> None:
    home.write_text("max-db: 2g\nfleet:\n  nodes: [a, b]\n  ca-cert: ca.pem\n")
    assert resolve({"config": str(home)}, {}, uid=0).max_db == 2 << 30
    home.write_text("fleet:\n  noodles: [a]\n")
    done = CliRunner().invoke(cli, ["query", "SELECT 1"])
    assert str(done.exception).endswith("line 2: there is no option 'fleet.noodles'")
    assert done.exception.hint == "perhaps nodes"  # type: ignore[union-attr]  # an IngeroError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", "a b"), ("a b", "a b"), ("a,a", "a a"), ("gpu[1-3]", "gpu1 gpu2 gpu3"),
        ("gpu[008-010]", "gpu008 gpu009 gpu010"),
        ("n[1,3-4]", "n1 n3 n4"), ("n[0-8/4]", "n0 n4 n8"), ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("n[9-10]", "n9 n10"),
        ("n[1-2].x:81", "n1.x:81 n2.x:81"), ("[::1]:81", "[::1]:81"),
    ],
)  # fmt: skip
def test_a_list_stands_for_its_names(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    ("word", "node"),
    [
        ("GPU-01", Node("gpu-01")), ("a:81", Node("a", 81)), ("10.0.0.1", Node("10.0.0.1")), ("::1", Node("::1")),
        ("[::1]", Node("::1")), ("[::1]:81", Node("::1", 81)),
    ],
)  # fmt: skip
def test_a_node_has_a_host_and_a_port(word: str, node: Node) -> None:
    assert parse_nodes([word]) == (node,)


def test_a_file_lists_nodes(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("# rack 1\ngpu[1-2]  # two\n\na,b:81\n")
    assert [str(one) for one in parse_nodes([f"@{file}", "gpu1"])] == ["gpu1", "gpu2", "a", "b:81"]


@pytest.mark.parametrize(
    "text",
    ["", ",", "a:0", "a:99999", "a:b", "a b:", "n[", "n[1-", "n[x]", "n[3-1]", "n[1-2/0]", "n[1-99999999]",
     "n[1-999][1-999]",
     "-x", "a/b", "http://a", "@/nowhere", "a\x1b[2J", "a;b", "$(x)", "ü"],
)  # fmt: skip
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(NodeListError) as raised:
        parse_nodes([text])
    assert raised.value.hint
