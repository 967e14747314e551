"""The guides: every command is run as it stands there, against real nodes, and prints what is shown."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ingero.cli.main import cli
from ingero.fleet import node_lists
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.server import answering_to, certificate_of, create_server, server_context
from ingero.serve.http.addresses import Address, listen
from ingero.serve.recording_source import RecordingSource
from tests.unit.ingero_lines import ingero_lines, shell_blocks

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "one-slow-node-in-four.md").read_text()
FLEET, MERGE = ((ROOT / "docs" / name).read_text() for name in ("fleet.md", "merge.md"))
_OUTPUT = re.compile(r"^```sh\n([^`]*)^```\n\n```\n(.*?)^```", re.MULTILINE | re.DOTALL)
NODES = tuple(f"gpu-node-{number:02d}" for number in range(1, 5))
ADDRESSES = {node: f"127.0.0.{10 + number}" for number, node in enumerate(NODES)}
# What no two runs have in common.
_CHANGES = re.compile(r"\d+(\.\d+)? (ns|us|ms|s|[KM]iB)\b|in \d\S* s")
_SECONDS = re.compile(r"(\b\d\d:\d\d):\d\d\b")


def shown() -> list[tuple[list[str], str]]:
    """The commands of the guide in their order, each with the output that follows it, or none."""
    found = []
    for block, output in re.findall(r"^```sh\n([^`]*)^```\n(?:\n```\n(.*?)^```)?", GUIDE, re.MULTILINE | re.DOTALL):
        lines = list(ingero_lines(block))
        assert len(lines) == 1 or not output
        found += [(line, output) for line in lines]
    return found


@contextmanager
def served(folder: Path, command: list[str], port: int, nodes: tuple[str, ...] = NODES) -> Iterator[None]:
    """The dashboards that the guide starts, one on each node: here on addresses of the loopback."""
    context = cli.get_command(None, "dashboard").make_context("dashboard", command[1:])
    with ExitStack() as stack:
        for node in nodes:
            own = {
                name: Path(str(context.params[name]).replace(NODES[0], node)) for name in ("db", "tls_cert", "tls_key")
            }
            exposure = Exposure(
                address=Address(ADDRESSES[node], port), has_tls=True, certificate=folder / own["tls_cert"],
                key=folder / own["tls_key"], client_ca=folder / context.params["client_ca"],
            )  # fmt: skip
            stack.enter_context(_serving(folder / own["db"], exposure))
        yield


@contextmanager
def _serving(path: Path, exposure: Exposure) -> Iterator[None]:
    certificate = certificate_of(exposure)
    context = server_context(exposure, certificate)
    listening = listen(exposure.address)
    source = RecordingSource(path, may_lag=True)
    server = create_server(source, answering_to(exposure, certificate), context)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        source.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, int]]:
    """A folder with the recordings and the guide's configuration, and names that lead to the loopback."""
    for node in NODES:
        shutil.copy(ROOT / "examples" / "recordings" / f"sample-{node}.db", tmp_path)
    [settings] = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    (tmp_path / "ingero.yaml").write_text(settings)
    monkeypatch.setenv("INGERO_CONFIG", str(tmp_path / "ingero.yaml"))
    monkeypatch.delenv("INGERO_DB", raising=False)
    monkeypatch.chdir(tmp_path)
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *more: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return look_up(ADDRESSES.get(name, host), *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with socket.create_server((ADDRESSES[NODES[0]], 0)) as found:
        port = int(found.getsockname()[1])
    monkeypatch.setattr(node_lists, "DEFAULT_PORT", port)  # 8080 may be somebody's
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield tmp_path, port
    monkeypatch.undo()
    time.tzset()


def test_one_slow_node_in_four(place: tuple[Path, int]) -> None:
    folder, port = place
    with ExitStack() as stack:
        for command, output in shown():
            if command[0] == "dashboard":
                stack.enter_context(served(folder, command, port))
                continue
            done = CliRunner().invoke(cli, command)
            assert not isinstance(done.exception, Exception), (command, done.exception)
            assert done.exit_code == (1 if command[0] == "explain" else 0), (command, done.output)
            assert_shown(command, output, done)
    assert (folder / "bundle.pftrace").stat().st_size > 10_000


def assert_shown(command: list[str], output: str, done: Result) -> None:
    """Each line that is shown was printed, in this order; `...` stands for others."""
    printed = [plain(line) for line in done.stdout.splitlines() if line.strip()]
    wanted = [plain(line) for line in output.splitlines() if line.strip() not in ("", "...")]
    assert [line for line in wanted if line not in printed] == [], (command, done.output)
    assert [line for line in dict.fromkeys(printed) if line in wanted] == wanted, command
    if "..." not in output.splitlines() and output:
        assert printed == wanted, command


def plain(line: str) -> str:
    """Without what differs from run to run: also a time by a clock that is off by less than a millisecond."""
    line = _SECONDS.sub(r"\1", line.rstrip())
    is_changing = line.startswith(("clocks of", "bundle.", "cluster.")) or "slices" in line
    return _CHANGES.sub("#", line) if is_changing else line


def test_every_command_of_the_guide_is_run() -> None:
    listed = [line for block in shell_blocks(GUIDE) for line in ingero_lines(block)]
    assert [line for line, _ in shown()] == listed
    assert [line[0] for line in listed] == [
        "certs", "certs", "certs", "dashboard", "query", "explain", "fleet", "explain", "export", "merge",
    ]  # fmt: skip


def test_the_page_on_many_nodes_shows_what_three_of_its_four_say(place: tuple[Path, int]) -> None:
    folder, port = place
    [serve] = [command for command, _ in shown() if command[0] == "dashboard"]
    for command in (["init"], ["node", "gpu-node-[01-04]"], ["client", "alice"]):
        assert CliRunner().invoke(cli, ["certs", *command, "--dir", "certs"]).exit_code == 0
    for name in ("ca.pem", "alice.pem", "alice.key"):
        shutil.copy(folder / "certs" / name, folder)
    blocks = [(list(ingero_lines(block)), output) for block, output in _OUTPUT.findall(FLEET)]
    asked = [(lines[0], output) for lines, output in blocks if len(lines) == 1 and "--nodes" in lines[0]]
    with served(folder, serve, port, NODES[:3]):
        for command, output in asked:
            done = CliRunner().invoke(cli, command)
            printed = [plain(line) for line in (*done.stdout.splitlines(), *done.stderr.splitlines()) if line.strip()]
            assert printed == [plain(line) for line in output.splitlines() if line.strip()], command
            assert done.exit_code == (1 if command[0] == "compare" else 3), command
    assert [command[0] for command, _ in asked] == ["query", "explain", "compare"]


def test_the_page_on_merging_shows_what_is_said_of_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    [(merge, explain, output)] = [
        (*lines, output) for block, output in _OUTPUT.findall(MERGE) if len(lines := list(ingero_lines(block))) == 2
    ]
    assert CliRunner().invoke(cli, merge).exit_code == 0
    assert_shown(explain, output, CliRunner().invoke(cli, explain))
