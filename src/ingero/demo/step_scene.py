"""Writes steps found by repetition in a scripted recording: programs that never sync the stream that paces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun
from ingero.events import STATES, SyncIntervalFlag
from ingero.ops import BY_NAME
from ingero.store.writing import tables
from ingero.units import SECOND_NS

_MS_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedStep:
    """One step in ms: the host's own time, and the time its thread was blocked for the GPU, by kind of call.

    host: thread-state time within host_ms by name of STATES; the rest is `run`. The blocked time is `sleep`.
    """

    host_ms: float = 6.0
    host: Mapping[str, float] = field(default_factory=dict)
    blocked: Mapping[str, float] = field(default_factory=dict)
    launches: int = 153
    syncs: int = 0
    step_type: str = ""  # "": by the launches
    noise: float = 0.004  # of the length, one sigma
    flags: int = 0  # SyncIntervalFlag


def add_steps(run: ScriptedRun, actor: Actor, begin_s: float, end_s: float, step: RepeatedStep) -> list[float]:
    """Writes steps from begin_s to end_s; returns the start of each in seconds."""
    blocked_ms = sum(step.blocked.values())
    length_ns = int((step.host_ms + blocked_ms) * _MS_NS)
    count = max(1, round((end_s - begin_s) * SECOND_NS / length_ns))
    random = np.random.default_rng(count)
    noise = (step.noise * length_ns * random.standard_normal(count)).astype(np.int64)
    noise = np.maximum(noise, -int(step.host_ms * _MS_NS) // 2)
    ends = run.at(begin_s) + np.cumsum(length_ns + noise)
    starts = np.append(run.at(begin_s), ends[:-1])
    clocks: dict[str, tables.Column] = {f"blocked_{clock}_ns": 0 for clock in STATES}
    clocks["blocked_sleep_ns"] = sum(int(ms * _MS_NS) for ms in step.blocked.values())
    clocks |= {f"host_{clock}_ns": int(step.host.get(clock, 0.0) * _MS_NS) for clock in STATES}
    named = sum(int(ms * _MS_NS) for ms in (*step.host.values(), *step.blocked.values()))
    clocks["host_run_ns"] = ends - starts - named
    marker = BY_NAME["cudaMemcpyAsync"]
    run.append(
        tables.STEPS,
        count,
        process=actor.number,
        pid=actor.pid,
        tid=actor.pid,
        device=0,
        start_ns=starts,
        end_ns=ends,
        how=run.text("repetition"),
        step_type=run.text(step.step_type or f"{step.launches} launches, 1 copies, from cudaMemcpyAsync"),
        source=int(marker.source),
        op=marker.code,
        launches=step.launches,
        syncs=step.syncs,
        copies=1,
        flags=int(SyncIntervalFlag.STEP) | step.flags,
        **{f"blocked_{kind}_ns": int(ms * _MS_NS) for kind, ms in step.blocked.items()},
        **clocks,
    )
    return ((starts - BEGIN_NS) / SECOND_NS).tolist()  # type: ignore[no-any-return]
