"""An MCP client for tests: sessions with the SDK's client, its answers, and the server of a recording."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, TextContent

from ingero.demo.labeled_scenarios import SCENARIOS, record
from ingero.discover.checks import CheckRow, CheckState
from ingero.serve.mcp.server import IngeroServer, make_server
from ingero.serve.mcp.tools import Demo, Fleet, Surroundings
from ingero.serve.recording_source import RecordingSource

Answer = TypeVar("Answer")
Ask = Callable[[Client], Awaitable[Answer]]
CHECKED = CheckRow(
    section="kernel", name="BTF", state=CheckState.MISSING, found="no /sys/kernel/btf/vmlinux", fix="boot another"
)


def _record_scenario(name: str, path: Path) -> str:
    record(SCENARIOS[name], path)
    return SCENARIOS[name].cause


def server_of(path: Path, *, test_report: Path | None = None, fleet: Fleet | None = None) -> IngeroServer:
    """A server as `ingero mcp` makes it, on a machine that lacks one thing."""
    demo = Demo(titles=lambda: {name: scenario.title for name, scenario in SCENARIOS.items()}, record=_record_scenario)
    around = Surroundings(check=lambda: [CHECKED], demo=demo, clock=time.time_ns, test_report=test_report, fleet=fleet)
    return make_server(RecordingSource(path), around)


def ask(server: IngeroServer, question: Ask[Answer]) -> Answer:
    """The answer of a server in this process."""

    async def session() -> Answer:
        async with Client(server) as client:
            return await question(client)

    return anyio.run(session)


def call(server: IngeroServer, tool: str, **arguments: object) -> CallToolResult:
    """The answer of a tool call."""
    return ask(server, lambda client: client.call_tool(tool, arguments))


def ask_by_stdio(path: Path, question: Ask[Answer], *, mode: str = "auto") -> Answer:
    """The answer of `ingero mcp` run as a child process."""

    async def session() -> Answer:
        command = ["-m", "ingero.cli.main", "mcp", "--db", str(path)]
        program = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
        async with Client(stdio_client(program), mode=mode) as client:
            return await question(client)

    return anyio.run(session)


def content(result: CallToolResult) -> dict[str, Any]:
    """The structured answer of a tool that succeeded."""
    assert not result.is_error, text(result)
    found: dict[str, Any] | None = result.structured_content
    assert found is not None
    return found


def text(result: CallToolResult) -> str:
    """The text of an answer."""
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text
