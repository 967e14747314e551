"""Asks a recording what an assistant asks it, over MCP, and prints each question, call and answer.

    python examples/mcp/walkthrough.py [--db FILE]

It starts `ingero mcp` as a client does and needs `pip install 'ingero[mcp]'`. docs/guides/assistant.md shows what it
prints; skills/ingero/SKILL.md says how to choose the calls.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

RECORDING = Path(__file__).resolve().parents[1] / "recordings" / "incident.db"
# What a person asks, the tool that answers it, and its arguments.
QUESTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("My training was slow this morning. Why?", "explain_incident", {}),
    ("Was that the only incident?", "get_causal_chains", {"top_n": 5}),
    ("Did the calls themselves become slower?", "get_trace_stats", {}),
    ("Which line of Python called cudaStreamSynchronize?", "get_stacks", {"op": "cudaStreamSynchronize", "limit": 3}),
    (
        "Which calls took the most time in all?",
        "run_sql",
        {"query": "SELECT op_name, sum(count) AS calls, sum(sum_ns) / 1000000 AS ms FROM op_stats GROUP BY 1"},
    ),
)  # fmt: skip


async def exchange(database: str) -> list[str]:
    """Every question with its call and its answer, as lines."""
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "ingero.cli.main", "mcp", "--db", database], env=dict(os.environ)
    )
    lines: list[str] = []
    async with Client(stdio_client(program)) as client:
        for question, tool, arguments in QUESTIONS:
            result = await client.call_tool(tool, arguments)
            answer = "\n".join(block.text for block in result.content if block.type == "text")
            call = f"{tool} {json.dumps(arguments)}" if arguments else tool
            lines += [f"user: {question}", f"call: {call}", *(f"  {line}" for line in answer.splitlines()), ""]
    return lines


def main() -> None:
    """Prints the exchange."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default=str(RECORDING), help="the recording to ask")
    print("\n".join(anyio.run(exchange, parser.parse_args().db)))


if __name__ == "__main__":
    main()
