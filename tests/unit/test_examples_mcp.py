"""The examples for MCP clients: configurations start what exists, and the local model's loop brings tools and answers
together."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from ingero.cli.mcp import command
from ingero.demo.labelled_scenes import STORIES, record

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "mcp"


@pytest.mark.parametrize("name", ["mcp-servers.json", "servers.json"])
def test_a_configuration_starts_the_server_with_options_it_has(name: str) -> None:
    [servers] = json.loads((EXAMPLES / name).read_text()).values()
    program = servers["ingero"]
    assert (program["command"], program["args"][0]) == ("ingero", "mcp")
    command.make_context("mcp", program["args"][1:], help_option_names=["-h", "--help"])
    assert json.dumps(program["args"]) in (EXAMPLES / "mcp-servers.toml").read_text()


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
    record(STORIES["hot-gpu"], tmp_path / "hot.db")
    example = _example()
    with model() as (url, seen):

        async def ask() -> str:
            answer = await example.ask("why?", model="any", url=url, database=str(tmp_path / "hot.db"))
            return str(answer)

        assert "gpu-throttled" in anyio.run(ask)
    assert {tool["function"]["name"] for tool in seen[0]["tools"]} >= {"explain_incident", "run_sql"}
    assert seen[0]["messages"][1] == {"role": "user", "content": "why?"}
