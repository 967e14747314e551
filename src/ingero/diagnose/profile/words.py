"""Texts for the parts of a profile: owners of idle time, kinds of waits, processes."""

from __future__ import annotations

from collections.abc import Mapping

from ingero.diagnose.profile import blocked, idle
from ingero.program import command
from ingero.store.records import Process

IDLE_TEXTS: Mapping[str, str] = {
    idle.INPUT: "input data (the launching thread was in the data loader)",
    idle.SYNC: "sync return delay (GPU done, call not returned)",
    idle.ALLOC: "allocations and frees",
    idle.CALLS: "other CUDA calls",
    idle.HOST: "host code",
    idle.LAUNCH: "launch latency (call made, work not begun)",
    idle.UNATTRIBUTED: "unattributed",
}
IDLE_NAMES: Mapping[str, str] = {owner: text.split(" (")[0] for owner, text in IDLE_TEXTS.items()}
BLOCKED_TEXTS: Mapping[str, str] = {
    blocked.SYNC: "in synchronizations",
    blocked.COPY: "in asynchronous copies that waited",
    blocked.LAUNCH: "on a full launch queue",
    blocked.ALLOC: "in allocations and frees",
}

# Causes whose evidence no profiler's file can hold: the reason given for each of them, and the sentence given once.
NOT_IN_A_PROFILE = "not in a profile"
WHY_NOT_IN_A_PROFILE = (
    f"a profile does not show why a thread did not run; record with `{command('trace', as_root=True)}` for that"
)


def percent(ratio: float) -> str:
    """A ratio as a percentage: `0.3%`, `85%`."""
    return f"{100 * ratio:.1f}%" if abs(ratio) < 0.0995 else f"{100 * ratio:.0f}%"


def process_label(process: Process) -> str:
    """A process as texts name it: `python [4100] rank 3`."""
    rank = f" rank {process.rank}" if process.rank is not None else ""
    return f"{process.name} [{process.pid}]{rank}"
