"""A process no longer makes steps: it waits, outside GPU calls, for something that does not happen."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS
from ingero.diagnose.causes.host_code.halted_processes import (
    LOCKS,
    HaltedProcess,
    Owner,
    is_ongoing,
    proven_halts,
    wait_owners,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Affected, Culprit, Finding, FindingKind, Fix, Link, Severity
from ingero.foreign_text import operand, shell_word
from ingero.identity import ending
from ingero.store.records import HaltLevel, HaltRow, Window
from ingero.units import format_bytes, format_ns, format_time_of_day

CAUSE = "host-hang"
_SLEEPING_STATES = ("sleep", "io", "uninterruptible")
_ENDED_BY_OTHERS = frozenset({"pipe-read", "futex", "shared-futex", "child"})
_MAX_FREE_WHEN_FULL, _MAX_FREE_WHEN_NEARLY_FULL = (
    0.02,
    0.25,
)  # free share of /dev/shm: less than the item that did not fit
_SIGBUS = int(signal.SIGBUS)
_MAX_FRAMES = 40  # Python frames shown
_STATE_TEXTS = {
    "T": "is stopped",
    "t": "is held by a debugger",
    "Z": "has ended",
    "": "has ended",
    "D": "is in I/O wait",
}


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Halted processes, ongoing and over."""
    for halt in proven_halts(evidence):
        if not (halt.is_over and _is_explained_by_its_path(halt)):
            yield _finding(halt)


def explain(case: Case) -> Iterator[Finding]:
    """Time that a halted process lost, once it has continued."""
    for halt in proven_halts(case.evidence):
        is_here = halt.since_ns < case.window.end_ns and halt.seen_ns > case.window.begin_ns
        if halt.process.process == case.process.process and is_here and not _is_explained_by_its_path(halt):
            claims = case.claimable(HOST_PARTS, _SLEEPING_STATES, halt.length_ns + _MAX_CHECK_DISTANCE_NS)
            if claims:
                yield replace(_finding(halt), claims=claims, kind=None, severity=None, window=None)


_MAX_CHECK_DISTANCE_NS = 5_000_000_000  # it may have waited until the next check after the last one that saw it


def _is_explained_by_its_path(halt: HaltedProcess) -> bool:
    """Whether a halt that is over is better explained by the critical path of that sleep, which shows who ended it."""
    was_stopped = any(owner.state in ("T", "t") for row in halt.rows for owner in wait_owners(row))
    return was_stopped or (halt.own.kind in _ENDED_BY_OTHERS and not halt.is_certain)


def _finding(halt: HaltedProcess) -> Finding:
    own, process = halt.own, halt.process
    who = f"{process.name} [{process.pid}]"
    place = f" at {line}" if (line := halt.line(own)) else ""
    ongoing = is_ongoing(halt)
    made = "has made no step for" if ongoing else "made no step for"
    reason = _reason(halt)
    return Finding(
        cause=CAUSE,
        resource=own.kind,
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL if ongoing else Severity.HIGH,
        window=Window(begin_ns=halt.since_ns, end_ns=halt.seen_ns + 1),
        process=process.process,
        affected=Affected(process=process.process, pid=process.pid, name=process.name, rank=process.rank),
        summary=f"{who} {made} {format_ns(halt.length_ns)}: thread {own.tid} {_wait_text(halt, own)}{place}{reason}",
        culprits=tuple(Culprit(pid=owner.pid, name=owner.name) for owner in _culprits(halt)),
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


def _wait_text(halt: HaltedProcess, row: HaltRow) -> str:
    """What a thread waits for: "waits in write() for room in a pipe that sh [1] should read"."""
    text = _TEXT_BY_KIND.get(row.kind, _other_text)(halt, row)
    return f"{text} ({row.syscall}, {row.state})"


def _owners_text(named_owners: list[Owner], action: str) -> str:
    if not named_owners:
        return ""
    names = [f"{owner.name or 'pid'} [{owner.pid}]" for owner in named_owners[:3]]
    more = f" and {len(named_owners) - 3} more" if len(named_owners) > 3 else ""
    states = {_STATE_TEXTS[owner.state] for owner in named_owners if owner.state in _STATE_TEXTS}
    state = (
        f", which {next(iter(states))}"
        if len(states) == 1 and all(owner.state in _STATE_TEXTS for owner in named_owners)
        else ""
    )
    return f"{' and '.join(names)}{more} {action}{state}"


def _pipe_read_text(halt: HaltedProcess, row: HaltRow) -> str:
    if owners := wait_owners(row):
        return f"waits for a pipe that {_owners_text(owners, 'should fill')}"
    del halt
    return "waits for a pipe whose other end no other process has open"


def _pipe_write_text(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    owners = wait_owners(row)
    return (
        f"waits for room in a pipe that {_owners_text(owners, 'should read')}"
        if owners
        else "waits for room in a pipe that no process reads"
    )


def _lock_text(halt: HaltedProcess, row: HaltRow) -> str:
    if row.kind == "shared-futex":
        owners_text = _owners_text(wait_owners(row), "could release")
        return f"waits for a lock or semaphore in shared memory{f' that {owners_text}' if owners_text else ''}"
    if row.object:
        return f"waits for a lock in its own memory that no thread will release: {row.object}{_fork_text(halt, row)}"
    if row.level == HaltLevel.NEVER:
        deeper = any(
            other.depth > row.depth and other.pid == row.pid and other.kind not in LOCKS for other in halt.rows
        )
        end = "another thread of it holds" if deeper else f"no thread is left to release{_fork_text(halt, row)}"
        return f"waits for a lock in its own memory that {end}"
    return "waits for a lock in its own memory"


def _fork_text(halt: HaltedProcess, row: HaltRow) -> str:
    """Since when a lock is held that a process inherited by fork from a traced one; "" for other processes."""
    process = halt.evidence.processes.get(row.process)
    parent = halt.evidence.process_at(process.parent_pid or 0) if process else None
    if process is None or parent is None or process.process == parent.process:
        return ""
    when = format_time_of_day(process.start_ns, of_ns=halt.length_ns)
    return f": it was held when {parent.name} [{parent.pid}] forked this process at {when}"


def _file_lock_text(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    holders = wait_owners(row)
    holders_text = f" that {_owners_text(holders, 'holds')}" if holders else ""
    return f"waits for the lock of {row.object}{holders_text}"


def _object_text(prefix: str) -> Callable[[HaltedProcess, HaltRow], str]:
    return lambda _halt, row: f"{prefix} {row.object}"


def _timer_text(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    what = row.object or "something that does not come, such as a file or a flag"
    return f"polls for {what}, sleeping in between"


def _child_text(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    return f"waits for {_owners_text(wait_owners(row), 'to end')}"


def _other_text(halt: HaltedProcess, row: HaltRow) -> str:
    del halt
    return f"waits in {row.syscall}"


_TEXT_BY_KIND: dict[str, Callable[[HaltedProcess, HaltRow], str]] = {
    "pipe-read": _pipe_read_text,
    "pipe-write": _pipe_write_text,
    "futex": _lock_text,
    "shared-futex": _lock_text,
    "file-lock": _file_lock_text,
    "network-file": _object_text("waits for"),
    "terminal-write": lambda _halt, row: (
        f"waits in {row.syscall} for its terminal {row.object}, which takes no output: it was stopped (Ctrl-S, marked "
        f"text), or nobody reads it"
    ),
    "socket-read": _object_text("waits for data from"),
    "socket-write": _object_text("waits for its peer"),
    "timer": _timer_text,
    "child": _child_text,
}


def _reason(halt: HaltedProcess) -> str:
    """Why the wait does not end; "" where that is unknown."""
    if halt.dead_worker is not None:
        return f"; {_death_text(halt)}"
    deeper = [row for row in halt.rows[1:] if row.level == HaltLevel.NEVER]
    if not deeper:
        return ""
    last = deeper[-1]
    place = f" at {line}" if (line := halt.line(last)) else ""
    return f"; {last.name} [{last.pid}] {_wait_text(halt, last)}{place}"


def _death_text(halt: HaltedProcess) -> str:
    assert halt.dead_worker is not None
    text = f"{halt.dead_worker.name} [{halt.dead_worker.pid}] {ending(halt.dead_worker.exit_code)}"
    size, free = halt.own.shm_bytes, halt.own.shm_free_bytes
    if (halt.dead_worker.exit_code or 0) & 0x7F == _SIGBUS and size is not None and free is not None:
        free_text = (
            f"is full but for {format_bytes(free)}"
            if free <= _MAX_FREE_WHEN_NEARLY_FULL * size
            else f"has {format_bytes(free)} left"
        )
        full_text = "is full" if free <= _MAX_FREE_WHEN_FULL * size else free_text
        return f"{text}: /dev/shm of {format_bytes(size)} {full_text}"
    return text


def _culprits(halt: HaltedProcess) -> list[Owner]:
    """The processes that must act: the dead worker, otherwise the last owners named in the chain of waits."""
    if halt.dead_worker is not None:
        return [Owner(halt.dead_worker.pid, halt.dead_worker.name, "")]
    named = [owners for row in halt.rows if (owners := wait_owners(row)) and row.kind not in LOCKS]
    return named[-1][:3] if named else []


def _links(halt: HaltedProcess) -> Iterator[Link]:
    for row in halt.rows:
        name = halt.process.name if row.depth == 0 else row.name
        place = f" at {line}" if (line := halt.line(row)) else ""
        yield Link(
            text=f"thread {row.tid} of {name} [{row.pid}] {_wait_text(halt, row)}{place}",
            seen_ns=halt.length_ns if row.depth == 0 else 0,
            structure="its state, system call and that call's object in /proc"
            + (f", in the kernel at {row.wchan}" if row.wchan else ""),
            order="in the same sleep each time it was checked"
            if not row.is_timed
            else "in sleeps with a timeout, one after the other",
        )
    if halt.dead_worker is not None:
        yield Link(
            text=_death_text(halt),
            structure="a child of the process that waits",
            order=f"{format_ns(abs((halt.dead_worker.exit_ns or 0) - halt.since_ns))} "
            f"{'after' if (halt.dead_worker.exit_ns or 0) >= halt.since_ns else 'before'} the last step",
        )


def _stack(halt: HaltedProcess, row: HaltRow) -> str:
    stack = halt.evidence.stacks.of(halt.stacks.get(row.tid, 0))
    return " < ".join(place.full for place in stack.python[:_MAX_FRAMES]) if stack else ""


def _fixes(halt: HaltedProcess) -> tuple[Fix, ...]:
    own = halt.own
    show_threads = Fix(text="show all its threads", command=f"py-spy dump --pid {own.pid}")
    if halt.dead_worker is not None:
        return (*_dead_worker_fixes(halt), show_threads)
    stopped = [owner for row in halt.rows for owner in wait_owners(row) if owner.state in ("T", "t")]
    if stopped:
        return (Fix(text="resume it", command=f"kill -CONT {' '.join(str(one.pid) for one in stopped)}"), show_threads)
    last = halt.rows[-1] if halt.own.kind not in ("pipe-write", "file-lock") else own
    fixes_of_kind = _FIXES_BY_KIND.get(last.kind)
    return (*(fixes_of_kind(halt, last) if fixes_of_kind else ()), show_threads)


def _dead_worker_fixes(halt: HaltedProcess) -> tuple[Fix, ...]:
    assert halt.dead_worker is not None
    fixes = [Fix(text="kill and restart it: nothing can deliver what it waits for", command=f"kill {halt.own.pid}")]
    if (halt.dead_worker.exit_code or 0) & 0x7F == _SIGBUS:
        fixes.insert(
            0,
            Fix(
                text="give it more shared memory",
                command="docker run --shm-size=8g ...  # Kubernetes: an emptyDir with medium: Memory at /dev/shm",
            ),
        )
    if (halt.dead_worker.exit_code or 0) & 0x7F == int(signal.SIGKILL):
        fixes.append(
            Fix(text="check whether the kernel OOM-killed it", command="sudo dmesg | grep -i 'killed process'")
        )
    return tuple(fixes)


def _lock_fixes(halt: HaltedProcess, row: HaltRow) -> tuple[Fix, ...]:
    if row.pid != halt.own.pid or _fork_text(halt, row):
        return (
            Fix(
                text="start workers by spawn or forkserver: a fork copies locks that other threads hold",
                command="multiprocessing.set_start_method('spawn')",
            ),
        )
    return (Fix(text="take locks in one order, and hold none while waiting for another thread"),)


def _holder_fixes(halt: HaltedProcess, row: HaltRow) -> tuple[Fix, ...]:
    del halt
    owners = wait_owners(row)
    if not owners:
        return (Fix(text="list processes that have the file open", command=f"sudo lsof {shell_word(row.object)}"),)
    return (
        Fix(
            text="show what the holder does",
            command=f"sudo cat /proc/{owners[0].pid}/stack; py-spy dump --pid {owners[0].pid}",
        ),
    )


def _pipe_fixes(halt: HaltedProcess, row: HaltRow) -> tuple[Fix, ...]:
    del halt
    owners = wait_owners(row)
    if row.kind == "pipe-write" and owners:
        return (
            Fix(
                text="read the pipe where it was made, or give the program a file to write to",
                command=f"timeout 5 cat /proc/{row.pid}/fd/1 > /dev/null  # frees it once, if it is its output",
            ),
        )
    return (Fix(text="check whether its workers are alive", command=f"ps --ppid {row.pid} -o pid,stat,wchan:20,args"),)


def _file_server_fixes(halt: HaltedProcess, row: HaltRow) -> tuple[Fix, ...]:
    del halt
    nfs = "; nfsstat -m" if "(nfs" in row.object else ""
    mount = shell_word(row.object.split(" on ")[0])
    return (Fix(text="check whether the file server answers", command=f"findmnt -T {mount}{nfs}"),)


_FIXES_BY_KIND: dict[str, Callable[[HaltedProcess, HaltRow], tuple[Fix, ...]]] = {
    "futex": _lock_fixes,
    "shared-futex": _lock_fixes,
    "file-lock": _holder_fixes,
    "pipe-read": _pipe_fixes,
    "pipe-write": _pipe_fixes,
    "network-file": _file_server_fixes,
    "terminal-write": lambda _halt, row: (
        Fix(text=f"press Ctrl-Q in the terminal {row.object}"),
        Fix(text="write the output to a file", command="python train.py > train.log 2>&1 < /dev/null &"),
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
    improves_with=("stack_samples",),
    shows="since when no step was made; the waiting thread's state, system call and what it waits for: a pipe and the "
    "process that should read or fill it, a lock and its holder or the fork since which it is held, a file and its "
    "lock's holder or its network mount, a connection's peer, a loop that sleeps, a child; the same for the threads "
    "that could end the wait, workers that have died, and how; and the Python stacks",
    limits="reported after 3 s and 5 baseline steps, where nothing can end the wait; after 5 s, 5 baseline steps and "
    "1.5 times the longest step before, where something could; not reported for a process that serves requests, nor "
    "while a thread that could end the wait computes or uses a disk; a thread that waits for any of several files "
    "(epoll) is not reported, nor one that computes",
    explain=explain,
    find_events=find_events,
)
