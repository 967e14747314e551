"""Calls into the GPU driver waited for one of its locks in the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS, named
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Culprit, Finding, Fix, Link
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.store.records import Window
from ingero.units import SECOND_NS

CAUSE = "driver-lock"
MIN_SHARE = 0.05  # of the lost time; below, nobody asks
_MIN_HELD = 0.1  # of the waits that others ended, before one of them is named
_MOST_HOLDERS = 4
_UNINTERRUPTIBLE = THREAD_STATES.index("uninterruptible")
_THREAD = WAKER_KINDS.index("thread")
_WATCHERS = {  # by the names of their processes, as far as the kernel keeps these
    "nv-hostengine": "dcgm-exporter --collect-interval=30000  # in the exporter; in ms",
    "dcgm-exporter": "dcgm-exporter --collect-interval=30000  # in ms",
    "nvidia-smi": "nvidia-smi --loop=30",
    "nvidia_gpu_expo": "curl its /metrics less often: scrape_interval: 30s",
    "nvtop": "nvtop --delay 100  # in tenths of a second",
    "nvitop": "nvitop --interval 10",
    "gpustat": "gpustat --interval 30",
}


def find(case: Case) -> Iterator[Finding]:
    """Kernel-lock time inside calls that goes beyond the reference and that no reclaim explains."""
    if case.total(HOST_PARTS, ("uninterruptible",)) < MIN_SHARE * case.lost_ns:
        return
    now = _locked_ns(case, (case.window,))
    before = tuple(_whole_seconds(one) for one in case.baselines)
    usual = _locked_ns(case, before)
    scale = case.window.duration_ns / max(sum(one.duration_ns for one in before), 1)
    grown = {name: ns - usual[name] * scale for name, ns in now.items() if ns > usual[name] * scale}
    claims = case.take(HOST_PARTS, ("uninterruptible",), sum(grown.values())) if grown else {}
    claims = {bucket: ns for bucket, ns in claims.items() if ns > 0}
    if not claims:
        return
    lost, call = sum(claims.values()), max(grown, key=lambda name: grown[name])
    holders = _holders(case)
    others = holders or _others(case)
    is_own = bool(holders) and holders[0].pid in case.evidence.agent_pids
    beside = f"; {named(others)} used the GPU, too" if others else ""
    if holders:
        own = [f"ingero itself [{holders[0].pid}], as it asked NVML,"] if is_own else []
        rest = holders[len(own) :]
        beside = f", until {' and '.join([*own, *([named(rest)] if rest else [])])} released it"
    yield Finding(
        cause=CAUSE,
        resource="driver",
        root="host",
        summary=f"{case.who} lost {case.amount(lost)} in uninterruptible sleep inside GPU calls, most of it in {call}"
        f"{beside}",
        claims=claims,
        culprits=tuple(others),
        line=next((case.line_of(one) for one in case.op_changes if one.totals.name == call), None),
        chain=(
            Link(
                text=f"{call} waited for a lock of the driver",
                seen_ns=int(now[call]),
                expected_ns=int(usual[call] * scale),
                structure="uninterruptible sleep inside the call, without reclaim and without I/O"
                + (", and who woke it" if holders else ""),
                order="within the call, before the next launch",
            ),
        ),
        fixes=(
            *_less_often(holders, case.evidence.agent_pids),
            Fix(
                text="list the other users of the driver: monitoring, other jobs, MPS",
                command="sudo fuser -v /dev/nvidia*",
            ),
            Fix(text="keep the driver loaded and its state initialized", command="sudo nvidia-smi -pm 1"),
        ),
        evidence={"calls blocked": ", ".join(sorted(grown, key=lambda name: -grown[name])[:4])},
    )


def _whole_seconds(window: Window) -> Window:
    """Calls are counted by the second: without the seconds that reach out of it, where something remains."""
    if window.duration_ns <= 2 * SECOND_NS:
        return window
    return Window(begin_ns=window.begin_ns + SECOND_NS, end_ns=window.end_ns - SECOND_NS)


def _locked_ns(case: Case, windows: tuple[Window, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for window in windows:
        for one in case.evidence.reader.op_totals(window, process=case.process.process):
            if one.clocks is not None:
                found[one.name] += one.clocks.uninterruptible_ns
    return found


def _holders(case: Case) -> list[Culprit]:
    """Who ended the waits in the kernel inside GPU calls: whoever lets go of a lock wakes who waits for it.

    The recorder first, where it is one of them.
    """
    if not case.evidence.has_offcpu:
        return []
    rows = case.evidence.offcpu_in(case.window)
    is_locked = (rows["state"] == _UNINTERRUPTIBLE) & (rows["is_gpu_call"] != 0) & (rows["waker_kind"] == _THREAD)
    rows = rows[(rows["process"] == case.process.process) & is_locked & ~np.isin(rows["waker_pid"], [0, *case.family])]
    held: Counter[int] = Counter()
    names: dict[int, int] = {}
    for pid, name, ns in rows[["waker_pid", "waker_name", "duration_ns"]].tolist():
        held[pid] += ns
        names[pid] = name
    agents, least_ns = case.evidence.agent_pids, _MIN_HELD * held.total()
    found = [
        Culprit(pid=pid, name="ingero" if pid in agents else case.evidence.text(names[pid]), lost_ns=ns)
        for pid, ns in held.most_common(_MOST_HOLDERS)
        if ns >= least_ns
    ]
    return sorted(found, key=lambda one: (one.pid not in agents, -one.lost_ns))


def _less_often(holders: list[Culprit], agents: frozenset[int]) -> Iterator[Fix]:
    """For those that watch GPUs."""
    for one in holders:
        if one.pid in agents:
            yield Fix(
                text="this is caused by the recorder itself: it polls less often the longer an answer takes, at most "
                "1% of the time, and stops with the recording"
            )
        elif one.name in _WATCHERS:
            yield Fix(text=f"make {one.name} [{one.pid}] poll less often", command=_WATCHERS[one.name])


def _others(case: Case) -> list[Culprit]:
    """Processes that held memory on a GPU in the case, beside the job's own."""
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
    wants=("launch_times", "allocation_times"),
    shows="uninterruptible (D state) time inside GPU calls beyond the baseline, by call, and who woke the thread "
    "there, as the holder of a lock does: another job, a GPU monitor, the recorder itself",
    limits="which lock it was is not visible; a lock that passed through several holders is attributed to the last "
    "one; the first run in a container may hide other users of the GPU",
    find=find,
)
