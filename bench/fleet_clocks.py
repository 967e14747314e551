"""How well a node's clock is known, through a proxy that delays: is the error within the bound, and how small are both?

Run: python -m bench.fleet_clocks [--runs N] [--json]. Real sockets on the loopback, eight exchanges a run on a kept
connection, a node whose clock is 37 ms ahead. Message delays: idle 100 us and 80 us more on average; asymmetric 250 and
160 us one way; stalled: every fifth message waits 4 ms besides. "asked": the same by the client of `query --nodes`,
with a connection and a question each run, of a node's real server behind the proxy, asymmetric and stalled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ingero.fleet.access import Access
from ingero.fleet.client import NodeClient
from ingero.fleet.clocks import EXCHANGES, Clock, Exchange, estimate
from ingero.fleet.direct_client import DirectClient
from ingero.fleet.fan_out import Reach, ask_nodes
from ingero.serve.structured.row_lines import Identity
from tests.unit.delayed_clock import MessageDelay, delaying_proxy, node_behind_proxy, percentile
from tests.unit.fleet_nodes import record_node, serving_node

_SHIFT_NS = 37_000_000
_MIN_WITHIN_PERCENT, _MAX_ABOVE_US = 99.9, 50.0
_IDLE = MessageDelay(least_s=100e-6, beyond_s=80e-6)
_LONGER = MessageDelay(least_s=250e-6, beyond_s=160e-6)
_STALLED = MessageDelay(least_s=100e-6, beyond_s=80e-6, waits=0.2)
_LONGER_STALLED = MessageDelay(least_s=250e-6, beyond_s=160e-6, waits=0.2)
_SETTINGS = {
    "idle": (_IDLE, _IDLE),
    "asymmetric": (_IDLE, _LONGER),
    "stalled": (_STALLED, _STALLED),
    "asymmetric, stalled": (_LONGER_STALLED, _STALLED),
}


async def run(there: MessageDelay, back: MessageDelay, runs: int) -> dict[str, float]:
    """Figures of one setting; times in us."""
    found = []
    async with node_behind_proxy(there, back, lambda: _SHIFT_NS, random.Random(1)) as ask:
        for _ in range(runs):
            made = await ask(EXCHANGES)
            found.append((estimate(made), made))
    return _figures(found)


def run_asked(there: MessageDelay, back: MessageDelay, runs: int) -> dict[str, float]:
    """The figures of a real node server, queried by the client of `query --nodes`."""

    async def ask(client: NodeClient) -> DirectClient:
        await client.json("/api/v2/node", Identity)
        assert isinstance(client, DirectClient)
        return client

    found: list[tuple[Clock, Sequence[Exchange]]] = []
    access = Access(has_tls=False)
    with (
        tempfile.TemporaryDirectory(prefix="ingero-clocks-") as folder,
        serving_node(
            record_node(Path(folder) / "n.db", "n"), has_tls=False, clock=lambda: time.time_ns() + _SHIFT_NS
        ) as node,
        delaying_proxy(node, there, back, random.Random(1)) as (proxy, _),
    ):
        for _ in range(runs):
            [one] = ask_nodes(Reach(nodes=(proxy,), access=access, context=None, timeout_s=60), ask).answered
            assert one.clock is not None
            found.append((one.clock, one.answer.exchanges))
    return _figures(found)


def _figures(found: Sequence[tuple[Clock, Sequence[Exchange]]]) -> dict[str, float]:
    errors = [abs(known.offset_ns - _SHIFT_NS) / 1e3 for known, _ in found]
    bounds = [known.bound_ns / 1e3 for known, _ in found]
    above = [known.bound_ns / 1e3 - min(one.round_trip_ns for one in made) / 2e3 for known, made in found]
    return {
        "within_bound_percent": 100 * sum(map(float.__le__, errors, bounds)) / len(found),
        "error_median_us": round(statistics.median(errors), 1),
        "error_p99_us": round(percentile(errors, 0.99), 1),
        "bound_median_us": round(statistics.median(bounds), 1),
        "bound_p99_us": round(percentile(bounds, 0.99), 1),
        "bound_above_half_round_trip_us": round(max(above), 3),
    }


def bars(found: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, bool]]:
    """The bars of the figures, each with whether it is kept."""
    within = min(figures["within_bound_percent"] for figures in found.values())
    yield (
        f"error within the bound: {within}% of runs, at least {_MIN_WITHIN_PERCENT}%",
        within >= _MIN_WITHIN_PERCENT,
    )
    above_us = max(figures["bound_above_half_round_trip_us"] for figures in found.values())
    yield (
        f"bound above half the shortest round trip: {above_us} us, at most {_MAX_ABOVE_US}",
        above_us <= _MAX_ABOVE_US,
    )
    late_us, bound_us = found["stalled"]["error_p99_us"], found["idle"]["bound_median_us"]
    yield f"every fifth message 4 ms late: p99 error {late_us} us, undelayed bound {bound_us} us", late_us <= bound_us


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {name: asyncio.run(run(there, back, arguments.runs)) for name, (there, back) in _SETTINGS.items()}
    found["asked"] = run_asked(_LONGER_STALLED, _STALLED, arguments.runs)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(name)
        for label, value in figures.items():
            print(f"  {label:<32} {value}")
    for text, is_kept in bars(found):
        print(f"{text} ({'kept' if is_kept else 'NOT KEPT'})")


if __name__ == "__main__":
    main()
