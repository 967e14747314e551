"""F10, F11, F13, F14, F49: what nodes that are hostile, dead or many do to an answer, and values on their way."""

from __future__ import annotations

import asyncio
import csv
import importlib
import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.fleet_rows.figures import Figure, listed, run, run_alone, said, serving, shown
from ingero.fleet.access import Access
from ingero.fleet.assistant import MAX_BYTES, FleetQuestions
from ingero.fleet.node_lists import Node
from tests.unit.fleet.test_mcp import ATTACK, size_bytes
from tests.unit.fleet.test_query import HOSTILE
from tests.unit.fleet_nodes import record_node, serving_node
from tests.unit.hostile_nodes import http, listening
from tests.unit.mcp_client import call, content, server_of

CALLS = "SELECT node, count(*) AS calls FROM events GROUP BY node ORDER BY node"
_TIMEOUT_S, _MORE_S, _MAX_MB = 5, 0.5, 200
_LONG = "60s"  # where the time limit is not what is asked about
_MANY = 10_000
_INTEGERS = (2**63 - 1, 9007199254740993, -(2**63))
_VALUES = (
    "9223372036854775807 AS a, 9007199254740993 AS b, -9223372036854775807 - 1 AS c, 'ä日\U0001f525' AS t, NULL AS n"
)


def hostile_nodes(folder: Path) -> Iterator[Figure]:
    """F10: beside one good node; the time above that of the good one alone, and the memory of the whole command."""
    path = record_node(folder / "good.db", "good")
    with ExitStack() as stack:
        good = stack.enter_context(serving_node(path, has_tls=False))
        bad = [stack.enter_context(listening(handler)) for handler, _ in HOSTILE.values()]
        options = ["--no-tls", "--json", "--timeout", f"{_TIMEOUT_S}s", CALLS]
        alone = run_alone("query", "--nodes", listed([good]), *options)
        beside = run_alone("query", "--nodes", listed([*bad, good]), *options)
    answer = json.loads(beside.stdout)
    is_whole = answer["rows"] == json.loads(alone.stdout)["rows"] == [{"node": "good", "calls": 8}]
    yield Figure(
        f"{len(bad)} hostile nodes (10 GB, a byte at a time, garbage, redirects ...): the good one's rows are "
        f"{'whole' if is_whole else 'NOT WHOLE'}, {len(answer['missing'])} missing with a reason, exit {beside.code}",
        is_whole and len(answer["missing"]) == len(bad) and beside.code == 3,
    )
    took_s = beside.wall_s - alone.wall_s
    yield Figure(
        f"{took_s:.2f} s more than the good one alone, at most {_TIMEOUT_S} + {_MORE_S}", took_s <= _TIMEOUT_S + _MORE_S
    )
    yield Figure(f"{beside.rss_mb:.0f} MB of memory, at most {_MAX_MB}", beside.rss_mb < _MAX_MB)
    yield Figure("no escape sequence in what is printed", "\x1b" not in beside.stdout + beside.stderr)


def dead_nodes(folder: Path) -> Iterator[Figure]:
    """F11: one, all but one, and all of eight; each command that asks nodes."""
    names = [f"gpu-{number}" for number in range(8)]
    with serving(folder, names) as fleet:
        for dead in (1, len(names) - 1, len(names)):
            gone = [Node("127.0.0.1", port) for port in range(1, 1 + dead)]
            asked = ["--nodes", listed([*gone, *fleet.nodes[dead:]]), *shown(fleet.client), "--timeout", _LONG]
            done = run_alone("query", *asked, "--json", CALLS)
            answer = json.loads(done.stdout)
            is_right = (
                [row["node"] for row in answer["rows"]] == names[dead:]
                and [one["node"] for one in answer["missing"]] == [node.authority for node in gone]
                and all(one["reason"] for one in answer["missing"])
                and answer["partial"]
            )
            out = folder / f"{dead}.pftrace"
            codes = {
                "query": done.code,
                "explain": run_alone("explain", *asked).code,
                "check": run_alone("check", *asked).code,
                "export": run_alone("export", "--format", "perfetto", "-o", str(out), *asked).code,
            }
            yield Figure(
                f"{dead} of {len(names)} dead: rows of {len(answer['rows'])}, {len(answer['missing'])} missing with a "
                f"reason, partial {answer['partial']}, exit codes {codes}",
                is_right and set(codes.values()) == {2 if dead == len(names) else 3},
            )


def values(folder: Path) -> Iterator[Figure]:
    """F13: 64-bit integers, Unicode and NULL in each form."""
    file = folder / "out.parquet"
    with serving(folder, ["gpu-01"]) as fleet:

        def ask(*form: str) -> str:
            asked = ["--nodes", listed(fleet.nodes), *shown(fleet.client), *form]
            return run("query", *asked, f"SELECT {_VALUES} FROM sessions").stdout

        [row] = json.loads(ask("--json"))["rows"]
        found = {"JSON": [row[name] for name in "abctn"]}
        [line] = list(csv.DictReader(io.StringIO(ask("--csv"))))
        found["CSV"] = [int(line["a"]), int(line["b"]), int(line["c"]), line["t"], line["n"] or None]
        cells = ask().splitlines()[2].split()
        found["table"] = [
            *map(int, cells[1:4]),
            cells[4],
            None if len(cells) == 5 else cells[5],
        ]
        ask("--parquet", str(file))
    rows = importlib.import_module("duckdb").sql(f"SELECT a, b, c, t, n FROM '{file}'").fetchall()
    found["Parquet"] = list(rows[0])
    for form, got in found.items():
        is_right = got[:4] == [*_INTEGERS, "ä日\U0001f525"] and got[4] in (None, "NULL")
        yield Figure(f"{form}: {got!a}", is_right)


def what_is_cut(folder: Path) -> Iterator[Figure]:
    """F14: a limit is of all nodes together, and says whose rows are missing."""
    names = [f"gpu-{number}" for number in range(4)]
    with serving(folder, names) as fleet:
        asked = ["--nodes", listed(fleet.nodes), *shown(fleet.client), "--limit", "5", "SELECT pid FROM events"]
        answer, table = json.loads(run("query", *asked, "--json").stdout), run("query", *asked)
    cut = (len(answer["rows"]), answer["truncated"], answer["is_cut"])
    yield Figure(f"--limit 5 over 32 rows of 4 nodes: rows, truncated, is_cut in JSON: {cut}", cut == (5, names, True))
    [note] = [line for line in said(table).splitlines() if "more rows" in line]
    yield Figure(f"table: {note}", True)


def assistants(folder: Path) -> Iterator[Figure]:
    """F49: 10,000 nodes that all answer, hostile texts in each; a client of MCP's own SDK."""
    own = record_node(folder / "own.db", "own")
    with _stubs(_MANY) as port:
        nodes = tuple(Node(_address(place), port) for place in range(_MANY))
        server = server_of(own, fleet=FleetQuestions(nodes=nodes, access=Access(has_tls=False), timeout_s=120))
        questions = [("query_fleet", {"action": action}) for action in ("chains", "overview", "ops")]
        for tool, arguments in [*questions, ("fleet_nodes", {})]:
            answer = call(server, tool, **arguments)
            size, about = size_bytes(answer), content(answer)
            answer_text = json.dumps(about, ensure_ascii=False)
            yield Figure(
                f"{tool} {arguments.get('action', '')}: {about['nodes_answered']:,} of {about['nodes_asked']:,} nodes "
                f"answered, {size:,} bytes, at most {MAX_BYTES:,}",
                size <= MAX_BYTES and about["nodes_answered"] == _MANY and not {"\u202e", "\x1b"} & set(answer_text),
            )


def _address(place: int) -> str:
    return f"127.3.{place // 250}.{place % 250 + 1}"


@contextmanager
def _stubs(count: int) -> Iterator[int]:
    """A process that plays so many nodes over plain HTTP; their port."""
    command = [sys.executable, "-m", "bench.fleet_rows.answers", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def _serve(count: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("sockname")[0]
        try:
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].partition(b"?")[0]
                writer.write(http("200 OK", _body(path.decode(), host)))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    servers: list[asyncio.Server] = []
    for place in range(count):
        port = servers[0].sockets[0].getsockname()[1] if servers else 0
        servers.append(await asyncio.start_server(answer, _address(place), port, backlog=16))
    print(servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(*(one.serve_forever() for one in servers))


def _body(path: str, host: str) -> bytes:
    """What a node says that wants to act on who reads it."""
    who = {"nodes": [host], "machine_id": "", "recording": host}
    chain = {"id": "1", "severity": "HIGH", "summary": ATTACK * 9, "root_cause": ATTACK, "recommendations": [ATTACK]}
    stamps = {"received_ns": time.time_ns(), "sent_ns": time.time_ns()}
    ops = [{"name": ATTACK, "pid": 1, "count": 5, "sum_ns": 9, "max_ns": 4}] * 5
    counts = {"is_live": True, "event_count": 1, "chain_count": 3, "session_count": 1, "calls": 9}
    answers: dict[str, object] = {
        "/api/v2/explain": {"node": who, "headline": ATTACK, "diagnosis": {}, "chains": [chain] * 3},
        "/api/v2/node": who,
        "/api/v2/time": stamps,
        "/api/v1/ops": {"ops": ops},
        "/api/v1/overview": counts,
    }
    return json.dumps(answers[path]).encode()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(_serve(int(sys.argv[1])))
