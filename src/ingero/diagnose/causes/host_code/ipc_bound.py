"""The thread that feeds the GPU waited for another process that is no worker of its own.

It may have asked for an answer, have written more than the other one took, have run a program and waited for its end,
or have been held up in the kernel until the other one let it go on.
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
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.diagnose.samples.process_roles import data_workers, is_asking
from ingero.diagnose.samples.stack_samples import (
    SLEEP,
    Stay,
    at,
    matching,
    runs_program,
    spans_of,
    spent,
    stays,
    waited_at,
)
from ingero.program import command

CAUSE = "ipc-bound"
_CLEAR = 0.7  # of the sleeping samples, before they say that it waited for a program
# Of the kernel itself: what these end is a wait for a disk, for memory, or for a device.
_KERNEL_THREADS = re.compile(
    r"k(swapd|compactd|hugepaged|softirqd|worker|thread)|jbd2/|xfs|btrfs-|dm[-_]|md\d|loop\d|txg_|z_|rcu|migration/|"
    r"irq/|nv|UVM|nfs|rpc|ceph|io_|kauditd|cpuhp"
)
_PROFILE = "profile {partner} meanwhile"


class _Way(enum.Enum):
    """How it waited: in words, and how the wait ended."""

    PROGRAM = ("waiting for {partner}, a program that it ran{times}", "until {partner}, which it had started, was done")
    KERNEL = ("in uninterruptible sleep until {partner} let it go on", "in the kernel, until {partner} let it go on")
    REQUEST = (
        "in a write or another file or socket call, until {partner} had taken it",
        "in a system call with which it asked for something, until {partner} woke it",
    )
    ANSWER = ("waiting for the answer of {partner}", "until {partner} woke it")


_FIXES = {
    _Way.PROGRAM: Fix(text="run it less often, or in a thread of its own: the loop need not wait for it"),
    _Way.KERNEL: Fix(
        text="if it is a scanner of files, leave the folders of the data out of what it scans; a lock of a file "
        "system goes with its holder"
    ),
    _Way.REQUEST: Fix(
        text="write from a thread of its own, or less, so that the loop goes on while the reader is slow",
        command="logging.handlers.QueueHandler(queue)  # and a QueueListener",
    ),
    _Way.ANSWER: Fix(text="or ask for the next answer before this step ends, so that both work side by side"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waited:
    """Waits of one way. partners: by pid, longest first. runs: of a program, how often."""

    way: _Way
    waits: Sequence[Segment]
    claims: dict[Bucket, int]
    partners: Sequence[tuple[int, str, int]]
    line: CodeLine | None
    samples: int
    runs: int = 0


def find(case: Case) -> Iterator[Finding]:
    """Sleep of its own critical-path threads that a process outside the family ended, or a program that it ran."""
    if (ran := _of_programs(case)) is not None:
        yield _finding(case, ran)
    mine = [one for one in case.waits if _is_ipc(case, one)]
    for way, is_way in (
        (_Way.KERNEL, _is_held),
        (_Way.REQUEST, _is_request),
        (_Way.ANSWER, lambda one: not (_is_held(one) or _is_request(one))),
    ):
        waits = [one for one in mine if is_way(one)]
        if way is _Way.KERNEL and _is_by_kernel(case, waits):
            continue
        if waits and (way is not _Way.ANSWER or is_asking(case.evidence, case.process, waits)):
            found = _waited(case, way, waits, lambda one, is_way=is_way: _is_ipc(case, one) and is_way(one))  # type: ignore[misc]
            if found.claims:
                yield _finding(case, found)


def _is_ipc(case: Case, one: Segment) -> bool:
    return one.pid == case.process.pid and one.waker_kind == "thread" and is_outside(one, case.family)


def _is_held(one: Segment) -> bool:
    """Whether it was held up in the kernel; within GPU calls that is the driver's doing."""
    return one.state == "uninterruptible" and not one.is_gpu_call


def _is_by_kernel(case: Case, waits: Sequence[Segment]) -> bool:
    """Whether the kernel's own threads ended most of these waits."""
    names = ((case.evidence.waker_names.get(one.waker_pid, ""), one.duration_ns) for one in waits)
    by_kernel = sum(ns for name, ns in names if _KERNEL_THREADS.match(name))
    return 2 * by_kernel >= sum(one.duration_ns for one in waits)


def _is_request(one: Segment) -> bool:
    return one.state == "sleep" and one.is_own_request


def _waited(case: Case, way: _Way, waits: Sequence[Segment], is_mine: Callable[[Segment], bool]) -> _Waited:
    claims = PathWaits(case).claim(is_mine) if way is _Way.KERNEL else case.take_path(is_mine)
    by_pid: Counter[int] = Counter()
    for one in waits:
        by_pid[one.waker_pid] += one.duration_ns
    asleep = spent(stays(case.evidence, case.process.process, (case.window,), spans_of(waits), SLEEP))
    line = asleep.line or (waited_at(case.evidence, case.process.process, (case.window,), waits) if claims else None)
    return _Waited(
        way=way,
        waits=waits,
        claims=claims,
        partners=[(pid, case.evidence.waker_names.get(pid, ""), ns) for pid, ns in by_pid.most_common()],
        line=line,
        samples=asleep.count,
    )


def _of_programs(case: Case) -> _Waited | None:
    """What children did that are no data workers, while it waited for a program that it had started."""
    workers = {one.pid for one in data_workers(case.evidence, case.process)}

    def is_child(one: Segment) -> bool:
        is_of_family = one.pid != case.process.pid and one.pid in case.family and one.pid not in workers
        return is_of_family and one.state != "stopped"

    waits = [one for one in case.waits if is_child(one)]
    asleep = _asleep_meanwhile(case, waits)
    if matching(asleep, runs_program) < _CLEAR:
        return None
    claims = case.take_path(is_child)
    by_name: Counter[str] = Counter()
    pids: dict[str, dict[int, None]] = {}
    for one in waits:
        name = case.thread_name(one)
        by_name[name] += one.duration_ns
        pids.setdefault(name, {})[one.pid] = None
    if not claims:
        return None
    where = spent(asleep)
    return _Waited(
        way=_Way.PROGRAM,
        waits=waits,
        claims=claims,
        partners=[(next(iter(pids[name])), name, ns) for name, ns in by_name.most_common()],
        line=where.line,
        samples=where.count,
        runs=len(pids[by_name.most_common(1)[0][0]]),
    )


def _asleep_meanwhile(case: Case, waits: Sequence[Segment]) -> list[Stay]:
    """Where its own critical-path threads slept in these pieces of paths."""
    if not waits:
        return []
    threads = {int(tid) for name in ("prev_sync_tid", "first_launch_tid") for tid in set(case.sync_intervals[name])}
    whole = [(one.begin_ns, one.end_ns) for one in waits]
    spans = dict.fromkeys(threads, whole)
    return stays(case.evidence, case.process.process, (case.window,), spans, SLEEP)


def _finding(case: Case, found: _Waited) -> Finding:
    lost, total = sum(found.claims.values()), sum(ns for _, _, ns in found.partners)
    culprits = tuple(Culprit(pid=pid, name=name, lost_ns=lost * ns // total) for pid, name, ns in found.partners)
    partner = f"{culprits[0].name or 'pid'} [{culprits[0].pid}]"
    times = f" {found.runs} times" if found.runs > 1 else ""
    doing, until = (text.format(partner=partner, times=times) for text in found.way.value)
    profile = Fix(
        text=_PROFILE.format(partner=partner), command=command("trace", "--pid", str(culprits[0].pid), as_root=True)
    )
    is_short = found.way is _Way.PROGRAM
    return Finding(
        cause=CAUSE,
        resource="ipc",
        root=str(culprits[0].pid),
        summary=f"{case.who} lost {case.amount(lost)} {doing}{at(found.line)}",
        claims=found.claims,
        culprits=culprits,
        line=found.line,
        chain=(
            Link(
                text=f"the launching thread slept {until}",
                seen_ns=lost,
                structure="what the program did while it waited, and its stack"
                if is_short
                else "who woke it, a process outside its own tree",
                order="the wait ended with the answer, before the next launch",
            ),
        ),
        fixes=(_FIXES[found.way],) if is_short else (profile, _FIXES[found.way]),
        evidence={"partners": len(found.partners), "samples": found.samples},
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
    find=find,
)
