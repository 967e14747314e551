"""Eight nodes, each in a network of its own, with real servers and certificates: one is dead, one does not answer, the
clock of one is 3 s off, and one has a stranger's certificate. The others' answers are one table and one verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ingero.fleet.access import Access
from ingero.fleet.authority import Made
from tests.unit.fleet_nodes import make_certificates, record_node

pytestmark = pytest.mark.integration

NODES = range(1, 9)
LATE, DEAD, STOPPED, OFF, STRANGE = 1, 3, 4, 5, 6
ALIVE = [node for node in NODES if node not in (DEAD, STOPPED, STRANGE)]
LIST = "10.77.0.[1-8]"
# A network namespace has no wall clock of its own: the one of this process's Python goes 3 s ahead.
AHEAD = (
    "import runpy, time; real = time.time_ns; time.time_ns = lambda: real() + 3 * 10**9; "
    "runpy.run_module('ingero.cli.main', run_name='__main__')"
)


def address(node: int) -> str:
    return f"10.77.0.{node}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def network(names: dict[str, str]) -> Iterator[None]:
    """A namespace for each name, with its address, and one more with the bridge between them."""
    bridge = f"{next(iter(names))}-br"
    with ExitStack() as stack:
        for name in (bridge, *names):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", bridge, "link", "set", "br0", "up")
        for place, (name, own) in enumerate(names.items()):
            ip("-n", bridge, "link", "add", f"v{place}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", bridge, "link", "set", f"v{place}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{own}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield


@contextmanager
def serving(namespace: str, node: int, path: Path, made: Made, client_ca: Path) -> Iterator[subprocess.Popen[str]]:
    """A node's dashboard, as a process in its namespace."""
    program = ["-c", AHEAD] if node == OFF else ["-m", "ingero.cli.main"]
    options = ["--addr", f"{address(node)}:8080", "--tls-cert", str(made.certificate), "--tls-key", str(made.key)]
    server = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, *program, "dashboard", "--db", str(path), *options,
         "--client-ca", str(client_ca)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield server
    finally:
        server.send_signal(signal.SIGCONT)
        server.terminate()
        server.communicate()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.CompletedProcess[str]]]:
    """What `query` and `explain` say, by their names."""
    folder = tmp_path_factory.mktemp("fleet")
    own, stranger = make_certificates(folder / "own"), make_certificates(folder / "stranger")
    access: Access = own.client()
    empty = folder / "ingero.yaml"
    empty.write_text("")
    names = {f"ingero-{os.getpid()}-{node}": address(node) for node in NODES}
    client = f"ingero-{os.getpid()}-c"
    shown = ["--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert), "--client-key",
             str(access.client_key)]  # fmt: skip

    def ask(command: str, timeout: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", client, sys.executable, "-m", "ingero.cli.main", command, "--nodes", LIST, *shown,
             "--timeout", timeout, *more],
            capture_output=True, text=True, check=False, env=os.environ | {"INGERO_CONFIG": str(empty)},
        )  # fmt: skip

    with network(names | {client: "10.77.0.100"}), ExitStack() as stack:
        servers = {}
        for node, name in zip(NODES, names, strict=True):
            path = record_node(folder / f"{node}.db", f"gpu-{node}", is_late=node == LATE)
            made = (stranger if node == STRANGE else own).make(f"node-{node}", address(node))
            if node != DEAD:
                servers[node] = stack.enter_context(serving(name, node, path, made, own.ca))
        for node, server in servers.items():
            assert server.stderr is not None
            assert address(node) in server.stderr.readline()  # it listens
        servers[STOPPED].send_signal(signal.SIGSTOP)
        yield {
            "query": ask("query", "15s", "SELECT node, count(*) AS calls FROM events GROUP BY node ORDER BY node"),
            "explain": ask("explain", "30s"),
        }


@pytest.mark.parametrize("command", ["query", "explain"])
def test_each_of_the_four_is_one_sentence(asked: dict[str, subprocess.CompletedProcess[str]], command: str) -> None:
    after = {"query": "15.0 s", "explain": "30.0 s"}[command]
    said = [line for line in asked[command].stderr.splitlines() if not line.startswith("note: events holds")]
    assert said[0].startswith(f"warning: the clock of gpu-{OFF} is 3.00 s ahead of the others, to ")
    assert sorted(said[1:]) == sorted(
        [
            "partial: 3 of 8 nodes are missing",
            f"  {address(DEAD)}: connection refused",
            f"  {address(STOPPED)}: it did not answer within {after} (give it longer with --timeout)",
            f"  {address(STRANGE)}: its certificate is not trusted: no trusted authority signed it (--ca-cert "
            "with the certificate of the authority that signs those of nodes)",
        ]
    )
    assert asked[command].returncode == 3


def test_the_others_are_one_table(asked: dict[str, subprocess.CompletedProcess[str]]) -> None:
    lines = asked["query"].stdout.splitlines()
    assert [line.split() for line in lines[2:-2]] == [[f"gpu-{node}", "8"] for node in ALIVE]
    assert lines[-1] == f"  {len(ALIVE)} rows from {len(ALIVE)} node(s)"


def test_and_one_verdict(asked: dict[str, subprocess.CompletedProcess[str]]) -> None:
    lines = asked["explain"].stdout.splitlines()
    assert lines[0] == f"FLEET CAUSAL CHAINS - 1 chain(s) from {len(ALIVE)} node(s)"
    assert lines[2].startswith(f"[HIGH] [gpu-{LATE}] python [100] lost ")
    assert lines[-1] == ", ".join(f"gpu-{node}" for node in ALIVE if node != LATE) + ": No incidents found."
