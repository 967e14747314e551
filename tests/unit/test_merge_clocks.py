"""`ingero merge`, `fleet bundle` and clocks: what is known of them comes first, what is not is said once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.demo.scene import ScriptedRun, Step
from ingero.serve.boot_clock import now
from ingero.store.writing import tables
from tests.unit.fleet_nodes import make_certificates, record_node, serving_node

_S, _MS = 10**9, 10**6
AHEAD_NS = {"a": 0, "b": 250 * _MS, "c": 0}
LATER_NS = {"a": 0, "b": 500 * _MS, "c": 501 * _MS}
NOT_COMPARED = "note: the clocks of the 2 nodes were not compared: times are those of each node"


@pytest.fixture(autouse=True)
def _nobodys_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ingero.yaml").write_text("")
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DB", raising=False)
    monkeypatch.chdir(tmp_path)


def run(*argv: str) -> Result:
    return CliRunner().invoke(cli, argv)


def record_stepped(path: Path, node: str, steps_ns: tuple[int, ...]) -> None:
    """A recording whose wall clock was off by this in each ten seconds."""
    with ScriptedRun(
        path, seconds=10 * len(steps_ns), node=node, machine_id=f"m-{node}", boot_id=f"b-{node}"
    ) as script:
        trainer = script.process(100, "python")
        script.train(trainer, 0, 10, Step())
        for number, off_ns in enumerate(steps_ns):
            mono_ns = (900 + 10 * number) * _S
            script.append(tables.CLOCK_PAIRS, mono_ns=mono_ns, unix_ns=script.at(10 * number) + off_ns, suspended_ns=0)


def test_that_nothing_is_known_of_clocks_is_said_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record_node(tmp_path / f"{name}.db", name, machine_id=f"m-{name}")
    done = run("merge", "a.db", "b.db", "-o", "ab.db")
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [NOT_COMPARED]
    assert done.output.splitlines()[0] == NOT_COMPARED
    assert run("merge", "a.db", "-o", "only-a.db").stderr == ""


def test_a_clock_that_was_set_is_said_first_with_its_bound_by_the_threshold(tmp_path: Path) -> None:
    record_stepped(tmp_path / "a.db", "a", (0, 0, -2 * _S, -2 * _S))
    record_stepped(tmp_path / "b.db", "b", (0, 50 * _MS))
    first, *others = run("merge", "a.db", "b.db", "-o", "ab.db").output.splitlines()
    assert re.fullmatch(
        r"warning: the clock of a was set back by 2\.00 s, to 2\.00 µs, between \S+ \S+ and \S+ \S+", first
    )
    assert others[0] == NOT_COMPARED
    assert others[1].startswith("2 recordings merged: ")
    again = run("merge", "a.db", "b.db", "-o", "again.db", "--clock-skew-threshold", "3s")
    assert again.stderr.splitlines() == [NOT_COMPARED]
    fine = run("merge", "a.db", "b.db", "-o", "fine.db", "--clock-skew-threshold", "10ms")
    assert "warning: the clock of b went ahead by 50.0 ms, to 2.00 µs, between " in fine.stderr


def test_a_threshold_that_is_none_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = run("merge", "a.db", "-o", "b.db", "--clock-skew-threshold", "soon")
    assert "soon" in str(done.exception)
    assert not (tmp_path / "b.db").exists()


def ahead(by_ns: int) -> Callable[[], int]:
    return lambda: time.time_ns() + by_ns


def test_incidents_of_a_bundle_are_in_the_order_that_the_clocks_prove(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    made, access = certificates.make("node"), certificates.client()
    begin_ns = now().mono_ns - 30 * _S
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                serving_node(
                    record_node(tmp_path / f"{name}.db", name, is_late=True, begin_mono_ns=begin_ns + later_ns),
                    made=made, client_ca=certificates.ca, clock=ahead(AHEAD_NS[name]),
                )
            )
            for name, later_ns in LATER_NS.items()
        ]  # fmt: skip
        done = run(
            "fleet", "bundle", "--around", "1760000006", "-o", "bundle.db",
            "--nodes", ",".join(node.authority for node in nodes), "--ca-cert", str(access.ca_cert),
            "--client-cert", str(access.client_cert), "--client-key", str(access.client_key),
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.output.startswith("warning: the clock of b is 250 ms ahead of the others, to ")
    assert "clocks of 3 nodes compared, to " in done.stderr
    assert "not compared" not in done.stderr

    said = run("explain", "--db", "bundle.db").stdout
    order = said.partition("By the clock that all were compared with they began:\n")[2].splitlines()[:3]
    assert re.match(r"  \S+ \S+ to \S+ ms  \[a\] cpu-contention  \[incident \d\]$", order[0]), said
    assert not order[1].endswith("order not known")
    assert order[2].endswith(", order not known")
    found = {one["node"]: one for one in json.loads(run("explain", "--db", "bundle.db", "--json").stdout)["order"]}
    for name, later_ns in LATER_NS.items():
        since_a_ns = found[name]["start_ns"] - found["a"]["start_ns"]
        assert abs(since_a_ns - later_ns) <= found[name]["bound_ns"] + found["a"]["bound_ns"]

    record_node(tmp_path / "d.db", "d", is_late=True, machine_id="m-d")
    merged = run("merge", "d.db", "bundle.db", "-o", "all.db")
    assert "note: the clocks of d were not compared with those of the others" in merged.stderr
    assert (
        "order not known of d: its clock was not compared with that of another node"
        in run("explain", "--db", "all.db").stdout
    )
