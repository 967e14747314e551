"""The launching thread waited for another process that is not one of its own workers.

It requested an answer, also one that never came, wrote more than the other process read, ran a program and waited for
its end, or was blocked in the kernel until the other process released it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.causes.host_code.child_waits import child_wait
from ingero.diagnose.causes.host_code.ipc_waits import IpcWait, WaitKind
from ingero.diagnose.causes.host_code.rank_waits import asked_by_others, late_rank
from ingero.diagnose.causes.host_code.spin_waits import spin_wait
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Culprit, Finding, Fix, Link
from ingero.diagnose.lost_time.no_demand import is_outside
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.process_roles import is_waiting_for_answer
from ingero.diagnose.samples.stack_samples import (
    SLEEP,
    at,
    gets_an_item,
    group_samples,
    line_of_kernel_waits,
    matching_share,
    sampled_time,
    spans_of,
    takes_items,
)
from ingero.program import command

CAUSE = "ipc-bound"
_MIN_SHARE_OF_SAMPLES = 0.7  # of the sleeping samples, before they prove a wait for a program
# Kernel threads: they end waits for a disk, for memory, or for a device.
_KERNEL_THREADS = re.compile(
    r"k(swapd|compactd|hugepaged|softirqd|worker|thread)|jbd2/|xfs|btrfs-|dm[-_]|md\d|loop\d|txg_|z_|rcu|migration/|"
    r"irq/|nv|UVM|nfs|rpc|ceph|io_|kauditd|cpuhp|napi/"
)
_PROFILE = "profile {partner} meanwhile"


_FIXES = {
    WaitKind.PROGRAM: Fix(text="run it less often, or in a thread of its own: the loop need not wait for it"),
    WaitKind.KERNEL: Fix(
        text="if it is a scanner of files, leave the folders of the data out of what it scans; a lock of a file "
        "system goes with its holder"
    ),
    WaitKind.REQUEST: Fix(
        text="write from a thread of its own, or less, so that the loop goes on while the reader is slow",
        command="logging.handlers.QueueHandler(queue)  # and a QueueListener",
    ),
    WaitKind.READ: Fix(text="ask without blocking the event loop", command="await asyncio.to_thread(query, ...)"),
    WaitKind.LOCK: Fix(text="hold the lock for less, or give each job a file of its own (a cache, a download)"),
    WaitKind.ANSWER: Fix(text="or ask for the next answer before this step ends, so that both work side by side"),
    WaitKind.BARRIER: Fix(text="see what that rank did meanwhile: its own incident, or its time breakdown"),
    WaitKind.SPIN: Fix(text="make its part of a step shorter, or let it prepare the next step meanwhile"),
    WaitKind.TIMEOUT: Fix(
        text="ask from a thread of its own, or with a shorter timeout: the loop need not wait for it"
    ),
}
_STRUCTURES = {
    WaitKind.PROGRAM: "what the program did while it waited, and its stack",
    WaitKind.BARRIER: "who ended its waits ends those of other ranks, right after the end of that rank's GPU work",
    WaitKind.SPIN: "its samples in calls that poll, and those of its parent meanwhile",
    WaitKind.TIMEOUT: "only a timer ended it, in a call that reads or polls",
}
_OTHER_END = "the other end of its connection"


def explain(case: Case) -> Iterator[Finding]:
    """Sleep of the process's critical-path threads, ended by a process outside its family, a program that it ran, or
    another child.
    """
    if (of_child := child_wait(case)) is not None:
        yield _finding(case, of_child)
    if (spin := spin_wait(case)) is not None:
        yield _finding(case, spin)
    for kind in WaitKind:
        is_wanted = partial(_is_of_kind, case, kind)
        waits = [wait for wait in case.waits if is_wanted(wait)]
        if waits and _is_proven(case, kind, waits):
            wait_found = _ipc_wait(case, kind, waits, is_wanted)
            if kind is WaitKind.ANSWER:
                wait_found = _of_ranks(case, wait_found, waits)
            if wait_found.claims:
                yield _finding(case, wait_found)


def _is_of_kind(case: Case, kind: WaitKind, segment: PathSegment) -> bool:
    return _kind_of(case, segment) is kind


def _kind_of(case: Case, segment: PathSegment) -> WaitKind | None:
    """The kind of a wait of the process's own threads; None for waits that are none for another process."""
    is_own = segment.pid == case.process.pid
    if is_own and segment.depth == 0 and segment.is_receiving and segment.waker_kind == "timer":
        return WaitKind.TIMEOUT
    is_taken = segment.is_own_request and segment.waker_kind == "thread" and segment.waker_pid != case.process.pid
    if not is_own or not (is_taken or is_outside(segment, case.family)):
        return None
    if _is_held_in_kernel(segment):
        return WaitKind.KERNEL if segment.waker_kind == "thread" else None
    if segment.state == "sleep" and segment.is_own_request:
        return WaitKind.LOCK if segment.locks_file else WaitKind.REQUEST
    of_answer = WaitKind.READ if segment.is_answer else WaitKind.ANSWER
    return None if _is_of_job(case, segment.waker_pid) else of_answer


def _is_of_job(case: Case, pid: int) -> bool:
    """Whether a process is another rank, or has started them: it only passes on that the last rank has come."""
    if not case.evidence.peers(case.process.process):
        return False
    other = case.evidence.process_at(pid)
    parent_pid = case.process.parent_pid or 0
    return pid in case.job or pid == parent_pid or bool(other and parent_pid and other.parent_pid == parent_pid)


def _is_proven(case: Case, kind: WaitKind, waits: Sequence[PathSegment]) -> bool:
    if kind is WaitKind.KERNEL:
        return not _is_ended_by_kernel(case, waits)
    if kind in (WaitKind.REQUEST, WaitKind.READ, WaitKind.LOCK):
        return True
    if kind is WaitKind.TIMEOUT:  # a loader looks every few seconds whether its workers live
        asleep = group_samples(case.evidence, case.process.process, (case.window,), spans_of(waits), SLEEP)
        if matching_share(asleep, lambda stack: gets_an_item(stack) or takes_items(stack)) >= _MIN_SHARE_OF_SAMPLES:
            return False
    return is_waiting_for_answer(case.evidence, case.process, waits)


def _is_held_in_kernel(segment: PathSegment) -> bool:
    """Whether a wait was uninterruptible and outside GPU calls, where the driver would be the reason."""
    return segment.state == "uninterruptible" and not segment.is_gpu_call


def _is_ended_by_kernel(case: Case, waits: Sequence[PathSegment]) -> bool:
    """Whether kernel threads ended most of these waits."""
    names = ((case.evidence.waker_names.get(wait.waker_pid, ""), wait.duration_ns) for wait in waits)
    by_kernel = sum(ns for name, ns in names if _KERNEL_THREADS.match(name))
    return 2 * by_kernel >= sum(wait.duration_ns for wait in waits)


def _ipc_wait(
    case: Case, kind: WaitKind, waits: Sequence[PathSegment], is_mine: Callable[[PathSegment], bool]
) -> IpcWait:
    claims = PathWaits(case).claim(is_mine) if kind is WaitKind.KERNEL else case.claimable_on_path(is_mine)
    by_pid: Counter[int] = Counter()
    for wait in waits:
        name = case.evidence.waker_names.get(wait.waker_pid, "")
        is_relay = kind is not WaitKind.KERNEL and _KERNEL_THREADS.match(name)  # it passes on what came from outside
        by_pid[0 if is_relay else wait.waker_pid] += wait.duration_ns
    asleep = sampled_time(group_samples(case.evidence, case.process.process, (case.window,), spans_of(waits), SLEEP))
    line = asleep.line or (
        line_of_kernel_waits(case.evidence, case.process.process, (case.window,), waits) if claims else None
    )
    return IpcWait(
        kind=kind,
        claims=claims,
        partners=[(pid, case.evidence.waker_names.get(pid, ""), ns) for pid, ns in by_pid.most_common()],
        line=line,
        samples=asleep.count,
    )


def _of_ranks(case: Case, found: IpcWait, waits: Sequence[PathSegment]) -> IpcWait:
    """The wait for the last rank, where the process that ended it ends those of other ranks, too, as a store does."""
    (pid, name, _), *_ = found.partners
    others = asked_by_others(case, pid) if pid else []
    if not others:
        return found
    if late := late_rank(case, [wait for wait in waits if wait.waker_pid == pid], others):
        doing = f"; {name} [{pid}] passed that on"
        partner = (late.pid, case.evidence.thread_names.get(late.pid) or late.name, sum(found.claims.values()))
        return replace(found, kind=WaitKind.BARRIER, partners=[partner], doing=doing)
    doing = "; it answers other processes with GPU work, too, and may only pass on that one of them is late"
    return replace(found, doing=doing, may_relay=True)


def _finding(case: Case, wait: IpcWait) -> Finding:
    lost, total = sum(wait.claims.values()), sum(ns for _, _, ns in wait.partners)
    culprits = tuple(Culprit(pid=pid, name=name, lost_ns=lost * ns // total) for pid, name, ns in wait.partners if pid)
    culprits = () if wait.may_relay else culprits
    first, name, _ = wait.partners[0]
    other_end = "another host" if wait.kind is WaitKind.LOCK else _OTHER_END
    partner = f"{name or 'pid'} [{first}]" if first else other_end
    times = f" {wait.runs} times" if wait.runs > 1 else ""
    doing, until = (text.format(partner=partner, times=times) for text in wait.kind.value)
    look = (
        Fix(text=_PROFILE.format(partner=partner), command=command("trace", "--pid", str(first), as_root=True))
        if first
        else Fix(
            text="show its connections",
            command=f"sudo nsenter -t {case.process.pid} -n ss -tunxpi | grep -A1 pid={case.process.pid},",
        )
    )
    is_program = wait.kind is WaitKind.PROGRAM
    return Finding(
        cause=CAUSE,
        resource="ipc",
        root=str(first or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} {doing}{at(wait.line)}{wait.doing}",
        claims=wait.claims,
        culprits=culprits,
        line=wait.line,
        chain=(
            Link(
                text=f"the launching thread {'' if wait.kind is WaitKind.SPIN else 'slept '}{until}",
                seen_ns=lost,
                structure=_STRUCTURES.get(wait.kind, "who woke it, another process"),
                order="the wait ended then, before the next launch",
            ),
        ),
        fixes=(_FIXES[wait.kind],) if is_program else (look, _FIXES[wait.kind]),
        evidence={"partners": len(wait.partners), "samples": wait.samples},
    )


RULE = Rule(
    cause=CAUSE,
    title="another process answered late",
    order=37,
    needs=("sync_intervals", "offcpu"),
    shows="sleeps of the launching thread that another process ended, with that process and the line: the answer to "
    "what it had asked for (or its own timeout, where none came), a write or send that the other took late, the lock "
    "of a file, the end of a program that it ran, or a wait in the kernel outside GPU calls, as a scanner of files "
    "imposes; a loop that polls without a sleep while its parent computes",
    limits="an answer only where the process is seen to train (workers, backward passes, optimizers) or to ask (a "
    "client's frames, or a read in a thread that gets its requests as events): else a wait for another process counts "
    "as no work requested; a program only where its subprocess or multiprocessing frames are seen; who is at the other "
    "end of a connection to another host is not known",
    explain=explain,
)
