"""The launching thread waited for another process that is not one of its own workers.

It requested an answer, also one that never came, wrote more than the other process read, ran a program and waited for
its end, or was blocked in the kernel until the other process released it.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import claim_run_time
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.causes.data.producers import TEXTS, production
from ingero.diagnose.causes.host_code.polling_loops import busy_ns, polling_groups, work_givers
from ingero.diagnose.causes.host_code.thread_waits import asleep_meanwhile
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, CodeLine, Culprit, Finding, Fix, Link
from ingero.diagnose.lost_time.no_demand import is_outside
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.process_roles import data_workers, is_waiting_for_answer
from ingero.diagnose.samples.stack_samples import (
    RUN,
    SLEEP,
    Doing,
    SampleGroup,
    at,
    compiles,
    gets_an_item,
    group_samples,
    idle_spans,
    line_of_kernel_waits,
    matching_share,
    runs_program,
    sampled_time,
    spans_of,
    takes_items,
)
from ingero.program import command
from ingero.units import format_percent

CAUSE = "ipc-bound"
_MIN_BUSY_SHARE = 0.5  # of the time in which the GPU was idle, before a process that was busy then is named
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
    READ = ("blocking its event loop until {partner} answered", "until {partner} woke it")
    LOCK = ("waiting for the lock of a file that {partner} held", "until {partner} released the lock")
    ANSWER = ("waiting for the answer of {partner}", "until {partner} woke it")
    SPIN = ("polling without a sleep for what {partner} gives it", "polled until {partner} was done")
    TIMEOUT = ("waiting for an answer that did not come before its own timeout", "until its own timeout ended the wait")


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
    _WaitKind.READ: Fix(text="ask without blocking the event loop", command="await asyncio.to_thread(query, ...)"),
    _WaitKind.LOCK: Fix(text="hold the lock for less, or give each job a file of its own (a cache, a download)"),
    _WaitKind.ANSWER: Fix(text="or ask for the next answer before this step ends, so that both work side by side"),
    _WaitKind.SPIN: Fix(text="make its part of a step shorter, or let it prepare the next step meanwhile"),
    _WaitKind.TIMEOUT: Fix(
        text="ask from a thread of its own, or with a shorter timeout: the loop need not wait for it"
    ),
}
_STRUCTURES = {
    _WaitKind.PROGRAM: "what the program did while it waited, and its stack",
    _WaitKind.SPIN: "its samples in calls that poll, and what its parent or sibling did meanwhile",
    _WaitKind.TIMEOUT: "only a timer ended it, in a call that reads or polls",
}
_OTHER_END = "the other end of its connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class _IpcWait:
    """Waits of one kind. partners: by pid, longest first; pid 0: on another host, or none. runs: how often the program
    was run. doing: what the partner did, as text.
    """

    kind: _WaitKind
    waits: Sequence[PathSegment]
    claims: dict[Bucket, int]
    partners: Sequence[tuple[int, str, int]]
    line: CodeLine | None
    samples: int
    runs: int = 0
    doing: str = ""


def explain(case: Case) -> Iterator[Finding]:
    """Sleep of the process's critical-path threads, ended by a process outside its family, a program that it ran, or
    another child.
    """
    if (child_wait := _child_wait(case)) is not None:
        yield _finding(case, child_wait)
    if (spin := _spin(case)) is not None:
        yield _finding(case, spin)
    for kind in _WaitKind:
        is_wanted = partial(_is_of_kind, case, kind)
        waits = [wait for wait in case.waits if is_wanted(wait)]
        if waits and _is_proven(case, kind, waits):
            wait_found = _ipc_wait(case, kind, waits, is_wanted)
            if wait_found.claims:
                yield _finding(case, wait_found)


def _is_of_kind(case: Case, kind: _WaitKind, segment: PathSegment) -> bool:
    return _kind_of(case, segment) is kind


def _kind_of(case: Case, segment: PathSegment) -> _WaitKind | None:
    """The kind of a wait of the process's own threads; None for waits that are none for another process."""
    if segment.pid != case.process.pid:
        return None
    if segment.is_receiving and segment.depth == 0 and segment.waker_kind == "timer":
        return _WaitKind.TIMEOUT
    is_taken = segment.is_own_request and segment.waker_kind == "thread" and segment.waker_pid != case.process.pid
    if not (is_taken or is_outside(segment, case.family)):
        return None
    if _is_held_in_kernel(segment):
        return _WaitKind.KERNEL if segment.waker_kind == "thread" else None
    if segment.state != "sleep" or not segment.is_own_request:
        return _WaitKind.READ if segment.is_answer else _WaitKind.ANSWER
    return _WaitKind.LOCK if segment.locks_file else _WaitKind.REQUEST


def _is_proven(case: Case, kind: _WaitKind, waits: Sequence[PathSegment]) -> bool:
    if kind is _WaitKind.KERNEL:
        return not _is_ended_by_kernel(case, waits)
    if kind in (_WaitKind.REQUEST, _WaitKind.READ, _WaitKind.LOCK):
        return True
    if kind is _WaitKind.TIMEOUT:  # a loader looks every few seconds whether its workers live
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


def _child_wait(case: Case) -> _IpcWait | None:
    """Waits for a program that the process ran, or for a child that makes neither input data nor GPU code."""
    workers = {worker.pid for worker in data_workers(case.evidence, case.process)}

    def is_child(segment: PathSegment) -> bool:
        is_of_family = segment.pid != case.process.pid and segment.pid in case.family and segment.pid not in workers
        return is_of_family and segment.state != "stopped"

    waits = [wait for wait in case.waits if is_child(wait)]
    asleep = asleep_meanwhile(case, waits)
    is_program = matching_share(asleep, runs_program) >= _MIN_SHARE_OF_SAMPLES
    if not is_program and not _is_answer_of_child(asleep):
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
        kind=_WaitKind.PROGRAM if is_program else _WaitKind.ANSWER,
        waits=waits,
        claims=claims,
        partners=[(next(iter(pids[name])), name, ns) for name, ns in by_name.most_common()],
        line=where.line,
        samples=where.count,
        runs=len(pids[by_name.most_common(1)[0][0]]) if is_program else 0,
        doing="" if is_program else _doing_text(case, waits),
    )


def _spin(case: Case) -> _IpcWait | None:
    """On-CPU time of the launching thread in a loop that polls, while its parent or a sibling was busy."""
    polls = polling_groups(case.host_sample_groups.of(Doing.COMPUTING).now)
    claims = claim_run_time(case, sampled_time(polls)) if polls else {}
    if not claims:
        return None
    spans = idle_spans(case.sync_intervals)
    ranges = [one for mine in spans.values() for one in mine]
    whole_ns = sum(end - begin for begin, end in ranges)
    givers = [
        (sum(busy_ns(case.evidence, giver, *one) for one in ranges), giver)
        for giver in work_givers(case.evidence, case.process)
    ]
    busy, giver = max(givers, key=lambda one: one[0], default=(0, None))
    if giver is None or busy < _MIN_BUSY_SHARE * whole_ns:
        return None
    work = sampled_time(group_samples(case.evidence, giver.process, (case.window,), {giver.pid: sorted(ranges)}, RUN))
    share = format_percent(min(busy / max(whole_ns, 1), 1.0))
    return _IpcWait(
        kind=_WaitKind.SPIN,
        waits=(),
        claims=claims,
        partners=[(giver.pid, case.evidence.thread_names.get(giver.pid) or giver.name, busy)],
        line=sampled_time(polls).line,
        samples=sum(group.count for group in polls),
        doing=f"; {giver.name} [{giver.pid}] was busy for {share} of that{at(work.line)}",
    )


def _is_answer_of_child(asleep: Sequence[SampleGroup]) -> bool:
    """Whether the stacks of waits for a child are known, and hardly any takes an item or waits for a compiler."""
    known = [group for group in asleep if group.stack is not None and group.stack.python]
    other = matching_share(known, lambda stack: takes_items(stack) or gets_an_item(stack) or compiles(stack))
    return bool(known) and other <= 1 - _MIN_SHARE_OF_SAMPLES


def _doing_text(case: Case, waits: Sequence[PathSegment]) -> str:
    produced = production(case, waits)
    share = format_percent(produced.worst_share)
    return f"; {produced.who} spent {share} of that {TEXTS[produced.worst]}{at(produced.line)}"


def _finding(case: Case, wait: _IpcWait) -> Finding:
    lost, total = sum(wait.claims.values()), sum(ns for _, _, ns in wait.partners)
    culprits = tuple(Culprit(pid=pid, name=name, lost_ns=lost * ns // total) for pid, name, ns in wait.partners if pid)
    first, name, _ = wait.partners[0]
    partner = f"{name or 'pid'} [{first}]" if first else _OTHER_END
    times = f" {wait.runs} times" if wait.runs > 1 else ""
    doing, until = (text.format(partner=partner, times=times) for text in wait.kind.value)
    look = (
        Fix(text=_PROFILE.format(partner=partner), command=command("trace", "--pid", str(first), as_root=True))
        if first
        else Fix(text="show who is at the other end", command=f"ss -tnpi | grep -A1 pid={case.process.pid},")
    )
    is_program = wait.kind is _WaitKind.PROGRAM
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
                text=f"the launching thread {'' if wait.kind is _WaitKind.SPIN else 'slept '}{until}",
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
    "imposes; a loop that polls without a sleep while its parent or a sibling is busy",
    limits="an answer only where the process is seen to train (workers, backward passes, optimizers) or to ask (a "
    "client's frames, or a read in a thread that gets its requests as events): else a wait for another process counts "
    "as no work requested; a program only where its subprocess or multiprocessing frames are seen; who is at the other "
    "end of a connection to another host is not known",
    explain=explain,
)
