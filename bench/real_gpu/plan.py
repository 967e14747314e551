"""The loops, the fault of each, and the findings that are right for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Fault(enum.Enum):
    """What happens to a loop for a part of the time it is traced."""

    NONE = ""
    SLOW_ITEMS = "items 0.3 s slower"
    BUSY_CPU = "a busy loop on its CPU"
    SHARED_GPU = "another process on its GPU"
    BUSY_THREAD = "a Python thread that computes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A program. program: its name in loops.py; causes: what may be named, any other cause is wrong."""

    program: str
    what: str
    fault: Fault = Fault.NONE
    causes: frozenset[str] = frozenset()


LOOPS: dict[str, Loop] = {
    "item": Loop(program="item", what="reads the loss after each step"),
    "nosync": Loop(program="nosync", what="reads the loss every hundredth step"),
    "host": Loop(
        program="host",
        what="a model so small that the host sets the pace",
        causes=frozenset({"host-bound", "launch-bound"}),
    ),
    "compile": Loop(program="compile", what="torch.compile, never waits"),
    "graphs": Loop(program="graphs", what="CUDA graphs"),
    "copy": Loop(
        program="copy",
        what="copies from memory that is not pinned",
        causes=frozenset({"memcpy-bound", "unexpected-sync"}),
    ),
    "generate": Loop(
        program="generate",
        what="generates tokens with transformers",
        causes=frozenset({"host-bound", "launch-bound", "unexpected-sync"}),
    ),
    "tiny": Loop(
        program="tiny",
        what="500 launches without work",
        causes=frozenset({"launch-bound", "host-bound"}),
    ),
    "loader-pinned": Loop(
        program="loader-pinned",
        what="fed by four workers and a pinning thread",
        fault=Fault.SLOW_ITEMS,
        causes=frozenset({"data-starvation"}),
    ),
    "loader-pageable": Loop(
        program="loader-pageable",
        what="fed by four workers, not pinned",
        fault=Fault.SLOW_ITEMS,
        causes=frozenset({"data-starvation", "memcpy-bound", "unexpected-sync"}),
    ),
    "hog": Loop(
        program="item",
        what="item on one CPU",
        fault=Fault.BUSY_CPU,
        causes=frozenset({"cpu-affinity", "cpu-contention"}),
    ),
    "share": Loop(
        program="item", what="item", fault=Fault.SHARED_GPU, causes=frozenset({"gpu-contention", "gpu-slower"})
    ),
    "busy-thread": Loop(
        program="busy-thread",
        what="item with a second thread",
        fault=Fault.BUSY_THREAD,
        causes=frozenset({"gil"}),
    ),
}
