"""`ingero explain --nodes`: what went wrong on which node, and what is not known of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.demo.scene import ScriptedRun
from ingero.fleet.access import Access
from ingero.fleet.node_lists import Node
from tests.unit.fleet_nodes import Certificates, make_certificates, serving_fleet, serving_node
from tests.unit.hostile_nodes import http, listening, says

NAMES = ("gpu-node-01", "gpu-node-02", "gpu-node-03", "gpu-node-04")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(scope="module")
def client(certificates: Certificates) -> Access:
    return certificates.client()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[list[Node]]:
    with serving_fleet(tmp_path_factory.mktemp("fleet"), certificates, NAMES) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _nobodys_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ingero.yaml").write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DB", raising=False)


def explain(nodes: list[Node], access: Access | None, *more: str) -> Result:
    listed = ",".join(node.authority for node in nodes)
    shown = ["--no-tls"] if access is None else [
        "--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert),
        "--client-key", str(access.client_key),
    ]  # fmt: skip
    return CliRunner().invoke(cli, ["explain", "--nodes", listed, *shown, *more])


def test_chains_of_all_nodes_stand_together_in_the_published_form(fleet: list[Node], client: Access) -> None:
    done = explain(fleet, client)
    lines = done.stdout.splitlines()
    assert lines[0] == "FLEET CAUSAL CHAINS - 1 chain(s) from 4 node(s)"
    assert lines[2].startswith("[HIGH] [gpu-node-01] python [100] lost ")
    assert lines[3].startswith("  Root cause: cpu-contention: ")
    assert lines[4].startswith("  Fix: ")
    assert lines[6:] == ["gpu-node-02, gpu-node-03, gpu-node-04: No incidents found."]
    assert done.exit_code == 1


def test_json_has_what_each_node_says_itself(fleet: list[Node], client: Access) -> None:
    answer = json.loads(explain(fleet, client, "--json").stdout)
    assert [one["node"] for one in answer["nodes"]] == list(NAMES)
    assert [len(one["diagnosis"]["incidents"]) for one in answer["nodes"]] == [1, 0, 0, 0]
    assert [(one["node"], one["root_cause"]) for one in answer["chains"]] == [("gpu-node-01", "cpu-contention")]
    assert (answer["version"], answer["partial"], answer["missing"]) == (1, False, [])


PUBLISHED = {"id", "detected_at", "severity", "summary", "root_cause", "explanation", "recommendations", "cuda_op",
             "cuda_p99_us", "cuda_p50_us", "tail_ratio", "timeline", "node"}  # fmt: skip


def test_chains_have_the_members_that_older_versions_publish(fleet: list[Node], client: Access) -> None:
    [chain] = json.loads(explain(fleet, client, "--json").stdout)["chains"]
    assert chain.keys() >= PUBLISHED
    assert chain["timeline"][0]["detail"] == chain["explanation"].split("; ")[0]
    stored = {
        "id": "chain-001", "severity": "HIGH", "summary": "s", "root_cause": "r", "cuda_op": "cuStreamSync",
        "cuda_p99_us": 142_000, "cuda_p50_us": 17_000, "tail_ratio": 8.4, "timeline": [{"layer": "HOST", "op": "x"}],
    }  # fmt: skip
    node = {"nodes": ["older"], "machine_id": "", "recording": "o"}
    body = {"node": node, "headline": "h", "diagnosis": {}, "chains": [stored]}
    with listening(says(http("200 OK", json.dumps(body).encode()))) as older:
        [chain] = json.loads(explain([older], None, "--json").stdout)["chains"]
    assert chain.items() >= stored.items()


def test_only_what_was_asked_for_is_found(fleet: list[Node], client: Access) -> None:
    assert explain(fleet, client, "--rule", "gpu-throttled").exit_code == 0
    assert explain(fleet, client, "--pid", "4711").exit_code == 0
    assert explain(fleet, client, "--pid", "100", "--rule", "cpu-contention").exit_code == 1


def test_a_missing_node_makes_it_partial_whatever_was_found(fleet: list[Node], client: Access) -> None:
    for nodes in (fleet[:1], fleet[1:2]):
        done = explain([*nodes, Node("127.0.0.1", 1)], client)
        assert "127.0.0.1:1: connection refused" in done.stderr
        assert done.exit_code == 3


def test_a_node_that_could_not_judge_does_not_say_that_all_is_well(tmp_path: Path) -> None:
    path = tmp_path / "idle.db"
    with ScriptedRun(path, seconds=5, node="idle") as run:
        process = run.process(100, "python")
        run.call(process, "cudaLaunchKernel", 1, 0.1)
    with serving_node(path, has_tls=False) as node:
        done = explain([node], None)
    assert done.stdout.splitlines()[-1].startswith("idle: No verdict:")
    assert "No incident" not in done.stdout


@pytest.mark.parametrize(
    "answer",
    [
        b"[]", b"{}", b'{"node":1}', b"\xff", b"[" * 100_000,
        b'{"node":{"nodes":[],"machine_id":"","recording":""},"headline":"","diagnosis":{},"chains":['
        + b",".join([b'{"id":"","severity":"","summary":"","root_cause":""}'] * 10_001) + b"]}",
        b'{"x":"' + b"a" * (9 << 20) + b'"}',
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_said_to_be_none(answer: bytes) -> None:
    with listening(says(http("200 OK", answer))) as bad:
        done = explain([bad], None)
    assert done.exception is not None
    assert "its answer" in str(done.exception)


def test_texts_of_a_node_do_not_act_on_the_terminal() -> None:
    answer = (
        b'{"node":{"nodes":["\\u001b[31mx"],"machine_id":"","recording":"r"},"headline":"\\u001b[2J","diagnosis":{},'
        b'"chains":[{"id":"","severity":"\\u001b[2J","summary":"\\u202eevil","root_cause":"\\u0007"}]}'
    )
    with ExitStack() as stack:
        node = stack.enter_context(listening(says(http("200 OK", answer))))
        texts = [explain([node], None).output, explain([node], None, "--json").output]
    assert all(char not in text for text in texts for char in "\x1b\x07\u202e")
    assert r"\u202eevil" in texts[0]


@pytest.mark.parametrize("more", [["--stacks"], ["--from", "1"], ["--per-process"], ["--chains"], ["--node", "x"]])
def test_what_is_of_one_recording_is_refused(more: list[str]) -> None:
    done = explain([Node("127.0.0.1", 1)], None, *more)
    assert "is for one recording" in str(done.exception)


def test_a_recording_that_is_named_is_explained_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.yaml").write_text("fleet:\n  nodes: nowhere.invalid\n")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "fleet.yaml"))
    path = tmp_path / "one.db"
    with ScriptedRun(path, seconds=5, node="one") as run:
        run.call(run.process(100, "python"), "cudaLaunchKernel", 1, 0.1)
    done = CliRunner().invoke(cli, ["explain", "--db", str(path)])
    assert (done.exit_code, "No verdict" in done.stdout) == (0, True)
