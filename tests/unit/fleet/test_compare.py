"""`ingero compare --nodes`: what is different on a node, from what each says of its own recording."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.diagnose.comparison.compare import compare, compare_sides
from ingero.diagnose.comparison.side import Side, side_of
from ingero.fleet.node_lists import Node
from ingero.serve.text.comparison_text import comparison_json
from ingero.store.reader import open_reader
from tests.unit.fleet_nodes import record_node, serving_node
from tests.unit.hostile_nodes import http, listening, says

DEAD = Node("127.0.0.1", 1)
IDENTITY = b'"node":{"nodes":["x"],"machine_id":"","recording":"x"}'
EMPTY = b'"classes":[],"causes":[],"by_step":{"steps":[],"profiles":[]}'


@pytest.fixture(autouse=True)
def _nobodys_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ingero.yaml").write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {name: record_node(tmp_path / f"{name}.db", name, is_late=name == "slow") for name in ("n1", "slow", "n3")}


@pytest.fixture
def nodes(files: dict[str, Path]) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving_node(path, has_tls=False)) for path in files.values()]


def run(nodes: Sequence[Node], *more: str) -> Result:
    listed = ",".join(node.authority for node in nodes)
    return CliRunner().invoke(cli, ["compare", "--nodes", listed, "--no-tls", "--timeout", "60s", *more])


def test_two_nodes_are_compared_as_their_recordings_are(files: dict[str, Path], nodes: list[Node]) -> None:
    alone = CliRunner().invoke(cli, ["compare", str(files["n1"]), str(files["slow"])])
    done = run(nodes[:2])
    first, _, rest = done.stdout.partition("\n")
    assert first == "before: n1, after: slow"
    assert rest == alone.stdout
    assert (done.exit_code, alone.exit_code) == (1, 1)
    assert run([nodes[1], nodes[0]]).exit_code == 0


def test_of_more_nodes_each_is_compared_with_the_first(files: dict[str, Path], nodes: list[Node]) -> None:
    done = run(nodes)
    lines = done.stdout.splitlines()
    assert lines[0] == "Against n1, slowest first:"
    assert [line.split()[0] for line in lines[3:]] == ["slow", "n3"]
    assert "worse" in lines[3]
    assert "cpu-contention" in lines[3]
    assert done.exit_code == 1
    answer = json.loads(run(nodes, "--json").stdout)
    assert (answer["reference"], [one["node"] for one in answer["nodes"]]) == ("n1", ["slow", "n3"])
    with open_reader(files["n1"]) as one, open_reader(files["slow"]) as other:
        windows = [reader.window(None, 0) for reader in (one, other)]
        assert windows[0] is not None
        assert windows[1] is not None
        expected = comparison_json(compare(one, windows[0], other, windows[1]))
    assert answer["nodes"][0]["comparison"] == expected


def test_a_missing_node_makes_it_partial_unless_it_is_the_one_to_compare_with(nodes: list[Node]) -> None:
    done = run([*nodes, DEAD])
    assert done.exit_code == 3
    assert "127.0.0.1:1: connection refused" in done.stderr
    for wanted in ([DEAD, *nodes], [nodes[0], DEAD]):
        assert "127.0.0.1:1 is missing, and there is nothing to compare: connection refused" in str(
            run(wanted).exception
        )


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (["--nodes", "a", "--no-tls"], "one node cannot be compared"),
        (["--nodes", "a,b", "x.db"], "exclude each other"),
        (["--no-tls"], "no nodes are named"),
    ],
)
def test_what_does_not_go_together_is_refused(more: list[str], wrong: str) -> None:
    done = CliRunner().invoke(cli, ["compare", *more, "--trusted-network"])
    assert wrong in str(done.exception)
    assert CliRunner().invoke(cli, ["compare"]).exit_code == 2


@pytest.mark.parametrize(
    "ops",
    [
        b'[{"name":"a","count":1,"sum_ns":1,"histogram":{"256":1}}]',
        b'[{"name":"a","count":1,"sum_ns":1,"histogram":{"-1":1}}]',
        b'[{"name":"a","count":99999999999999999999999999,"sum_ns":1,"histogram":{}}]',
        b'[{"name":"a","count":1,"sum_ns":-1,"histogram":{}}]',
        b'[{"name":"' + b"a" * 9000 + b'","count":1,"sum_ns":1,"histogram":{}}]',
        b'[{"name":1}]',
        b"[1]",
    ],
)
def test_a_side_that_is_none_leaves_its_node_out(nodes: list[Node], ops: bytes) -> None:
    body = b"{" + IDENTITY + b',"side":{' + EMPTY + b',"ops":' + ops + b"}}"
    with listening(says(http("200 OK", body))) as bad:
        done = run([*nodes[:2], bad])
    assert done.exit_code == 3
    assert f"{bad}: its answer is malformed" in done.stderr


def test_names_of_a_node_do_not_act_on_the_terminal(nodes: list[Node]) -> None:
    ops = b'[{"name":"\\u001b[2J\\u202eevil","count":100,"sum_ns":9000000000000000,"histogram":{}}]'
    body = b"{" + IDENTITY + b',"side":{' + EMPTY + b',"ops":' + ops + b"}}"
    with listening(says(http("200 OK", body))) as bad:
        texts = [run([nodes[0], bad]).output, run([nodes[0], bad], "--json").output]
    assert all(char not in text for text in texts for char in "\x1b\u202e")
    assert "evil" in texts[0]


def test_nothing_is_lost_on_the_way(files: dict[str, Path]) -> None:
    with open_reader(files["slow"]) as reader:
        window = reader.window(None, 0)
        assert window is not None
        side = side_of(reader, window)
    sent = msgspec.json.decode(msgspec.json.encode(side), type=Side)
    assert sent == side
    assert compare_sides(sent, side) == compare_sides(side, side)
