"""The examples for MCP clients: configurations start what exists, and the local model's loop brings tools and answers
together."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
import yaml

from ingero.cli.mcp import command
from ingero.demo.labeled_scenarios import SCENARIOS, record
from ingero.serve.mcp.http import PATH, TOKEN_VARIABLE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "mcp"
CONFIGURATIONS = sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".json", ".toml", ".yaml"))
SERVER_KEYS = ("mcpServers", "servers", "mcp", "mcp_servers")


def configuration(path: Path) -> Any:
    """What a client reads of an example."""
    text = path.read_text()
    if path.suffix == ".toml":
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # pytest brings it along
        return toml.loads(text)
    return yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)


def servers_of(path: Path) -> list[dict[str, Any]]:
    """The servers of an example; clients keep them in an object or in a list."""
    [servers] = [value for key, value in configuration(path).items() if key in SERVER_KEYS]
    return list(servers.values()) if isinstance(servers, dict) else servers


def command_line(server: dict[str, Any]) -> list[str]:
    """What a client starts; nothing where it connects."""
    command = server.get("command", [])
    return [*([command] if isinstance(command, str) else command), *server.get("args", [])]


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_a_configuration_starts_the_server_with_options_it_has_or_connects_to_where_it_listens(path: Path) -> None:
    for server in servers_of(path):
        if words := command_line(server):
            assert words[:2] == ["ingero", "mcp"]
            assert words[2:] == ["--db", "/var/lib/ingero/ingero.db"]
            command.make_context("mcp", words[2:], help_option_names=["-h", "--help"])
        else:
            assert server["url"] == f"https://localhost:8443{PATH}"


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.name)
def test_a_configuration_over_https_takes_the_token_from_elsewhere(path: Path) -> None:
    connecting = [server for server in servers_of(path) if "url" in server]
    tokens = [json.dumps(server.get("headers", server.get("bearer_token_env_var"))) for server in connecting]
    assert all(TOKEN_VARIABLE in one or "${input:" in one for one in tokens)


def test_the_configurations_are_there_for_both_transports_in_every_format() -> None:
    kinds = {(path.suffix, "url" in server) for path in CONFIGURATIONS for server in servers_of(path)}
    assert kinds == {(".json", False), (".json", True), (".toml", False), (".toml", True), (".yaml", False)}


def test_the_readme_of_the_examples_names_each_file() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert [name for name in files if f"]({name})" not in readme] == []


class ScriptedModel(BaseHTTPRequestHandler):
    """Speaks Ollama's /api/chat: asks for one tool, then answers with what it was told."""

    seen: list[dict[str, Any]]

    def do_POST(self) -> None:
        """One turn."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append(request)
        last = request["messages"][-1]
        if last["role"] == "tool":
            message: dict[str, Any] = {"role": "assistant", "content": last["content"]}
        else:
            wanted = {"function": {"name": "explain_incident", "arguments": {"since": ""}}}
            message = {"role": "assistant", "content": "", "tool_calls": [wanted]}
        body = json.dumps({"message": message}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def model() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its URL, and the requests it has got."""
    handler = type("Handler", (ScriptedModel,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.seen  # type: ignore[attr-defined]
        finally:
            server.shutdown()


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ollama_example", EXAMPLES / "ollama.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_local_model_is_offered_the_tools_and_told_their_answer(tmp_path: Path) -> None:
    record(SCENARIOS["hot-gpu"], tmp_path / "hot.db")
    example = _example()
    with model() as (url, seen):

        async def ask() -> str:
            answer = await example.ask("why?", model="any", url=url, database=str(tmp_path / "hot.db"))
            return str(answer)

        assert "gpu-throttled" in anyio.run(ask)
    assert {tool["function"]["name"] for tool in seen[0]["tools"]} >= {"explain_incident", "run_sql"}
    assert seen[0]["messages"][1] == {"role": "user", "content": "why?"}
