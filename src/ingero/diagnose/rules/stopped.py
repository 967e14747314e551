"""The process was stopped by a signal or a debugger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from ingero.diagnose.cases import Case
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.halts import owners
from ingero.diagnose.model import Bucket, Culprit, Finding, Fix, Link
from ingero.diagnose.places import at
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import HOST_PARTS
from ingero.diagnose.waits import Segment
from ingero.ops import HostOp, Source
from ingero.store.records import HaltLevel, Process, Window
from ingero.units import SECOND_NS, format_ns

CAUSE = "stopped"
MIN_STOPPED_NS = 900_000_000  # a shorter stop shows in the lost time, or costs nothing


def find(case: Case) -> Iterator[Finding]:
    """Time of the stopped clock on the critical path, with the sender of the signal: of the process, or of a worker."""
    claims = case.take(HOST_PARTS, ("stopped",))
    if claims:
        yield _finding(case.evidence, case.process, case.window, sum(claims.values()), claims)
    for pid in sorted({one.pid for one in case.waits if one.state == "stopped"}):
        worker = case.evidence.process_at(pid)
        claims = case.take_path(partial(_is_stop_of, pid))
        if worker and claims:
            found = _finding(case.evidence, worker, case.window, sum(claims.values()), claims)
            line = case.evidence.sampled_line(case.window, worker.process, states=("stopped",))
            yield replace(
                found,
                summary=f"{found.summary}{at(line)}; {case.who} waited for it",
                line=line,
                process=case.process.process,
                waits_for=(pid,),
            )


def _is_stop_of(pid: int, one: Segment) -> bool:
    return one.state == "stopped" and one.pid == pid


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Processes with a GPU that are stopped, also those that never went on."""
    for number in evidence.gpu_streams.keys() | evidence.waiting.keys():
        process = evidence.processes.get(number)
        for window in evidence.stopped_seconds(number) if process else ():
            if process and window.duration_ns > MIN_STOPPED_NS:
                yield _finding(evidence, process, window, window.duration_ns, {})


def _finding(
    evidence: Evidence, process: Process, window: Window, lost_ns: int, claims: Mapping[Bucket, int]
) -> Finding:
    since = Window(begin_ns=window.begin_ns - SECOND_NS, end_ns=window.end_ns)  # the signal comes first
    events = evidence.events(since, (Source.HOST,), process.process)
    signals = events[events["op"] == int(HostOp.STOP_SIGNAL)]
    senders = {int(one["arg1"]): evidence.name_of_pid(int(one["arg1"])) for one in signals}
    senders |= _tracers(evidence, process, since)
    by = " by " + " and ".join(f"{name or 'pid'} [{pid}]" for pid, name in senders.items()) if senders else ""
    return Finding(
        cause=CAUSE,
        resource="signal",
        root=str(process.pid),
        process=process.process,
        window=window,
        summary=f"{process.name} [{process.pid}] was stopped for {format_ns(lost_ns)}{by}",
        claims=claims,
        culprits=tuple(Culprit(pid=pid, name=name, lost_ns=lost_ns) for pid, name in senders.items()),
        chain=(
            Link(
                text=f"the process was stopped{by}",
                seen_ns=lost_ns,
                expected_ns=0,
                structure="stopped time of its threads",
                order="from the signal that stops to the one that continues",
            ),
        ),
        fixes=(Fix(text="resume it", command=f"kill -CONT {process.pid}"),),
        evidence={"signals": len(signals)},
    )


def _tracers(evidence: Evidence, process: Process, window: Window) -> dict[int, str]:
    """The debuggers that were seen to hold it."""
    rows = evidence.reader.halts(window) if evidence.reader.is_recorded("raw_halts") else []
    held = (row for row in rows if row.halted == process.process and row.level == HaltLevel.STOPPED)
    return {one.pid: f"{one.name} (a debugger)" for row in held for one in owners(row)}


RULE = Rule(
    cause=CAUSE,
    title="stopped by a signal or a debugger",
    order=10,
    needs=("sync_intervals", "thread_state_seconds"),
    shows="stopped time of the process or of a worker that it waits for, and the signal with its sender",
    limits="a debugger is named where it has held the process for more than a second or two",
    find=find,
    watch=watch,
)
