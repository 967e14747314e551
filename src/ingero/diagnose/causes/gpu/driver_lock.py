"""Calls into the GPU driver waited for one of its locks in the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS, culprit_names
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Culprit, Finding, Fix, Link
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.store.records import Window
from ingero.units import SECOND_NS

CAUSE = "driver-lock"
MIN_SHARE = 0.05  # of the lost time; below it the cause does not matter
_MIN_HOLDER_SHARE = 0.1  # of the waits ended by other processes, before one of them is named
_MAX_HOLDERS = 4  # processes named
_UNINTERRUPTIBLE_STATE = THREAD_STATES.index("uninterruptible")
_THREAD_WAKER = WAKER_KINDS.index("thread")
_MONITOR_COMMANDS = {  # by comm, which the kernel truncates to 15 characters
    "nv-hostengine": "dcgm-exporter --collect-interval=30000  # in the exporter; in ms",
    "dcgm-exporter": "dcgm-exporter --collect-interval=30000  # in ms",
    "nvidia-smi": "nvidia-smi --loop=30",
    "nvidia_gpu_expo": "curl its /metrics less often: scrape_interval: 30s",
    "nvtop": "nvtop --delay 100  # in tenths of a second",
    "nvitop": "nvitop --interval 10",
    "gpustat": "gpustat --interval 30",
}


def explain(case: Case) -> Iterator[Finding]:
    """Uninterruptible sleep inside GPU calls beyond the baseline, not explained by reclaim."""
    if case.total(HOST_PARTS, ("uninterruptible",)) < MIN_SHARE * case.lost_ns:
        return
    now = _uninterruptible_ns(case, (case.window,))
    before = tuple(_whole_seconds(window) for window in case.baseline_windows)
    baseline = _uninterruptible_ns(case, before)
    scale = case.window.duration_ns / max(sum(window.duration_ns for window in before), 1)
    grown = {name: ns - baseline[name] * scale for name, ns in now.items() if ns > baseline[name] * scale}
    claims = case.claimable(HOST_PARTS, ("uninterruptible",), sum(grown.values())) if grown else {}
    claims = {bucket: ns for bucket, ns in claims.items() if ns > 0}
    if not claims:
        return
    lost, worst_call = sum(claims.values()), max(grown, key=lambda name: grown[name])
    holders = _holders(case)
    others = holders or _other_gpu_users(case)
    is_own = bool(holders) and holders[0].pid in case.evidence.agent_pids
    others_text = f"; {culprit_names(others)} used the GPU, too" if others else ""
    if holders:
        agent_texts = [f"ingero itself [{holders[0].pid}], as it asked NVML,"] if is_own else []
        other_holders = holders[len(agent_texts) :]
        names = [*agent_texts, *([culprit_names(other_holders)] if other_holders else [])]
        others_text = f", until {' and '.join(names)} released it"
    yield Finding(
        cause=CAUSE,
        resource="driver",
        root="host",
        summary=f"{case.who} lost {case.amount(lost)} in uninterruptible sleep inside GPU calls, most of it in "
        f"{worst_call}"
        f"{others_text}",
        claims=claims,
        culprits=tuple(others),
        line=next((case.line_of(change) for change in case.op_changes if change.totals.name == worst_call), None),
        chain=(
            Link(
                text=f"{worst_call} waited for a lock of the driver",
                seen_ns=int(now[worst_call]),
                expected_ns=int(baseline[worst_call] * scale),
                structure="uninterruptible sleep inside the call, without reclaim and without I/O"
                + (", and who woke it" if holders else ""),
                order="within the call, before the next launch",
            ),
        ),
        fixes=(
            *_poll_less_fixes(holders, case.evidence.agent_pids),
            Fix(
                text="list the other users of the driver: monitoring, other jobs, MPS",
                command="sudo fuser -v /dev/nvidia*",
            ),
            Fix(text="keep the driver loaded and its state initialized", command="sudo nvidia-smi -pm 1"),
        ),
        evidence={"calls blocked": ", ".join(sorted(grown, key=lambda name: -grown[name])[:4])},
    )


def _whole_seconds(window: Window) -> Window:
    """The window without its partial seconds, where something remains: calls are counted per second."""
    if window.duration_ns <= 2 * SECOND_NS:
        return window
    return Window(begin_ns=window.begin_ns + SECOND_NS, end_ns=window.end_ns - SECOND_NS)


def _uninterruptible_ns(case: Case, windows: tuple[Window, ...]) -> Counter[str]:
    ns_by_call: Counter[str] = Counter()
    for window in windows:
        for totals in case.evidence.reader.op_totals(window, process=case.process.process):
            if totals.clocks is not None:
                ns_by_call[totals.name] += totals.clocks.uninterruptible_ns
    return ns_by_call


def _holders(case: Case) -> list[Culprit]:
    """Processes that ended the waits in the kernel inside GPU calls, as the holder of a lock does; ingero first."""
    if not case.evidence.has_offcpu:
        return []
    rows = case.evidence.offcpu_in(case.window)
    is_locked = (
        (rows["state"] == _UNINTERRUPTIBLE_STATE) & (rows["is_gpu_call"] != 0) & (rows["waker_kind"] == _THREAD_WAKER)
    )
    rows = rows[(rows["process"] == case.process.process) & is_locked & ~np.isin(rows["waker_pid"], [0, *case.family])]
    held_ns: Counter[int] = Counter()
    names: dict[int, int] = {}
    for pid, name, ns in rows[["waker_pid", "waker_name", "duration_ns"]].tolist():
        held_ns[pid] += ns
        names[pid] = name
    agents, least_ns = case.evidence.agent_pids, _MIN_HOLDER_SHARE * held_ns.total()
    holders = [
        Culprit(pid=pid, name="ingero" if pid in agents else case.evidence.text(names[pid]), lost_ns=ns)
        for pid, ns in held_ns.most_common(_MAX_HOLDERS)
        if ns >= least_ns
    ]
    return sorted(holders, key=lambda holder: (holder.pid not in agents, -holder.lost_ns))


def _poll_less_fixes(holders: list[Culprit], agents: frozenset[int]) -> Iterator[Fix]:
    """Fixes for holders that monitor GPUs."""
    for holder in holders:
        if holder.pid in agents:
            yield Fix(
                text="this is caused by the recorder itself: it polls less often the longer an answer takes, at most "
                "1% of the time, and stops with the recording"
            )
        elif holder.name in _MONITOR_COMMANDS:
            yield Fix(text=f"make {holder.name} [{holder.pid}] poll less often", command=_MONITOR_COMMANDS[holder.name])


def _other_gpu_users(case: Case) -> list[Culprit]:
    """Processes outside the job that held memory on a GPU in the case."""
    window = case.window
    seen: Counter[int] = Counter()
    for sample in case.evidence.gpu_samples:
        if window.begin_ns <= sample.time_ns < window.end_ns:
            seen.update(pid for pid, _ in sample.processes if pid not in case.job)
    return [Culprit(pid=pid, name=case.evidence.name_of_pid(pid) or "pid") for pid, _ in seen.most_common(4)]


RULE = Rule(
    cause=CAUSE,
    title="blocked on locks of the GPU driver",
    order=45,
    needs=("sync_intervals", "op_stats", "thread_state_seconds"),
    improves_with=("launch_times", "allocation_times"),
    shows="uninterruptible (D state) time inside GPU calls beyond the baseline, by call, and who woke the thread "
    "there, as the holder of a lock does: another job, a GPU monitor, the recorder itself",
    limits="which lock it was is not visible; a lock that passed through several holders is attributed to the last "
    "one; the first run in a container may hide other users of the GPU",
    explain=explain,
)
