"""The longest single wait for a CPU of a process and its workers: how long, on which CPU, and behind whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Culprit, Link
from ingero.events import THREAD_STATES
from ingero.store.records import Window
from ingero.units import format_ns

_LOOKED_AT_NS = 10_000_000_000  # of a time range, for single intervals off the CPU
_KEPT = [THREAD_STATES.index(name) for name in ("runq", "yielded")]


def first_of(case: Case) -> Window:
    """The part of a case whose intervals off the CPU are looked at one by one."""
    return Window(begin_ns=case.window.begin_ns, end_ns=min(case.window.end_ns, case.window.begin_ns + _LOOKED_AT_NS))


def longest_wait(case: Case, cpu_users: Sequence[Culprit]) -> Link | None:
    """Behind one of these, in the first ten seconds of the case; None where no interval of it is recorded."""
    if not case.evidence.has_offcpu:
        return None
    rows = case.evidence.offcpu_in(first_of(case))
    waited = np.where(rows["woken_ns"] > 0, rows["start_ns"] + rows["duration_ns"] - rows["woken_ns"], 0)
    waited = np.where(np.isin(rows["state"], _KEPT), rows["duration_ns"], waited)
    mine = np.isin(rows["pid"], list(case.family)) & np.isin(rows["culprit_pid"], [one.pid for one in cpu_users])
    if not (mine & (waited > 0)).any():
        return None
    worst = rows[int(np.argmax(np.where(mine, waited, 0)))]
    length = int(waited[mine].max())
    behind = next(one for one in cpu_users if one.pid == int(worst["culprit_pid"]))
    affected = case.evidence.text(int(worst["comm"])) or case.process.name
    return Link(
        text=f"longest single wait: {affected} [{int(worst['tid'])}] behind {behind.name} [{behind.pid}] on CPU "
        f"{int(worst['cpu'])}",
        seen_ns=length,
        structure="one off-CPU interval, and which process ran longest on that CPU meanwhile",
        order=f"it began {format_ns(max(int(worst['start_ns']) - case.window.begin_ns, 0))} into the incident",
    )
