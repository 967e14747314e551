"""`ingero trace` beside a workload, with the time at which each of its live findings was printed."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.agent import Agent, launched
from bench.incidents.price import Price


@dataclass
class Live(Agent):
    """A running agent whose output is read. `incidents`: (CLOCK_MONOTONIC ns, cause) of each live finding."""

    incidents: list[tuple[int, str]] = field(default_factory=list)
    drops: dict[str, int] = field(default_factory=dict)

    def listen(self) -> None:
        """Read what it prints until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "incident" in message:  # opened, updated or closed
                self.incidents.append((time.monotonic_ns(), message["incident"]["cause"]))
            elif message["type"] == "finished":
                self.drops = {name: count for name, count in message["drops"].items() if count}


@contextmanager
def tracing(database: Path, pids: Sequence[int], driver: Mapping[str, str], price: Price) -> Iterator[Live]:
    """An agent that records into `database` until the block ends, or until its traced processes have ended.

    driver: the variables with which it finds the simulated NVML. price: what it takes a probed call to cost.
    """
    environment = {**driver, **price.environment, "PYTHONUNBUFFERED": "1"}
    with launched(Live, database, pids=pids, options=price.options, environment=environment) as live:
        listener = threading.Thread(target=live.listen, daemon=True)
        listener.start()
        yield live
        if live.process.poll() is None:
            live.process.send_signal(signal.SIGINT)
        listener.join()
        live.process.wait()
