"""Eight nodes, each in a network of its own, with real servers and certificates: one is dead, one does not answer, the
clock of one is 3 s off, and one has a stranger's certificate. The others' answers are one table and one verdict.

The one with the wrong clock is a live agent (`trace --serve`) with a program to trace, in `make test-further` three
are; the others serve a recording.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.demo.workloads.program import Program
from ingero.fleet.access import Access
from ingero.fleet.authority import IssuedCertificate
from tests.integration.targets import simulation
from tests.integration.tracing import tracing
from tests.unit.fleet_nodes import make_certificates, record_node

pytestmark = pytest.mark.integration

NODES = range(1, 9)
LATE, DEAD, STOPPED, OFF, STRANGE = 1, 3, 4, 5, 6
# A live agent takes some 10 s of CPU, most of it to start and to end.
LIVE = [pytest.param((OFF,), id="one-live"), pytest.param((2, OFF, 8), id="three-live", marks=pytest.mark.further)]
ALIVE = [node for node in NODES if node not in (DEAD, STOPPED, STRANGE)]
LIST = "10.77.0.[1-8]"
# A network namespace has no wall clock of its own: the one of that node's Python goes 3 s ahead (sitecustomize.py).
AHEAD = "import time; real = time.time_ns; time.time_ns = lambda: real() + 3 * 10**9"


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


def served(made: IssuedCertificate, client_ca: Path) -> list[str]:
    """The options of a node's server."""
    return ["--tls-cert", str(made.certificate), "--tls-key", str(made.key), "--client-ca", str(client_ca)]


@contextmanager
def serving(
    namespace: str, node: int, path: Path, made: IssuedCertificate, client_ca: Path
) -> Iterator[subprocess.Popen[str]]:
    """A node's dashboard, as a process in its namespace."""
    server = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-m", "ingero.cli.main", "dashboard", "--db", str(path),
         "--addr", f"{address(node)}:8080", *served(made, client_ca)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield server
    finally:
        server.send_signal(signal.SIGCONT)
        server.terminate()
        server.communicate()


@contextmanager
def recording(namespace: str, node: int, folder: Path, made: IssuedCertificate, client_ca: Path) -> Iterator[None]:
    """A live agent in a node's namespace, with a program to trace and the first second in the file."""
    folder.mkdir()
    ahead = folder / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(AHEAD if node == OFF else "")
    options = ["--record-all", "--stack=false", "--node", f"gpu-{node}", "--serve", f"{address(node)}:8080"]
    within = ["nsenter", f"--net=/run/netns/{namespace}"]  # `ip netns exec` would hide tracefs
    calls = ["--threads", "1", "--processes", "1", "--seconds", "300", "--rate", "50"]
    with (
        Program.module("calls", *calls, environment=simulation(folder).environment) as program,
        tracing(
            folder,
            pids=[int(program.wait_for("loaded")[0])],
            options=[*options, *served(made, client_ca)],
            environment={"PYTHONPATH": f"{ahead}:{os.environ.get('PYTHONPATH', '')}"},
            within=within,
        ) as tracer,
    ):
        tracer.wait_for("second")
        yield
        program.process.terminate()  # the agent ends with it


@dataclass(frozen=True)
class Asked:
    """What `query` and `explain` say; strangers: what clients got that a node must not believe; live: which nodes are
    agents that record."""

    query: subprocess.CompletedProcess[str]
    explain: subprocess.CompletedProcess[str]
    strangers: subprocess.CompletedProcess[str]
    live: tuple[int, ...]


@pytest.fixture(scope="module", params=LIVE)
def asked(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Asked]:
    live: tuple[int, ...] = request.param
    folder = tmp_path_factory.mktemp("fleet")
    own, stranger = make_certificates(folder / "own"), make_certificates(folder / "stranger")
    access: Access = own.client()
    empty = folder / "ingero.yaml"
    empty.write_text("")
    names = {f"ingero-{os.getpid()}-{node}": address(node) for node in NODES}
    client = f"ingero-{os.getpid()}-c"
    shown = ["--ca-cert", str(access.ca_cert), "--client-cert", str(access.client_cert), "--client-key",
             str(access.client_key)]  # fmt: skip

    def run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", client, sys.executable, "-m", module, *words],
            capture_output=True, text=True, check=False, env=os.environ | {"INGERO_CONFIG": str(empty)},
        )  # fmt: skip

    def ask(command: str, timeout: str, *more: str) -> subprocess.CompletedProcess[str]:
        return run("ingero.cli.main", command, "--nodes", LIST, *shown, "--timeout", timeout, *more)

    with network(names | {client: "10.77.0.100"}), ExitStack() as stack:
        servers = {}
        for node, name in zip(NODES, names, strict=True):
            made = (stranger if node == STRANGE else own).make(f"node-{node}", address(node))
            if node in live:
                stack.enter_context(recording(name, node, folder / f"{node}", made, own.ca))
            elif node != DEAD:
                path = record_node(folder / f"{node}.db", f"gpu-{node}", is_late=node == LATE)
                servers[node] = stack.enter_context(serving(name, node, path, made, own.ca))
        for node, server in servers.items():
            assert server.stderr is not None
            assert address(node) in server.stderr.readline()  # it listens
        servers[STOPPED].send_signal(signal.SIGSTOP)
        sql = "SELECT node, count(*) AS calls FROM events GROUP BY node ORDER BY node"
        with ThreadPoolExecutor() as both:  # each waits for the node that does not answer
            query, explain = both.submit(ask, "query", "15s", sql), both.submit(ask, "explain", "30s")
        strangers = run("tests.integration.fleet_strangers", address(LATE), str(own.folder), str(stranger.folder))
        yield Asked(query.result(), explain.result(), strangers, live)


@pytest.mark.parametrize("command", ["query", "explain"])
def test_each_of_the_four_is_one_sentence(asked: Asked, command: str) -> None:
    after = {"query": "15.0 s", "explain": "30.0 s"}[command]
    answer: subprocess.CompletedProcess[str] = getattr(asked, command)
    # a host that does much else also makes clocks known to more than 10 ms only, which is said of each
    besides = re.compile(
        r"note: events holds|warning: the clock of gpu-\d is known to .* only: its answers take that long"
    )
    said = [line for line in answer.stderr.splitlines() if not besides.match(line)]
    # to the bound that the sentence ends with, which a busy host makes larger
    assert re.match(rf"warning: the clock of gpu-{OFF} is (?:3\.[01]|2\.9)\d s ahead of the others, to ", said[0])
    assert sorted(said[1:]) == sorted(
        [
            "partial: 3 of 8 nodes are missing",
            f"  {address(DEAD)}: connection refused",
            f"  {address(STOPPED)}: it did not answer within {after} (give it longer with --timeout)",
            f"  {address(STRANGE)}: its certificate is not trusted: no trusted authority signed it (--ca-cert "
            "with the certificate of the authority that signs those of nodes)",
        ]
    )
    assert answer.returncode == 3


def test_the_others_are_one_table(asked: Asked) -> None:
    lines = asked.query.stdout.splitlines()
    calls = {node: int(count) for node, count in (line.split() for line in lines[2:-2])}
    assert list(calls) == [f"gpu-{node}" for node in ALIVE]
    assert [calls[f"gpu-{node}"] for node in ALIVE if node not in asked.live] == [8] * (len(ALIVE) - len(asked.live))
    assert all(calls[f"gpu-{node}"] > 0 for node in asked.live)
    assert lines[-1] == f"  {len(ALIVE)} rows from {len(ALIVE)} node(s)"


def test_and_one_verdict(asked: Asked) -> None:
    """What else runs here may be an incident of those that record: each has a chain, or says that it has none."""
    lines = asked.explain.stdout.splitlines()
    assert re.fullmatch(rf"FLEET CAUSAL CHAINS - \d+ chain\(s\) from {len(ALIVE)} node\(s\)", lines[0])
    chains = [line for line in lines if re.match(r"\[\w+\] \[", line)]
    assert any(line.startswith(f"[HIGH] [gpu-{LATE}] python [100] lost ") for line in chains)
    silent = [line.partition(": ")[0].split(", ") for line in lines if line.startswith("gpu-")]
    found = [re.findall(r"\[(gpu-\d)\]", line)[0] for line in chains]
    assert sorted({*found, *(node for nodes in silent for node in nodes)}) == [f"gpu-{node}" for node in ALIVE]
    assert f"gpu-{LATE}" not in {node for nodes in silent for node in nodes}


def test_strangers_in_the_network_get_no_byte(asked: Asked) -> None:
    found = json.loads(asked.strangers.stdout or "{}")
    print(f"\n{found}")
    assert set(found["bytes"].values()) == {0}, asked.strangers.stderr
    assert len(found["bytes"]) == 5
    assert found["elsewhere"] == "421"
