"""The longest single wait for a CPU of a process or its worker: how long, on which CPU, and which process ran there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Culprit, Link
from ingero.events import THREAD_STATES
from ingero.store.records import Window
from ingero.units import format_ns

_WORST_PART_NS = 10_000_000_000  # bounds how many off-CPU intervals are read one by one
_RUNNABLE_STATES = [THREAD_STATES.index(name) for name in ("runq", "yielded")]


def worst_part(case: Case) -> Window:
    """The ten seconds of a case in which most time was lost; only these off-CPU intervals are read one by one."""
    latest_ns = case.window.end_ns - _WORST_PART_NS
    if latest_ns <= case.window.begin_ns:
        return case.window
    ended = np.argsort(case.sync_intervals["sync_end_ns"], kind="stable")
    begins_ns, ends_ns = case.sync_intervals["prev_sync_end_ns"][ended], case.sync_intervals["sync_end_ns"][ended]
    lost_until = np.concatenate([[0.0], np.cumsum(np.maximum(case.excess_ns[ended], 0.0))])
    lost_ns = lost_until[np.searchsorted(ends_ns, begins_ns + _WORST_PART_NS, side="right")] - lost_until[:-1]
    worst_ns = int(begins_ns[np.argmax(lost_ns)]) if len(lost_ns) else case.window.begin_ns
    begin_ns = min(max(worst_ns, case.window.begin_ns), latest_ns)
    return Window(begin_ns=begin_ns, end_ns=begin_ns + _WORST_PART_NS)


def longest_wait(case: Case, cpu_users: Sequence[Culprit]) -> Link | None:
    """The longest wait behind one of these culprits in the worst ten seconds; None where no interval was recorded."""
    if not case.evidence.has_offcpu:
        return None
    rows = case.evidence.offcpu_in(worst_part(case))
    waited = np.where(rows["woken_ns"] > 0, rows["start_ns"] + rows["duration_ns"] - rows["woken_ns"], 0)
    waited = np.where(np.isin(rows["state"], _RUNNABLE_STATES), rows["duration_ns"], waited)
    is_behind_culprit = np.isin(rows["pid"], list(case.family)) & np.isin(
        rows["culprit_pid"], [user.pid for user in cpu_users]
    )
    if not (is_behind_culprit & (waited > 0)).any():
        return None
    worst = rows[int(np.argmax(np.where(is_behind_culprit, waited, 0)))]
    length = int(waited[is_behind_culprit].max())
    behind = next(user for user in cpu_users if user.pid == int(worst["culprit_pid"]))
    affected = case.evidence.text(int(worst["comm"])) or case.process.name
    return Link(
        text=f"longest single wait: {affected} [{int(worst['tid'])}] behind {behind.name} [{behind.pid}] on CPU "
        f"{int(worst['cpu'])}",
        seen_ns=length,
        structure="one off-CPU interval, and which process ran longest on that CPU meanwhile",
        order=f"it began {format_ns(max(int(worst['start_ns']) - case.window.begin_ns, 0))} into the incident",
    )
