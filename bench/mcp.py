"""How long an MCP client waits: until a server it starts has answered the handshake, and for each tool.

The recording is one made on the spot, or --db. The first call of each tool (explain_incident diagnoses in it) stands
beside median and p95 of the rest. On a busy machine look at the CPU time until the handshake: the wall time is then
mostly the others'.

Run: python -m bench.mcp [--db FILE] [--rounds N] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from bench.agent import cpu_s
from ingero.demo.labeled_scenarios import SCENARIOS, record

START_S, CALL_MS = 1.2, 100  # what is promised on a machine that has nothing else to do
_HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
_CALLS: dict[str, dict[str, object]] = {
    "explain_incident": {},
    "get_causal_chains": {},
    "get_trace_stats": {},
    "get_stacks": {},
    "graph_lifecycle": {},
    "graph_frequency": {},
    "run_sql": {"query": "SELECT op_name, sum(count), sum(sum_ns) FROM op_stats GROUP BY op_name ORDER BY 3 DESC"},
}


def _environment() -> dict[str, str]:
    """The environment of an installed package, whose modules are compiled once."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def start(database: Path) -> tuple[float, float]:
    """(wall, CPU) in s from `exec` to the answer of the handshake."""
    began = time.monotonic()
    command = [sys.executable, "-m", "ingero.cli.main", "mcp", "--db", str(database)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(_HELLO) + "\n")
        server.stdin.flush()
        json.loads(server.stdout.readline())
        wall_s, used_s = time.monotonic() - began, cpu_s(server.pid)
        server.stdin.close()
    return wall_s, used_s


async def call_times(database: Path, rounds: int) -> dict[str, list[float]]:
    """The durations (ms) of the calls of each tool; the first one is the first of its session."""
    command = ["-m", "ingero.cli.main", "mcp", "--db", str(database)]
    program = StdioServerParameters(command=sys.executable, args=command, env=_environment())
    found: dict[str, list[float]] = {name: [] for name in _CALLS}
    async with Client(stdio_client(program)) as client:
        await client.list_tools()
        for _ in range(rounds):
            for name, arguments in _CALLS.items():
                began = time.monotonic()
                answer = await client.call_tool(name, arguments)
                found[name].append((time.monotonic() - began) * 1e3)
                assert not answer.is_error, answer
    return found


def run(database: Path | None, rounds: int) -> dict[str, Any]:
    """The figures."""
    with tempfile.TemporaryDirectory() as folder:
        if database is None:
            database = Path(folder) / "scenario.db"
            record(SCENARIOS["slow-disk"], database)
        starts = [start(database) for _ in range(rounds + 1)][1:]  # the first fills the caches
        times = anyio.run(call_times, database, max(rounds * 3, 2))
    rest = {name: sorted(ms[1:]) for name, ms in times.items()}
    return {
        "start_s": statistics.median(wall for wall, _ in starts),
        "start_least_s": min(wall for wall, _ in starts),
        "start_cpu_s": statistics.median(used for _, used in starts),
        "first_ms": {name: ms[0] for name, ms in times.items()},
        "median_ms": {name: statistics.median(ms) for name, ms in rest.items()},
        "p95_ms": {name: ms[int(0.95 * (len(ms) - 1))] for name, ms in rest.items()},
    }


def print_text(result: dict[str, Any]) -> None:
    """The table."""
    print(
        f"start to handshake: {result['start_s']:.2f} s (least {result['start_least_s']:.2f}, "
        f"CPU {result['start_cpu_s']:.2f}; promised {START_S})"
    )
    print(f"{'tool':<20}{'first':>10}{'median':>10}{'p95':>10}   promised p95: {CALL_MS} ms")
    for name, first in result["first_ms"].items():
        print(f"{name:<20}{first:>7.0f} ms{result['median_ms'][name]:>7.1f} ms{result['p95_ms'][name]:>7.1f} ms")


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--db", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = run(options.db, 1 if options.short else options.rounds)
    print(json.dumps(result)) if options.json else print_text(result)


if __name__ == "__main__":
    main()
