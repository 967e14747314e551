"""The process was stopped by a signal, a debugger or a profiler, or frozen with its cgroup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS
from ingero.diagnose.causes.host_code.halted_processes import wait_owners
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Bucket, Culprit, Finding, Fix, Link
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.stack_samples import at
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.foreign_text import shell_word
from ingero.ops import HostOp, Source
from ingero.store.records import HaltLevel, Process, Window
from ingero.units import SECOND_NS, format_ns

CAUSE = "stopped"
MIN_STOPPED_NS = 900_000_000  # a shorter stop shows in the lost time, or costs nothing
# stops ended by one process: more is a profiler that samples, not somebody's command to continue
_MIN_SAMPLER_STOPS = 20
_MIN_SHARE_OF_STOPS = 0.8  # of the stops
_STOPPED_STATE = THREAD_STATES.index("stopped")
_THREAD_WAKER = WAKER_KINDS.index("thread")


def explain(case: Case) -> Iterator[Finding]:
    """Stopped time on the critical path, of the process or of a worker, with the sender of the signal."""
    claims = case.claimable(HOST_PARTS, ("stopped",))
    if claims:
        yield _finding(case.evidence, case.process, case.window, sum(claims.values()), claims)
    for pid in sorted({wait.pid for wait in case.waits if wait.state == "stopped"}):
        worker = case.evidence.process_at(pid)
        claims = case.claimable_on_path(partial(_is_stop_of, pid))
        if worker and claims:
            finding = _finding(case.evidence, worker, case.window, sum(claims.values()), claims)
            line = case.evidence.sampled_line(case.window, worker.process, states=("stopped",))
            yield replace(
                finding,
                summary=f"{finding.summary}{at(line)}; {case.who} waited for it",
                line=line,
                process=case.process.process,
                waited_for_pids=(pid,),
            )


def _is_stop_of(pid: int, segment: PathSegment) -> bool:
    return segment.state == "stopped" and segment.pid == pid


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes with a GPU that were stopped, including those that have not continued."""
    for number in evidence.gpu_streams.keys() | evidence.longest_in_flight.keys():
        process = evidence.processes.get(number)
        for window in evidence.stopped_seconds(number) if process else ():
            if process and window.duration_ns > MIN_STOPPED_NS:
                yield _finding(evidence, process, window, window.duration_ns, {})


def _finding(
    evidence: Evidence, process: Process, window: Window, lost_ns: int, claims: Mapping[Bucket, int]
) -> Finding:
    searched = Window(begin_ns=window.begin_ns - SECOND_NS, end_ns=window.end_ns)  # the signal comes first
    events = evidence.events(searched, (Source.HOST,), process.process)
    signals = events[events["op"] == int(HostOp.STOP_SIGNAL)]
    senders = {int(signal["arg1"]): evidence.name_of_pid(int(signal["arg1"])) for signal in signals}
    senders |= _tracers(evidence, process, searched)
    by_text = " by " + " and ".join(f"{name or 'pid'} [{pid}]" for pid, name in senders.items()) if senders else ""
    frozen = "" if senders else _frozen_by(evidence, process, searched)
    sampler = _sampler(evidence, process, searched) if not (senders or frozen) else None
    if frozen:
        by_text = f" with its cgroup ({frozen})"
    if sampler:
        senders = {sampler.pid: sampler.name}
        by_text = f", {sampler.switches} times, each until {sampler.name or 'pid'} [{sampler.pid}] let it go on"
    verb = "frozen" if frozen else "stopped"
    return Finding(
        cause=CAUSE,
        resource="freezer" if frozen else "ptrace" if sampler else "signal",
        root=str(process.pid),
        process=process.process,
        window=window,
        summary=f"{process.name} [{process.pid}] was {verb} for {format_ns(lost_ns)}{by_text}",
        claims=claims,
        culprits=tuple(Culprit(pid=pid, name=name, lost_ns=lost_ns) for pid, name in senders.items()),
        chain=(
            Link(
                text=f"the process was {verb}{by_text}",
                seen_ns=lost_ns,
                expected_ns=0,
                structure="stopped time of its threads",
                order=_TIMING_BY_RESOURCE["freezer" if frozen else "ptrace" if sampler else "signal"],
            ),
        ),
        fixes=_fixes(process, frozen, sampler, is_known=bool(senders)),
        evidence={"signals": len(signals)},
    )


_TIMING_BY_RESOURCE = {
    "signal": "from the signal that stops to the one that continues",
    "freezer": "from the freeze of the group until it was thawed",
    "ptrace": "from each stop until the process that had stopped it let it go on",
}


def _fixes(process: Process, frozen: str, sampler: Culprit | None, *, is_known: bool) -> tuple[Fix, ...]:
    if frozen:
        thawed = "0" if frozen.endswith("cgroup.freeze") else "THAWED"
        command = f"echo {thawed} | sudo tee {shell_word(frozen)}"
        return (Fix(text="thaw it: docker unpause, systemctl thaw, or", command=command),)
    if sampler:
        text = "profile without stopping it, or less often: each sample holds all of its threads"
        return (Fix(text=text, command=f"py-spy record --nonblocking --rate 10 --pid {process.pid}"),)
    resume = Fix(text="resume it", command=f"kill -CONT {process.pid}")
    return (resume,) if is_known else (resume, Fix(text="or thaw it, if it was frozen: docker unpause, systemctl thaw"))


def _frozen_by(evidence: Evidence, process: Process, window: Window) -> str:
    """The cgroup file by which the process was frozen; "" if it was not."""
    rows = evidence.reader.halts(window) if evidence.reader.is_recorded("raw_halts") else []
    frozen = (row.object for row in rows if row.halted == process.process and row.level == HaltLevel.STOPPED)
    return next((file for file in frozen if file), "")


def _sampler(evidence: Evidence, process: Process, window: Window) -> Culprit | None:
    """The process that ended most of many stops, as a stopping profiler does for each sample, with their number."""
    if not evidence.has_offcpu:
        return None
    rows = evidence.offcpu_in(window)
    is_mine = (rows["process"] == process.process) & (rows["tid"] == process.pid) & (rows["state"] == _STOPPED_STATE)
    rows = rows[is_mine]
    ended = rows[
        (rows["waker_kind"] == _THREAD_WAKER) & ~np.isin(rows["waker_pid"], [0, *evidence.family(process.process)])
    ]
    most = Counter(ended["waker_pid"].tolist()).most_common(1)
    if not most or most[0][1] < max(_MIN_SAMPLER_STOPS, _MIN_SHARE_OF_STOPS * len(rows)):
        return None
    pid, count = most[0]
    mine_ns = int(ended["duration_ns"][ended["waker_pid"] == pid].sum())
    return Culprit(pid=pid, name=evidence.waker_names.get(pid, ""), lost_ns=mine_ns, switches=count)


def _tracers(evidence: Evidence, process: Process, window: Window) -> dict[int, str]:
    """Debuggers that were seen attached to the process, by pid."""
    rows = evidence.reader.halts(window) if evidence.reader.is_recorded("raw_halts") else []
    held = (row for row in rows if row.halted == process.process and row.level == HaltLevel.STOPPED)
    return {owner.pid: f"{owner.name} (a debugger)" for row in held for owner in wait_owners(row)}


RULE = Rule(
    cause=CAUSE,
    title="stopped by a signal, a debugger or its frozen cgroup",
    order=10,
    needs=("sync_intervals", "thread_state_seconds"),
    shows="stopped time of the process or of a worker that it waits for, and the signal with its sender; the frozen "
    "cgroup; a profiler that stops it for each sample",
    limits="a debugger and a frozen cgroup are named where they have held the process for more than a second or two",
    explain=explain,
    find_events=find_events,
)
