"""Asks a recording through a local model: Ollama chooses the tools, `ingero mcp` answers them.

Needs `pip install 'ingero[mcp]'` and a running Ollama: python examples/mcp/ollama.py "What caused the stall?"
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, TextContent, Tool

MAX_ROUNDS = 12  # of tool calls, before a model that goes round in circles is stopped


def as_function(tool: Tool) -> dict[str, Any]:
    """A tool in Ollama's words."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def text(result: CallToolResult) -> str:
    """What the model is told of an answer."""
    said = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    return f"error: {said}" if result.is_error else said


async def ask(question: str, *, model: str, url: str, database: str) -> str:
    """The model's answer."""
    arguments = ["-m", "ingero.cli.main", "mcp", *(["--db", database] if database else [])]
    program = StdioServerParameters(command=sys.executable, args=arguments)
    async with Client(stdio_client(program)) as ingero, httpx2.AsyncClient(base_url=url, timeout=600) as ollama:
        tools = [as_function(tool) for tool in (await ingero.list_tools()).tools]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": ingero.instructions or ""},
            {"role": "user", "content": question},
        ]
        for _ in range(MAX_ROUNDS):
            request = {"model": model, "messages": messages, "tools": tools, "stream": False}
            reply = (await ollama.post("/api/chat", json=request)).raise_for_status().json()["message"]
            messages.append(reply)
            if not reply.get("tool_calls"):
                return str(reply["content"])
            for wanted in (one["function"] for one in reply["tool_calls"]):
                result = await ingero.call_tool(wanted["name"], wanted["arguments"])
                messages.append({"role": "tool", "tool_name": wanted["name"], "content": text(result)})
    return f"no answer after {MAX_ROUNDS} rounds of tool calls"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("--model", default="qwen3")
    parser.add_argument("--url", default="http://localhost:11434")
    parser.add_argument("--db", default="", help="recording; default ~/.ingero/ingero.db")
    options = parser.parse_args()

    async def answer() -> str:
        return await ask(options.question, model=options.model, url=options.url, database=options.db)

    print(anyio.run(answer))


if __name__ == "__main__":
    main()
