"""Recordings of many nodes as one: a timeline with a machine for each, a bundle around an incident."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.demo.scene import ScriptedRun, Step
from ingero.fleet.access import Access, client_context
from ingero.fleet.clocks import Clock
from ingero.fleet.fan_out import Reach
from ingero.fleet.node_lists import Node
from ingero.fleet.recordings import by_node_clock, fetch_span
from ingero.serve.recording_part import MEDIA_TYPE
from ingero.store.merge import merge
from ingero.store.reader import open_reader
from ingero.store.records import Window
from tests.trace_processor.processor import trace_processor
from tests.unit.fleet_nodes import Certificates, make_certificates, record_node, serving_node
from tests.unit.hostile_nodes import http, listening, says

NAMES = tuple(f"gpu-node-{number:02d}" for number in range(1, 9))
SLOW = NAMES[0]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates") / "own")


@pytest.fixture(scope="module")
def client(certificates: Certificates) -> Access:
    return certificates.client()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("nodes")
    return {name: record_node(folder / f"{name}.db", name, is_late=name == SLOW) for name in NAMES}


@pytest.fixture(scope="module")
def fleet(recordings: dict[str, Path], certificates: Certificates) -> Iterator[list[Node]]:
    made = certificates.make("node")
    with ExitStack() as stack:
        yield [
            stack.enter_context(serving_node(path, made=made, client_ca=certificates.ca))
            for path in recordings.values()
        ]


@pytest.fixture(autouse=True)
def _nobodys_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ingero.yaml").write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DB", raising=False)
    monkeypatch.chdir(tmp_path)


def run(nodes: list[Node], access: Access | None, *command: str) -> Result:
    shown = ["--no-tls"] if access is None else [
        "--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert),
        "--client-key", str(access.client_key),
    ]  # fmt: skip
    return CliRunner().invoke(cli, [*command, "--nodes", ",".join(node.authority for node in nodes), *shown])


def ask(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with open_reader(path) as reader:
        return list(reader.connection.execute(sql))


def explained(path: Path) -> dict[str, Any]:
    """Without what merging numbers anew."""
    found = json.loads(CliRunner().invoke(cli, ["explain", "--json", "--db", str(path)]).stdout)
    for one in [*found["incidents"], *(affected for each in found["incidents"] for affected in each["affected"])]:
        one.pop("process", None)
    return dict(found)


# Perfetto


def machines_of(trace: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What Perfetto makes of it; machines by the number that they have in the trace."""
    with trace_processor(trace) as loaded:
        assert loaded.errors() == {}
        place = "coalesce((SELECT raw_id FROM machine WHERE id = {0}.machine_id), 0)"
        calls = f"SELECT {place.format('t')} AS m, count(*) AS n, sum(dur) AS ns FROM slice s "
        calls += "JOIN track t ON t.id = s.track_id"
        return {
            "machines": loaded.rows("SELECT raw_id, num_cpus FROM machine ORDER BY 1"),
            "processes": loaded.rows(
                f"SELECT {place.format('p')} AS m, pid, name FROM process p WHERE name LIKE '%python%' ORDER BY 1"
            ),
            "calls": loaded.rows(f"{calls} WHERE category = 'cuda' GROUP BY 1 ORDER BY 1"),
            "clocks": loaded.rows(
                f"SELECT {place.format('c')} AS m, count(*) AS n FROM clock_snapshot c GROUP BY 1 ORDER BY 1"
            ),
        }


def test_a_timeline_of_many_nodes_has_a_machine_for_each(
    fleet: list[Node], client: Access, recordings: dict[str, Path], tmp_path: Path
) -> None:
    done = run(fleet, client, "export", "--format", "perfetto", "-o", str(tmp_path / "out.pftrace"))
    assert done.exit_code == 0, done.output
    assert "clocks of 8 nodes compared, to " in done.stderr
    found = machines_of(tmp_path / "out.pftrace")
    assert found["machines"] == [(place, 4) for place in range(8)]
    assert found["processes"] == [(place, 100, f"{name}, rank 0: python") for place, name in enumerate(NAMES)]
    wanted = [ask(path, "SELECT count(*), sum(duration_ns) FROM raw_events")[0] for path in recordings.values()]
    assert found["calls"] == [(place, *numbers) for place, numbers in enumerate(wanted)]
    assert found["clocks"] == [(place, 2) for place in range(8)]


def test_a_merged_recording_without_a_name_for_the_output_gets_one_that_is_free(
    recordings: dict[str, Path], tmp_path: Path
) -> None:
    merge(list(recordings.values())[:2], tmp_path / "cluster.db")
    for name in ("cluster.pftrace", "cluster-2.pftrace"):
        done = CliRunner().invoke(cli, ["export", "--format", "perfetto", "--db", "cluster.db"])
        assert done.exit_code == 0, done.output
        assert f": {name} (" in done.stdout
        assert "clocks of the 2 nodes were not compared: times are those of each node" in done.stdout
    found = machines_of(tmp_path / "cluster-2.pftrace")
    assert [(place, pid) for place, pid, _ in found["processes"]] == [(0, 100), (1, 100)]


def test_a_name_that_ends_in_json_is_json_for_chrome(recordings: dict[str, Path], tmp_path: Path) -> None:
    merge(list(recordings.values())[:2], tmp_path / "cluster.db")
    command = ["export", "--format", "perfetto", "-o", "out.json", "--db", "cluster.db"]
    assert CliRunner().invoke(cli, command).exit_code == 0
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "cuda" for event in events) == 16


def test_a_missing_node_makes_the_timeline_partial(fleet: list[Node], client: Access, tmp_path: Path) -> None:
    nodes = [*fleet[:2], Node("127.0.0.1", 1)]
    done = run(nodes, client, "export", "--format", "perfetto", "--since", "5s", "-o", "out.pftrace")
    assert done.exit_code == 3
    assert "127.0.0.1:1: connection refused" in done.stderr
    assert (tmp_path / "out.pftrace").exists()


# A bundle


def test_explain_says_of_a_bundle_what_it_says_of_the_nodes(
    fleet: list[Node], client: Access, recordings: dict[str, Path], tmp_path: Path
) -> None:
    done = run(fleet, client, "fleet", "bundle", "--around", SLOW, "-o", "bundle.db")
    assert done.exit_code == 0, done.output
    assert "8 nodes from " in done.stdout
    assert f"incident 1 of {SLOW}: python [100] lost " in done.stdout
    assert "explain" not in done.output  # it says the same, or there would be a note
    merge(list(recordings.values()), tmp_path / "whole.db")
    live = explained(tmp_path / "whole.db")
    assert [one["node"] for one in live["incidents"]] == [SLOW]
    assert explained(tmp_path / "bundle.db") == live
    assert (tmp_path / "bundle.db").stat().st_size < 50_000_000
    clocks = ask(tmp_path / "bundle.db", "SELECT node, abs(offset_ns) <= bound_ns, bound_ns > 0 FROM node_clocks")
    assert sorted(clocks) == [(name, 1, 1) for name in NAMES]  # all have the clock of this machine


def test_a_bundle_around_a_moment_holds_that_time(fleet: list[Node], client: Access, tmp_path: Path) -> None:
    at_s = 1_760_000_006
    done = run(fleet[:2], client, "fleet", "bundle", "--around", str(at_s), "--margin", "2s", "-o", "bundle.db")
    assert done.exit_code == 0, done.output
    [(first, last, nodes)] = ask(
        tmp_path / "bundle.db",
        "SELECT min(sync_end_ns), max(prev_sync_end_ns), count(DISTINCT session) FROM raw_sync_intervals",
    )
    assert (nodes, abs(first / 1e9 - (at_s - 2)) < 0.1, abs(last / 1e9 - (at_s + 2)) < 0.1) == (2, True, True)


@pytest.mark.parametrize(
    ("around", "said"),
    [
        (f"{SLOW}:7", "found no such incident"),
        (NAMES[1], "found no incident"),
        ("nowhere", "is neither a node that answered nor a time"),
    ],
)
def test_what_cannot_be_bundled_around_is_said(fleet: list[Node], client: Access, around: str, said: str) -> None:
    done = run(fleet[:2], client, "fleet", "bundle", "--around", around, "-o", "bundle.db")
    assert said in str(done.exception)
    assert not Path("bundle.db").exists()


def test_secrets_do_not_leave_the_node(client: Access, certificates: Certificates, tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "secret.db", seconds=6, node="secret") as script:
        trainer = script.process(100, "python", cmdline="python train.py --password hunter2")
        script.train(trainer, 0, 6, Step())
    with serving_node(tmp_path / "secret.db", made=certificates.make("node"), client_ca=certificates.ca) as node:
        done = run([node], client, "fleet", "bundle", "--around", "1760000003", "-o", "bundle.db")
    assert done.exit_code == 0, done.output
    assert ask(tmp_path / "bundle.db", "SELECT cmdline FROM processes") == [("python train.py --password [secret]",)]
    assert b"hunter2" not in (tmp_path / "bundle.db").read_bytes()


@pytest.mark.parametrize(
    ("window", "most_bytes", "reason"),
    [
        (Window(begin_ns=0, end_ns=2**62), 100_000, "are more than 97.7 KiB"),
        (Window(begin_ns=5, end_ns=6), 1 << 26, "nothing was recorded from 1970-01-01"),
    ],
)
def test_a_node_says_why_it_gives_no_part(
    fleet: list[Node], client: Access, tmp_path: Path, window: Window, most_bytes: int, reason: str
) -> None:
    reach = Reach(nodes=tuple(fleet[:1]), access=client, context=client_context(client), timeout_s=30)
    found = fetch_span(reach, tmp_path, lambda _: window, most_bytes=most_bytes)
    assert found.answered == ()
    assert reason in found.missing[0].reason


def test_a_time_is_asked_for_by_the_clock_of_the_node() -> None:
    clock = Clock(offset_ns=3_000_000_000, bound_ns=1_000_000, at_ns=0, exchanges=8)
    window = Window(begin_ns=10_000_000_000, end_ns=20_000_000_000)
    assert by_node_clock(window, clock) == Window(begin_ns=12_999_000_000, end_ns=23_001_000_000)
    assert by_node_clock(window, None) == window


@pytest.mark.parametrize(
    "body", [b"", b"SQLite format 3\0" + b"\xff" * 5000, b"x" * 5000], ids=["empty", "torn", "text"]
)
def test_a_file_of_a_node_that_is_none_costs_no_other(recordings: dict[str, Path], tmp_path: Path, body: bytes) -> None:
    with ExitStack() as stack:
        good = stack.enter_context(serving_node(recordings[SLOW], has_tls=False))
        bad = stack.enter_context(listening(says(http("200 OK", body, MEDIA_TYPE))))
        done = run([good, bad], None, "export", "--format", "perfetto", "-o", "out.pftrace")
    assert done.exit_code == 3, done.output
    assert f"{bad.authority}: its recording cannot be used: " in done.stderr
    assert (tmp_path / "out.pftrace").exists()


def test_a_node_that_sends_more_than_was_asked_for_is_given_up(recordings: dict[str, Path]) -> None:
    with ExitStack() as stack:
        good = stack.enter_context(serving_node(recordings[SLOW], has_tls=False))
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\n\r\n".encode()
        bad = stack.enter_context(listening(says(head + b"\0" * (65 << 20))))
        done = run([good, bad], None, "export", "--format", "perfetto", "-o", "out.pftrace")
    assert done.exit_code == 3, done.output
    assert "its answer is larger than" in done.stderr
