"""A process that made steps makes none any more: it waits, outside GPU calls, for what does not come."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS
from ingero.diagnose.causes.host_code.halted_processes import LOCKS, HaltedProcess, Owner, goes_on, halted, owners
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Affected, Culprit, Finding, FindingKind, Fix, Link, Severity
from ingero.foreign_text import operand, shell_word
from ingero.identity import ending
from ingero.store.records import HaltLevel, HaltRow, Window
from ingero.units import format_bytes, format_ns, format_time_of_day

CAUSE = "host-hang"
_ASLEEP = ("sleep", "io", "uninterruptible")
_BY_OTHERS = frozenset({"pipe-read", "futex", "shared-futex", "child"})
_FULL, _NEARLY = 0.02, 0.25  # of /dev/shm is free: less than the item that did not fit
_SIGBUS = int(signal.SIGBUS)
_MOST_FRAMES = 40
_STATES = {"T": "is stopped", "t": "is held by a debugger", "Z": "has ended", "": "has ended", "D": "is in I/O wait"}


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Halted processes, those that go on and those that are over."""
    for halt in halted(evidence):
        if not (halt.is_over and _is_told_otherwise(halt)):
            yield _finding(halt)


def find(case: Case) -> Iterator[Finding]:
    """What such a process lost, once it went on."""
    for halt in halted(case.evidence):
        is_here = halt.since_ns < case.window.end_ns and halt.seen_ns > case.window.begin_ns
        if halt.process.process == case.process.process and is_here and not _is_told_otherwise(halt):
            claims = case.take(HOST_PARTS, _ASLEEP, halt.length_ns + _LATE_NS)
            if claims:
                yield replace(_finding(halt), claims=claims, kind=None, severity=None, window=None)


_LATE_NS = 5_000_000_000  # after its last look it may have waited until the next


def _is_told_otherwise(halt: HaltedProcess) -> bool:
    """Once it goes on: whoever ended the wait is on the path of that sleep, and what he did is known better there."""
    was_stopped = any(one.state in ("T", "t") for row in halt.rows for one in owners(row))
    return was_stopped or (halt.own.kind in _BY_OTHERS and not halt.is_certain)


def _finding(halt: HaltedProcess) -> Finding:
    own, process = halt.own, halt.process
    who = f"{process.name} [{process.pid}]"
    place = f" at {line}" if (line := halt.line(own)) else ""
    lasts = goes_on(halt)
    made = "has made no step for" if lasts else "made no step for"
    reason = _reason(halt)
    return Finding(
        cause=CAUSE,
        resource=own.kind,
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL if lasts else Severity.HIGH,
        window=Window(begin_ns=halt.since_ns, end_ns=halt.seen_ns + 1),
        process=process.process,
        affected=Affected(process=process.process, pid=process.pid, name=process.name, rank=process.rank),
        summary=f"{who} {made} {format_ns(halt.length_ns)}: thread {own.tid} {_waits(halt, own)}{place}{reason}",
        culprits=tuple(Culprit(pid=one.pid, name=one.name) for one in _culprits(halt)),
        line=line or next((found for row in halt.rows if (found := halt.line(row))), None),
        chain=tuple(_links(halt)),
        fixes=_fixes(halt),
        evidence={
            "no step (ns)": halt.length_ns,
            "state": own.state,
            "system call": own.syscall,
            "waits in the kernel at": own.wchan or None,
            "object": own.object or None,
            "thread": own.tid,
            "nothing can end the wait": halt.is_certain,
            "stack": _stack(halt, own) or None,
        },
    )


def _waits(halt: HaltedProcess, row: HaltRow) -> str:
    """What a thread waits for: "waits in write() for room in a pipe that sh [1] should read"."""
    text = _TEXTS.get(row.kind, _other)(halt, row)
    return f"{text} ({row.syscall}, {row.state})"


def _people(found: list[Owner], does: str) -> str:
    if not found:
        return ""
    names = [f"{one.name or 'pid'} [{one.pid}]" for one in found[:3]]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    states = {_STATES[one.state] for one in found if one.state in _STATES}
    state = f", which {next(iter(states))}" if len(states) == 1 and all(one.state in _STATES for one in found) else ""
    return f"{' and '.join(names)}{more} {does}{state}"


def _pipe_read(halt: HaltedProcess, row: HaltRow) -> str:
    if found := owners(row):
        return f"waits for a pipe that {_people(found, 'should fill')}"
    del halt
    return "waits for a pipe whose other end no other process has open"


def _pipe_write(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    found = owners(row)
    return (
        f"waits for room in a pipe that {_people(found, 'should read')}"
        if found
        else "waits for room in a pipe that no process reads"
    )


def _lock(halt: HaltedProcess, row: HaltRow) -> str:
    if row.kind == "shared-futex":
        found = _people(owners(row), "could release")
        return f"waits for a lock or semaphore in shared memory{f' that {found}' if found else ''}"
    if row.object:
        return f"waits for a lock in its own memory that no thread will release: {row.object}{_forked(halt, row)}"
    if row.level == HaltLevel.NEVER:
        deeper = any(one.depth > row.depth and one.pid == row.pid and one.kind not in LOCKS for one in halt.rows)
        end = "another thread of it holds" if deeper else f"no thread is left to release{_forked(halt, row)}"
        return f"waits for a lock in its own memory that {end}"
    return "waits for a lock in its own memory"


def _forked(halt: HaltedProcess, row: HaltRow) -> str:
    """Of a process that was forked from a traced one: its locks are as its parent's were then."""
    process = halt.evidence.processes.get(row.process)
    parent = halt.evidence.process_at(process.parent_pid or 0) if process else None
    if process is None or parent is None or process.process == parent.process:
        return ""
    when = format_time_of_day(process.start_ns, of_ns=halt.length_ns)
    return f": it was held when {parent.name} [{parent.pid}] forked this process at {when}"


def _file_lock(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    holders = owners(row)
    by = f" that {_people(holders, 'holds')}" if holders else ""
    return f"waits for the lock of {row.object}{by}"


def _object(before: str) -> Callable[[HaltedProcess, HaltRow], str]:
    return lambda _halt, row: f"{before} {row.object}"


def _timer(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    what = row.object or "something that does not come, such as a file or a flag"
    return f"polls for {what}, sleeping in between"


def _child(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    return f"waits for {_people(owners(row), 'to end')}"


def _other(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    return f"waits in {row.syscall}"


_TEXTS: dict[str, Callable[[HaltedProcess, HaltRow], str]] = {
    "pipe-read": _pipe_read,
    "pipe-write": _pipe_write,
    "futex": _lock,
    "shared-futex": _lock,
    "file-lock": _file_lock,
    "network-file": _object("waits for"),
    "socket-read": _object("waits for data from"),
    "socket-write": _object("waits for its peer"),
    "timer": _timer,
    "child": _child,
}


def _reason(halt: HaltedProcess) -> str:
    """Why that does not come."""
    if halt.dead is not None:
        return f"; {_died(halt)}"
    deeper = [row for row in halt.rows[1:] if row.level == HaltLevel.NEVER]
    if not deeper:
        return ""
    last = deeper[-1]
    place = f" at {line}" if (line := halt.line(last)) else ""
    return f"; {last.name} [{last.pid}] {_waits(halt, last)}{place}"


def _died(halt: HaltedProcess) -> str:
    assert halt.dead is not None
    text = f"{halt.dead.name} [{halt.dead.pid}] {ending(halt.dead.exit_code)}"
    size, free = halt.own.shm_bytes, halt.own.shm_free_bytes
    if (halt.dead.exit_code or 0) & 0x7F == _SIGBUS and size is not None and free is not None:
        left = f"is full but for {format_bytes(free)}" if free <= _NEARLY * size else f"has {format_bytes(free)} left"
        used = "is full" if free <= _FULL * size else left
        return f"{text}: /dev/shm of {format_bytes(size)} {used}"
    return text


def _culprits(halt: HaltedProcess) -> list[Owner]:
    """Who must act: the dead worker, else the last of the chain that is named."""
    if halt.dead is not None:
        return [Owner(halt.dead.pid, halt.dead.name, "")]
    named = [found for row in halt.rows if (found := owners(row)) and row.kind not in LOCKS]
    return named[-1][:3] if named else []


def _links(halt: HaltedProcess) -> Iterator[Link]:
    for row in halt.rows:
        name = halt.process.name if row.depth == 0 else row.name
        place = f" at {line}" if (line := halt.line(row)) else ""
        yield Link(
            text=f"thread {row.tid} of {name} [{row.pid}] {_waits(halt, row)}{place}",
            seen_ns=halt.length_ns if row.depth == 0 else 0,
            structure="its state, system call and that call's object in /proc"
            + (f", in the kernel at {row.wchan}" if row.wchan else ""),
            order="in the same sleep each time it was checked"
            if not row.is_timed
            else "in sleeps with a timeout, one after the other",
        )
    if halt.dead is not None:
        yield Link(
            text=_died(halt),
            structure="a child of the process that waits",
            order=f"{format_ns(abs((halt.dead.exit_ns or 0) - halt.since_ns))} "
            f"{'after' if (halt.dead.exit_ns or 0) >= halt.since_ns else 'before'} the last step",
        )


def _stack(halt: HaltedProcess, row: HaltRow) -> str:
    stack = halt.evidence.stacks.of(halt.stacks.get(row.tid, 0))
    return " < ".join(place.full for place in stack.python[:_MOST_FRAMES]) if stack else ""


def _fixes(halt: HaltedProcess) -> tuple[Fix, ...]:
    own = halt.own
    looks = Fix(text="show all its threads", command=f"py-spy dump --pid {own.pid}")
    if halt.dead is not None:
        return (*_of_the_dead(halt), looks)
    stopped = [one for row in halt.rows for one in owners(row) if one.state in ("T", "t")]
    if stopped:
        return (Fix(text="resume it", command=f"kill -CONT {' '.join(str(one.pid) for one in stopped)}"), looks)
    last = halt.rows[-1] if halt.own.kind not in ("pipe-write", "file-lock") else own
    of_kind = _FIXES.get(last.kind)
    return (*(of_kind(halt, last) if of_kind else ()), looks)


def _of_the_dead(halt: HaltedProcess) -> tuple[Fix, ...]:
    assert halt.dead is not None
    found = [Fix(text="kill and restart it: nothing can deliver what it waits for", command=f"kill {halt.own.pid}")]
    if (halt.dead.exit_code or 0) & 0x7F == _SIGBUS:
        found.insert(
            0,
            Fix(
                text="give it more shared memory",
                command="docker run --shm-size=8g ...  # Kubernetes: an emptyDir with medium: Memory at /dev/shm",
            ),
        )
    if (halt.dead.exit_code or 0) & 0x7F == int(signal.SIGKILL):
        found.append(
            Fix(text="check whether the kernel OOM-killed it", command="sudo dmesg | grep -i 'killed process'")
        )
    return tuple(found)


def _lock_fixes(halt: HaltedProcess, row: HaltRow) -> tuple[Fix, ...]:
    if row.pid != halt.own.pid or _forked(halt, row):
        return (
            Fix(
                text="start workers by spawn or forkserver: a fork copies locks that other threads hold",
                command="multiprocessing.set_start_method('spawn')",
            ),
        )
    return (Fix(text="take locks in one order, and hold none while waiting for another thread"),)


def _holder_fixes(halt: HaltedProcess, row: HaltRow) -> tuple[Fix, ...]:
    del halt
    found = owners(row)
    if not found:
        return (Fix(text="list processes that have the file open", command=f"sudo lsof {shell_word(row.object)}"),)
    return (
        Fix(
            text="show what the holder does",
            command=f"sudo cat /proc/{found[0].pid}/stack; py-spy dump --pid {found[0].pid}",
        ),
    )


def _pipe_fixes(halt: HaltedProcess, row: HaltRow) -> tuple[Fix, ...]:
    del halt
    found = owners(row)
    if row.kind == "pipe-write" and found:
        return (
            Fix(
                text="read the pipe where it was made, or give the program a file to write to",
                command=f"timeout 5 cat /proc/{row.pid}/fd/1 > /dev/null  # frees it once, if it is its output",
            ),
        )
    return (Fix(text="check whether its workers are alive", command=f"ps --ppid {row.pid} -o pid,stat,wchan:20,args"),)


_FIXES: dict[str, Callable[[HaltedProcess, HaltRow], tuple[Fix, ...]]] = {
    "futex": _lock_fixes,
    "shared-futex": _lock_fixes,
    "file-lock": _holder_fixes,
    "pipe-read": _pipe_fixes,
    "pipe-write": _pipe_fixes,
    "network-file": lambda _halt, row: (
        Fix(
            text="check whether the file server answers",
            command=f"findmnt -T {shell_word(row.object.split(' on ')[0])}; nfsstat -m",
        ),
    ),
    "socket-read": lambda _halt, row: (
        Fix(text="show the connection", command=f"sudo ss -tnpi | grep -A1 {shell_word('pid=' + str(row.pid) + ',')}"),
        Fix(text="give the call a timeout"),
    ),
    "timer": lambda _halt, row: (
        Fix(
            text="check what it waits for: delete a lock file that a killed process left",
            command=f"ls -l {operand(row.object)}; sudo lsof {operand(row.object)}" if row.object else "",
        ),
    ),
}

RULE = Rule(
    cause=CAUSE,
    title="no more steps: the process waits outside GPU calls",
    order=22,
    needs=("halts", "sync_intervals"),
    wants=("stack_samples",),
    shows="since when no step was made; the waiting thread's state, system call and what it waits for: a pipe and the "
    "process that should read or fill it, a lock and its holder or the fork since which it is held, a file and its "
    "lock's holder or its network mount, a connection's peer, a loop that sleeps, a child; the same for the threads "
    "that could end the wait, workers that have died, and how; and the Python stacks",
    limits="reported after 3 s and 5 baseline steps, where nothing can end the wait; after 5 s, 5 baseline steps and "
    "1.5 times the longest step before, where something could; not reported for a process that serves requests, nor "
    "while a thread that could end the wait computes or uses a disk; a thread that waits for any of several files "
    "(epoll) is not reported, nor one that computes",
    find=find,
    watch=watch,
)
