"""Clocks of nodes that are asked something: compared on the way, told where they are off, and what order they prove."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.demo.scene import ScriptedRun
from ingero.fleet.access import Access, client_context
from ingero.fleet.assistant import FleetQuestions
from ingero.fleet.client import NodeClient
from ingero.fleet.clocks import EXCHANGES
from ingero.fleet.direct_client import DirectClient
from ingero.fleet.fan_out import FleetAnswer, Reach, ask_nodes
from ingero.fleet.node_lists import Node
from ingero.serve.boot_clock import BootClock, now
from ingero.store.reader import open_reader
from ingero.store.writing import tables
from tests.unit.delayed_clock import MessageDelay, delaying_proxy
from tests.unit.fleet_nodes import SECONDS, Certificates, make_certificates, record_node, serving_fleet, serving_node
from tests.unit.hostile_nodes import HEADER, LINES, endless_headers, http, listening, read_request

_MS, _S = 1_000_000, 1_000_000_000
PLAIN = Access(has_tls=False)
SHIFT_NS = 37 * _MS
RUNS = 12
LEAST, LONGER = MessageDelay(least_s=100e-6, beyond_s=80e-6), MessageDelay(least_s=3e-3, beyond_s=1e-3, waits=0.2)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(autouse=True)
def _nobodys_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ingero.yaml").write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DB", raising=False)


def shifted(by_ns: int) -> Callable[[], int]:
    return lambda: time.time_ns() + by_ns


def run(command: str, nodes: Sequence[Node], *more: str, access: Access | None = None) -> Result:
    shown = ["--no-tls"] if access is None else [
        "--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert),
        "--client-key", str(access.client_key),
    ]  # fmt: skip
    sql = ["SELECT count(*) AS calls FROM events"] if command == "query" else []
    listed = ",".join(node.authority for node in nodes)
    return CliRunner().invoke(cli, [command, "--nodes", listed, *shown, "--timeout", "60s", *more, *sql])


def reach(node: Node, access: Access = PLAIN, *, timeout_s: float = 60.0) -> Reach:
    return Reach(nodes=(node,), access=access, context=client_context(access), timeout_s=timeout_s)


def asked(node: Node, access: Access = PLAIN, *, timeout_s: float = 20.0) -> FleetAnswer[DirectClient]:
    async def rows(client: NodeClient) -> DirectClient:
        await client.rows("SELECT 1", limit=1, timeout_s=timeout_s)
        assert isinstance(client, DirectClient)
        return client

    return ask_nodes(reach(node, access, timeout_s=timeout_s), rows)


def test_each_node_that_answers_has_its_clock(tmp_path: Path, certificates: Certificates) -> None:
    access = certificates.client()
    with serving_fleet(tmp_path, certificates, ("n1", "n2")) as nodes:
        for command in ("query", "explain"):
            done = run(command, [*nodes, Node("127.0.0.1", 1)], "--json", access=access)
            clocks = json.loads(done.stdout)["clocks"]
            assert [one["node"] for one in clocks] == ["n1", "n2"]
            for one in clocks:
                assert one["exchanges"] == EXCHANGES
                assert abs(one["offset_ns"]) <= one["bound_ns"]
                assert (one["steps"], one["drift_ppm"]) == ([], None)


def test_the_error_is_within_the_bound_through_a_proxy_that_delays_one_way_more(tmp_path: Path) -> None:
    path = record_node(tmp_path / "far.db", "far")
    with (
        serving_node(path, has_tls=False, clock=shifted(SHIFT_NS)) as node,
        delaying_proxy(node, LONGER, LEAST, random.Random(1)) as (proxy, connections),
    ):
        for made in range(1, RUNS + 1):
            [one] = asked(proxy).answered
            assert one.clock is not None
            shortest_ns = min(each.round_trip_ns for each in one.answer.exchanges)
            assert abs(one.clock.offset_ns - SHIFT_NS) <= one.clock.bound_ns <= shortest_ns / 2 + 50_000
            assert one.clock.exchanges == EXCHANGES
            assert len(connections) == made  # the exchanges go over the connection of the question


def test_more_exchanges_than_those_of_a_question_go_over_its_connection(tmp_path: Path) -> None:
    async def more(client: NodeClient) -> list[int]:
        assert isinstance(client, DirectClient)
        made = [await client.exchange() for _ in range(3)]
        await client.rows("SELECT 1", limit=1, timeout_s=60)
        return [one.least_ns for one in made] + [-one.most_ns for one in made]

    path = record_node(tmp_path / "n.db", "n")
    with (
        serving_node(path, has_tls=False, clock=shifted(SHIFT_NS)) as node,
        delaying_proxy(node, LEAST, LEAST, random.Random(2)) as (proxy, connections),
    ):
        [one] = ask_nodes(reach(proxy), more).answered
        assert len(connections) == 1
    assert all(bound_ns <= SHIFT_NS for bound_ns in one.answer[:3])
    assert all(-bound_ns >= SHIFT_NS for bound_ns in one.answer[3:])
    with listening(time_of(b"\x00garbage\r\n\r\n"), is_read=False) as bad:
        found = ask_nodes(reach(bad), more)
    assert [one.reason for one in found.missing] == ["the node does not say what its clock shows"]


def test_a_clock_that_is_off_is_told_with_its_bound_unless_more_is_allowed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                serving_node(record_node(tmp_path / f"{name}.db", name), has_tls=False, clock=shifted(by_ns))
            )
            for name, by_ns in (("n1", 0), ("n2", 3 * _S), ("n3", 0))
        ]
        for command in ("query", "explain"):
            said = run(command, nodes).stderr
            assert said.startswith("warning: the clock of n2 is 3.00 s ahead of the others, to ")
            assert "warning" not in run(command, nodes, "--clock-skew-threshold", "5s").stderr
            assert "warning" not in run(command, nodes[::2]).stderr
        questions = FleetQuestions(nodes=tuple(nodes), access=PLAIN, timeout_s=60)
        for action in ("chains", "ops", "overview", "sql"):
            body, text = questions.ask(action, since="", pid=None, query="SELECT count(*) FROM events", limit=5)
            assert text.startswith("warning: «the clock of n2 is 3.00 s ahead of the others")
            assert len(body["warnings"]) == 1
    assert FleetQuestions(nodes=(Node("127.0.0.1", 1),), access=PLAIN).states()[0]["warnings"] == []


def test_a_clock_that_is_set_while_its_node_is_asked_is_told(tmp_path: Path) -> None:
    read = []

    def clock() -> int:
        read.append(len(read))
        return time.time_ns() + (2 * _S if len(read) > EXCHANGES else 0)  # two readings for each exchange before

    with serving_node(record_node(tmp_path / "n1.db", "n1"), has_tls=False, clock=clock) as node:
        done = run("query", [node], "--json")
    [found] = json.loads(done.stdout)["clocks"]
    [step] = found["steps"]
    assert abs(step["by_ns"] - 2 * _S) <= step["bound_ns"] < _S
    assert abs(found["offset_ns"] - 2 * _S) <= found["bound_ns"]
    assert "warning: a clock was set while n1 was asked: n1 is now 2.00 s ahead of before" in done.stderr


def test_an_assistant_is_told_once_what_became_of_a_clock_since_it_last_asked(tmp_path: Path) -> None:
    by_ns = [0]
    with serving_node(
        record_node(tmp_path / "n1.db", "n1"), has_tls=False, clock=lambda: time.time_ns() + by_ns[0]
    ) as node:
        questions = FleetQuestions(nodes=(node,), access=PLAIN, timeout_s=60, skew_ns=60 * _S)

        def warned() -> list[str]:
            found: list[str] = questions.ask("overview", since="", pid=None, query="", limit=1)[0]["warnings"]
            return found

        assert warned() == []
        by_ns[0] = -5 * _S
        assert warned() == ["«a clock was set while n1 was asked: n1 is now 5.00 s behind before»"]
        assert warned() == []


def time_of(answer: bytes | None) -> Callable[[socket.socket, threading.Event], None]:
    """A node that answers a statement well, and says this of its clock; None: not a word."""

    def handler(client: socket.socket, is_over: threading.Event) -> None:
        while path := read_request(client):
            if path != b"/api/v2/time":
                client.sendall(LINES + HEADER % 1 + b"[1]\n")
                return
            if answer is None:
                is_over.wait()
                return
            client.sendall(answer)

    return handler


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"\x00garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        http("404 Not Found", b"{}"),
        http("200 OK", b"[1,2]"),
        http("200 OK", b'{"received_ns":"x","sent_ns":1}'),
        http("200 OK", b'{"received_ns":99999999999999999999999,"sent_ns":1}'),
        http("200 OK", b'{"received_ns":-5,"sent_ns":-4}'),
        http("200 OK", b'{"received_ns":5,"sent_ns":9000000000000000000}'),
        http("200 OK", b'{"received_ns":1,"sent_ns":2}') + b"more than it said",
        http("200 OK", b" " * 9000),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000,
    ],
)
def test_what_a_node_says_of_its_clock_costs_it_no_answer(answer: bytes | None) -> None:
    with listening(time_of(answer), is_read=False) as node:
        found = asked(node)
    assert [one.clock for one in found.answered] == [None]


def test_a_clock_without_end_costs_no_time_either() -> None:
    begin_s = time.monotonic()
    with listening(endless_headers, is_read=False) as node:
        assert asked(node, timeout_s=5).answered == ()
    assert time.monotonic() - begin_s < 30


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Node]]:
    """One incident each: on n1, half a second later on n2, whose clock is 3 s behind, and 10 µs later on n3."""
    begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - 60 * _S
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                serving_node(
                    record_node(tmp_path / f"{name}.db", name, is_late=True, begin_mono_ns=begin_ns + later_ns),
                    has_tls=False,
                    clock=shifted(by_ns),
                )
            )
            for name, later_ns, by_ns in (("n1", 0, 0), ("n2", 500 * _MS, -3 * _S), ("n3", 500 * _MS + 10_000, 0))
        ]


def test_chains_of_nodes_stand_in_the_order_that_their_clocks_prove(three: list[Node]) -> None:
    done = run("explain", three)
    at = done.stdout.splitlines().index("By this host's clock they began:")
    lines = done.stdout.splitlines()[at + 1 : at + 4]
    assert "[n1] cpu-contention" in lines[0]
    assert [line.endswith(", order not known") for line in lines] == [False, False, True]
    assert {line.partition("[")[2][:2] for line in lines[1:]} == {"n2", "n3"}
    answer = json.loads(run("explain", three, "--json").stdout)
    first, second, _ = answer["order"]
    began = first["start_ns"] + 500 * _MS
    assert abs(second["start_ns"] - began) <= first["bound_ns"] + second["bound_ns"] < 500 * _MS
    assert [one["is_order_known"] for one in answer["order"]] == [True, True, False]


def test_the_order_of_what_another_machine_recorded_is_not_known(tmp_path: Path, three: list[Node]) -> None:
    with serving_node(record_node(tmp_path / "copy.db", "copy", is_late=True), has_tls=False) as copied:
        done = run("explain", [*three[:1], copied])
    assert done.stdout.splitlines()[-1] == (
        "order not known of copy: it was recorded before that host's last boot, or on another host"
    )


def test_a_clock_that_was_set_since_it_was_recorded_moves_nothing(tmp_path: Path) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mono_ns = now().mono_ns - 100 * _S
    with ScriptedRun(tmp_path / "set.db", seconds=60, node="n", boot_id=boot_id) as script:
        for second, set_ns in ((0, 0), (10, 0), (20, -5 * _S), (30, -5 * _S), (40, 7 * _S), (50, 7 * _S)):
            script.append(tables.CLOCK_PAIRS, mono_ns=mono_ns + second * _S, unix_ns=script.at(second) + set_ns)
        begin_ns = script.at(0)
    with open_reader(tmp_path / "set.db") as reader:
        clock = BootClock(reader)
    assert clock.moment("n", begin_ns + 5 * _S) == (mono_ns + 5 * _S, 0)
    assert clock.moment("n", begin_ns + 25 * _S) == (mono_ns + 25 * _S, 0)  # set back: it went on in the old time
    forward = clock.moment("n", begin_ns + 7 * _S + 45 * _S)
    assert forward is not None
    assert forward[0] == mono_ns + 45 * _S
    assert forward[1] == 7 * _S  # set forward in the ten seconds before: what a recorder went by then is not known
    assert clock.moment("n", begin_ns + 7 * _S + 55 * _S) == (mono_ns + 55 * _S, 0)
    assert clock.moment("other", begin_ns) is None
    assert clock.moment("n", begin_ns - 100 * _S) is None
    assert now().suspended_ns < SECONDS * _S
