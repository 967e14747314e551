"""The launching thread waited for another process that is not one of its own workers.

It requested an answer, wrote more than the other process read, ran a program and waited for its end, or was blocked in
the kernel until the other process released it.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, CodeLine, Culprit, Finding, Fix, Link
from ingero.diagnose.lost_time.no_demand import is_outside
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.process_roles import data_workers, is_waiting_for_answer
from ingero.diagnose.samples.stack_samples import (
    SLEEP,
    SampleGroup,
    at,
    group_samples,
    line_of_kernel_waits,
    matching_share,
    runs_program,
    sampled_time,
    spans_of,
)
from ingero.program import command

CAUSE = "ipc-bound"
_MIN_SHARE_OF_SAMPLES = 0.7  # of the sleeping samples, before they prove a wait for a program
# Kernel threads: they end waits for a disk, for memory, or for a device.
_KERNEL_THREADS = re.compile(
    r"k(swapd|compactd|hugepaged|softirqd|worker|thread)|jbd2/|xfs|btrfs-|dm[-_]|md\d|loop\d|txg_|z_|rcu|migration/|"
    r"irq/|nv|UVM|nfs|rpc|ceph|io_|kauditd|cpuhp"
)
_PROFILE = "profile {partner} meanwhile"


class _WaitKind(enum.Enum):
    """What kind of wait it was: (what it did, how the wait ended), both in words."""

    PROGRAM = ("waiting for {partner}, a program that it ran{times}", "until {partner}, which it had started, was done")
    KERNEL = ("in uninterruptible sleep until {partner} let it go on", "in the kernel, until {partner} let it go on")
    REQUEST = (
        "in a write or another file or socket call, until {partner} had taken it",
        "in a system call with which it asked for something, until {partner} woke it",
    )
    ANSWER = ("waiting for the answer of {partner}", "until {partner} woke it")


_FIXES = {
    _WaitKind.PROGRAM: Fix(text="run it less often, or in a thread of its own: the loop need not wait for it"),
    _WaitKind.KERNEL: Fix(
        text="if it is a scanner of files, leave the folders of the data out of what it scans; a lock of a file "
        "system goes with its holder"
    ),
    _WaitKind.REQUEST: Fix(
        text="write from a thread of its own, or less, so that the loop goes on while the reader is slow",
        command="logging.handlers.QueueHandler(queue)  # and a QueueListener",
    ),
    _WaitKind.ANSWER: Fix(text="or ask for the next answer before this step ends, so that both work side by side"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _IpcWait:
    """Waits of one kind. partners: by pid, longest first. runs: how often the program was run."""

    kind: _WaitKind
    waits: Sequence[PathSegment]
    claims: dict[Bucket, int]
    partners: Sequence[tuple[int, str, int]]
    line: CodeLine | None
    samples: int
    runs: int = 0


def explain(case: Case) -> Iterator[Finding]:
    """Sleep of the process's critical-path threads, ended by a process outside its family or a program that it ran."""
    if (program_wait := _program_wait(case)) is not None:
        yield _finding(case, program_wait)
    ipc_waits = [wait for wait in case.waits if _is_ipc(case, wait)]
    for kind, is_kind in (
        (_WaitKind.KERNEL, _is_held_in_kernel),
        (_WaitKind.REQUEST, _is_request),
        (_WaitKind.ANSWER, lambda wait: not (_is_held_in_kernel(wait) or _is_request(wait))),
    ):
        waits = [wait for wait in ipc_waits if is_kind(wait)]
        if kind is _WaitKind.KERNEL and _is_ended_by_kernel(case, waits):
            continue
        if waits and (kind is not _WaitKind.ANSWER or is_waiting_for_answer(case.evidence, case.process, waits)):
            is_wanted = lambda wait, is_kind=is_kind: _is_ipc(case, wait) and is_kind(wait)  # noqa: E731
            wait_found = _ipc_wait(case, kind, waits, is_wanted)
            if wait_found.claims:
                yield _finding(case, wait_found)


def _is_ipc(case: Case, segment: PathSegment) -> bool:
    return segment.pid == case.process.pid and segment.waker_kind == "thread" and is_outside(segment, case.family)


def _is_held_in_kernel(segment: PathSegment) -> bool:
    """Whether a wait was uninterruptible and outside GPU calls, where the driver would be the reason."""
    return segment.state == "uninterruptible" and not segment.is_gpu_call


def _is_ended_by_kernel(case: Case, waits: Sequence[PathSegment]) -> bool:
    """Whether kernel threads ended most of these waits."""
    names = ((case.evidence.waker_names.get(wait.waker_pid, ""), wait.duration_ns) for wait in waits)
    by_kernel = sum(ns for name, ns in names if _KERNEL_THREADS.match(name))
    return 2 * by_kernel >= sum(wait.duration_ns for wait in waits)


def _is_request(segment: PathSegment) -> bool:
    return segment.state == "sleep" and segment.is_own_request


def _ipc_wait(
    case: Case, kind: _WaitKind, waits: Sequence[PathSegment], is_mine: Callable[[PathSegment], bool]
) -> _IpcWait:
    claims = PathWaits(case).claim(is_mine) if kind is _WaitKind.KERNEL else case.claimable_on_path(is_mine)
    by_pid: Counter[int] = Counter()
    for wait in waits:
        by_pid[wait.waker_pid] += wait.duration_ns
    asleep = sampled_time(group_samples(case.evidence, case.process.process, (case.window,), spans_of(waits), SLEEP))
    line = asleep.line or (
        line_of_kernel_waits(case.evidence, case.process.process, (case.window,), waits) if claims else None
    )
    return _IpcWait(
        kind=kind,
        waits=waits,
        claims=claims,
        partners=[(pid, case.evidence.waker_names.get(pid, ""), ns) for pid, ns in by_pid.most_common()],
        line=line,
        samples=asleep.count,
    )


def _program_wait(case: Case) -> _IpcWait | None:
    """Waits for a program that the process ran: children that are not its data workers."""
    workers = {worker.pid for worker in data_workers(case.evidence, case.process)}

    def is_child(segment: PathSegment) -> bool:
        is_of_family = segment.pid != case.process.pid and segment.pid in case.family and segment.pid not in workers
        return is_of_family and segment.state != "stopped"

    waits = [wait for wait in case.waits if is_child(wait)]
    asleep = _asleep_meanwhile(case, waits)
    if matching_share(asleep, runs_program) < _MIN_SHARE_OF_SAMPLES:
        return None
    claims = case.claimable_on_path(is_child)
    by_name: Counter[str] = Counter()
    pids: dict[str, dict[int, None]] = {}
    for wait in waits:
        name = case.thread_name(wait)
        by_name[name] += wait.duration_ns
        pids.setdefault(name, {})[wait.pid] = None
    if not claims:
        return None
    where = sampled_time(asleep)
    return _IpcWait(
        kind=_WaitKind.PROGRAM,
        waits=waits,
        claims=claims,
        partners=[(next(iter(pids[name])), name, ns) for name, ns in by_name.most_common()],
        line=where.line,
        samples=where.count,
        runs=len(pids[by_name.most_common(1)[0][0]]),
    )


def _asleep_meanwhile(case: Case, waits: Sequence[PathSegment]) -> list[SampleGroup]:
    """Where the process's own critical-path threads slept during these path segments."""
    if not waits:
        return []
    threads = {int(tid) for name in ("prev_sync_tid", "first_launch_tid") for tid in set(case.sync_intervals[name])}
    wait_spans = [(wait.begin_ns, wait.end_ns) for wait in waits]
    spans = dict.fromkeys(threads, wait_spans)
    return group_samples(case.evidence, case.process.process, (case.window,), spans, SLEEP)


def _finding(case: Case, wait: _IpcWait) -> Finding:
    lost, total = sum(wait.claims.values()), sum(ns for _, _, ns in wait.partners)
    culprits = tuple(Culprit(pid=pid, name=name, lost_ns=lost * ns // total) for pid, name, ns in wait.partners)
    partner = f"{culprits[0].name or 'pid'} [{culprits[0].pid}]"
    times = f" {wait.runs} times" if wait.runs > 1 else ""
    doing, until = (text.format(partner=partner, times=times) for text in wait.kind.value)
    profile = Fix(
        text=_PROFILE.format(partner=partner), command=command("trace", "--pid", str(culprits[0].pid), as_root=True)
    )
    is_program = wait.kind is _WaitKind.PROGRAM
    return Finding(
        cause=CAUSE,
        resource="ipc",
        root=str(culprits[0].pid),
        summary=f"{case.who} lost {case.amount(lost)} {doing}{at(wait.line)}",
        claims=wait.claims,
        culprits=culprits,
        line=wait.line,
        chain=(
            Link(
                text=f"the launching thread slept {until}",
                seen_ns=lost,
                structure="what the program did while it waited, and its stack"
                if is_program
                else "who woke it, a process outside its own tree",
                order="the wait ended with the answer, before the next launch",
            ),
        ),
        fixes=(_FIXES[wait.kind],) if is_program else (profile, _FIXES[wait.kind]),
        evidence={"partners": len(wait.partners), "samples": wait.samples},
    )


RULE = Rule(
    cause=CAUSE,
    title="another process answered late",
    order=37,
    needs=("sync_intervals", "offcpu"),
    shows="sleeps of the launching thread that another process ended, with that process and the line: the answer to "
    "what it had asked for, a write (or an open, a close, a send) that the other took late, the end of a program that "
    "it ran, or a wait in the kernel outside GPU calls, as a scanner of files imposes",
    limits="an answer only where the process is seen to train (data workers of its own) or to ask (a client's frames): "
    "else a wait for another process counts as no work requested; a program only where its subprocess or "
    "multiprocessing frames are seen",
    explain=explain,
)
