"""Finds processes that have stopped making GPU calls, and what their threads wait for, once a second.

A wait is followed to what could end it: the other end of a pipe, the holder of a lock, the threads of the same
process. Three things can be known of it: that none that could end it will, because all of them are gone, stopped, or
wait themselves for somebody in this chain; what it waits for, by name; or that somebody who could end it is at work.
Of the last nothing is written: it is no halt.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ingero.attach.libbpf import BpfError
from ingero.attach.polled_paths import polled_path
from ingero.capture.loop.clocks import WallClock
from ingero.capture.loop.worker import Worker
from ingero.capture.processes.traced_processes import TracedProcess, TracedProcesses
from ingero.capture.records.rows import Sink
from ingero.discover import kernel_clock, waiting
from ingero.discover.cgroups import CgroupMounts, frozen_by, read_cgroup, read_mounts
from ingero.discover.pipe_ends import PipeEnds
from ingero.discover.processes import PROC, read_thread_name
from ingero.discover.wait_files import WaitFiles
from ingero.discover.waiting import Wait
from ingero.events import THREAD_STATES
from ingero.store.records import HaltLevel
from ingero.store.writing import tables
from ingero.units import SECOND_NS

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]

QUIET_NS = SECOND_NS  # without a traced call, before a pass: one costs 1 to 5 ms of a CPU
_ACTIVE_SECONDS = 3  # with traced calls, before a process is expected to make more
_EACH_SECOND_NS, _LATER_NS = 20 * SECOND_NS, 4 * SECOND_NS  # so long each second, then so often
_MAX_CPU_S = 0.1  # of one pass; processes it does not reach come first in the next
_MAX_THREADS = 4  # with traced calls, of a process, beside its first
_MAX_OTHERS = 256  # threads of a process that are asked whether they are at work
_SELDOM = 2  # times since the last pass, a second ago: a heartbeat, a progress bar
_MAX_OWNERS = 8
_MAX_SHOWN = 4  # threads that wait for locks
_MAX_DEPTH = 4
_POLLS = 4  # passes in a row in each of which it had slept anew
_MAX_RUN = 0.05  # of a CPU between two of them: more than looking for something is work
_TRIES = 3  # to find a thread asleep that runs for a moment
_SOON_S = 0.004
_MAX_KEPT = 4096  # threads

_ASKS = frozenset(
    {waiting.EVENTS, waiting.ACCEPT, waiting.SOCKET_READ, waiting.TIMER, waiting.OTHER, waiting.SEMAPHORE}
)
_LOCKS = frozenset({waiting.FUTEX, waiting.SHARED_FUTEX})
_AT_WORK = frozenset("RDI")
_STOPPED = THREAD_STATES.index("stopped")


@dataclass(frozen=True, slots=True)
class WaitOwner:
    """A process that could end a wait. state: the letter of its first thread, "" if it is gone."""

    pid: int
    name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltedWait:
    """A waiting thread in a chain of waits; depth 0: of the process that makes no calls any more."""

    pid: int
    tid: int
    depth: int
    wait: Wait
    level: HaltLevel
    object: str = ""
    owners: tuple[WaitOwner, ...] = ()
    waits_behind: tuple[HaltedWait, ...] = ()  # the waits of those that could end it

    def chain(self) -> Iterable[HaltedWait]:
        """This wait and all waits behind it."""
        yield self
        for wait in self.waits_behind:
            yield from wait.chain()


@dataclass(slots=True)
class _CallActivity:
    """The latest calls of a process slot. since_ns: CLOCK_MONOTONIC of the second with the last call."""

    hits: dict[int, int] = field(default_factory=dict)
    active_seconds: int = 0
    since_ns: int = 0
    since_unix_ns: int = 0
    followed_ns: int = 0


class HaltDetector:
    """Finds halted traced processes and writes `raw_halts`; a context manager around its thread.

    files: who asks what threads wait for.
    """

    def __init__(
        self, sink: Sink, clock: WallClock, traced_processes: TracedProcesses, files: WaitFiles | None = None
    ) -> None:
        self._sink, self._clock, self._traced_processes, self._files = (
            sink,
            clock,
            traced_processes,
            files or WaitFiles(),
        )
        self._slots: dict[int, _CallActivity] = {}
        self._wait_follower = WaitFollower(PROC, _polled_path, self._files)
        self._is_following = False
        self._seen: dict[int, HaltLevel] = {}
        self._quiet: frozenset[int] = frozenset()  # numbers of processes that have made calls, and made none lately
        self._chains: dict[int, frozenset[int]] = {}  # by the first's number, those of all in its chain of waits
        self.worker = Worker("ingero-halts", lambda _until_s: None, failed="halts_not_read")

    def second(self, threads: Array) -> int:
        """Takes all threads (`struct thread_dump`) once a second; returns how many processes are halted."""
        now_ns = kernel_clock.monotonic_ns()
        due = [
            traced_process
            for traced_process in self._traced_processes
            if traced_process.exit_ns is None and self._is_due(traced_process, threads, now_ns)
        ]
        self._quiet = frozenset(traced_process.number for traced_process in due)
        due.sort(key=lambda traced_process: self._slots[traced_process.slot].followed_ns)
        if due and not self._is_following:
            self._is_following = True
            self.worker.do(partial(self._follow_waits, [self._asked(one, threads) for one in due]))
        elif due:  # the pass of a second ago has not returned: others may not answer, or have many threads
            self.worker.count("halts_not_read")
        self._seen = {number: level for number, level in list(self._seen.items()) if number in self._quiet}
        self._chains = {number: chain for number, chain in list(self._chains.items()) if number in self._quiet}
        return sum(level >= HaltLevel.NAMED for level in self._seen.values())

    @property
    def halted(self) -> frozenset[int]:
        """Numbers of processes that make no calls any more, and of those they wait for."""
        return self._quiet.union(*list(self._chains.values()))

    def forget(self, slot: int) -> None:
        """Forgets a slot whose process has ended."""
        self._slots.pop(slot, None)

    def _is_due(self, traced_process: TracedProcess, threads: Array, now_ns: int) -> bool:
        mine = threads[threads["process_slot"] == traced_process.slot]
        slot = self._slots.setdefault(traced_process.slot, _CallActivity())
        hits = dict(zip(mine["tid"].tolist(), mine["hits"].tolist(), strict=True))
        is_active = any(count > slot.hits.get(tid, 0) for tid, count in hits.items())
        slot.hits = hits
        is_held = bool((mine["state"] == _STOPPED).all())  # also within a call
        if is_active or (bool(mine["call_start_ns"].any()) and not is_held):
            slot.active_seconds += is_active
            slot.since_ns, slot.since_unix_ns = now_ns, self._clock.unix_ns_of(now_ns)
            self._seen.pop(traced_process.number, None)
        quiet_ns = now_ns - slot.since_ns
        return slot.active_seconds >= _ACTIVE_SECONDS and quiet_ns >= QUIET_NS and len(mine) > 0

    def _asked(self, traced_process: TracedProcess, threads: Array) -> _SuspectProcess:
        mine = threads[(threads["process_slot"] == traced_process.slot) & (threads["hits"] > 0)]
        most = np.argsort(-mine["hits"].astype(np.int64))[:_MAX_THREADS]
        tids = [traced_process.pid, *(tid for tid in mine["tid"][most].tolist() if tid != traced_process.pid)]
        slot = self._slots[traced_process.slot]
        return _SuspectProcess(traced_process, tuple(tids), slot.since_unix_ns)

    def _follow_waits(self, suspects: Sequence[_SuspectProcess]) -> None:
        until_s = time.thread_time() + _MAX_CPU_S
        try:
            for suspect in suspects:
                if time.thread_time() > until_s:
                    return
                slot, now_ns = self._slots.get(suspect.traced_process.slot), kernel_clock.monotonic_ns()
                if slot is None or not _is_turn(slot, now_ns):
                    continue
                slot.followed_ns = now_ns
                halt = self._wait_follower.follow(suspect.traced_process.pid, suspect.tids)
                if halt is not None:
                    self._write(suspect, halt)
                    self._seen[suspect.traced_process.number] = halt.level
        finally:
            self._wait_follower.end_pass()
            self._is_following = False

    def _write(self, suspect: _SuspectProcess, halt: HaltedWait) -> None:
        now_ns = self._clock.now_ns()
        memory = self._files.shared_memory(halt.pid)
        traced_processes = {wait.pid: self._traced_processes.of_pid(wait.pid) for wait in halt.chain()}
        self._chains[suspect.traced_process.number] = frozenset(
            wait.number for wait in traced_processes.values() if wait
        )
        for wait in halt.chain():
            traced_process = traced_processes[wait.pid]
            row = tables.HALTS.rows(
                1,
                session=self._sink.session,
                time_ns=now_ns,
                halted=suspect.traced_process.number,
                since_ns=suspect.since_ns,
                depth=wait.depth,
                process=traced_process.number if traced_process else 0,
                pid=wait.pid,
                tid=wait.tid,
                name=self._sink.intern(read_thread_name(wait.pid)),
                state=wait.wait.state,
                syscall=wait.wait.syscall,
                wchan=wait.wait.wchan,
                kind=wait.wait.kind,
                object=wait.object,
                is_timed=int(wait.wait.is_timed),
                level=int(wait.level),
                owners=json.dumps([[owner.pid, owner.name, owner.state] for owner in wait.owners]),
                shm_bytes=memory[0] if memory else None,
                shm_free_bytes=memory[1] if memory else None,
            )
            self._sink.append(tables.HALTS, row)

    def __enter__(self) -> HaltDetector:
        self.worker.__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        self.worker.__exit__(None, None, None)


@dataclass(frozen=True, slots=True)
class _SuspectProcess:
    traced_process: TracedProcess
    tids: tuple[int, ...]
    since_ns: int  # unix


def _polled_path(tid: int) -> str:
    try:
        return polled_path(tid, waiting.path_arguments())
    except BpfError as error:  # then only the line tells
        logger.info("cannot see what thread %d polls: %s", tid, error)
        return ""


@dataclass(frozen=True, slots=True)
class _TimerSleeps:
    """A thread found in a new timer sleep at this many passes in a row. time_ns: CLOCK_MONOTONIC."""

    passes: int
    switches: int
    ran_ns: int
    time_ns: int


def _is_turn(slot: _CallActivity, now_ns: int) -> bool:
    return now_ns - slot.since_ns < _EACH_SECOND_NS or now_ns - slot.followed_ns >= _LATER_NS


class WaitFollower:
    """Follows waits through /proc; for one thread. What it reads is cached until `end_pass`.

    path_of: the path that a thread asks for again and again; asked once of one that polls. files: who asks what threads
    wait for, and what processes have open; the rest of /proc cannot be withheld.
    """

    def __init__(
        self, proc: Path = PROC, path_of: Callable[[int], str] = lambda _tid: "", files: WaitFiles | None = None
    ) -> None:
        self._proc, self._path_of, self._files = proc, path_of, files or WaitFiles(proc)
        self._pipes = PipeEnds(proc, self._files)
        self._polled: dict[tuple[int, int], str] = {}
        self._waits: dict[tuple[int, int], Wait | None] = {}
        self._locks: list[waiting.FileLock] | None = None
        self._before: dict[tuple[int, int], Wait | None] = {}  # as in the last pass
        self._slept: dict[tuple[int, int], _TimerSleeps] = {}
        self._mounts: CgroupMounts | None = None

    def follow(self, pid: int, tids: Sequence[int]) -> HaltedWait | None:
        """The best-known wait of a process, preferably of its first thread; None: it is at work.

        tids: of its threads that made calls, and its first.
        """
        if self._state(pid) in ("t", "T"):
            wait = self._wait(pid, pid) or Wait(state="T")
            tracer = (self._owner(self._process_of(wait.tracer_pid)),) if wait.tracer_pid else ()
            return HaltedWait(pid=pid, tid=pid, depth=0, wait=wait, level=HaltLevel.STOPPED, owners=tracer)
        if frozen := self._frozen(pid):
            return frozen
        found = [self._halt(pid, tid, 0, frozenset()) for tid in tids]
        known = [one for one in found if one is not None]
        if not known or any(one.wait.state in _AT_WORK and one.wait.kind != waiting.NETWORK_FILE for one in known):
            return None
        best = max(known, key=lambda one: (one.level, one.wait.kind not in _LOCKS))
        return best if best.level >= HaltLevel.NAMED else None

    def _frozen(self, pid: int) -> HaltedWait | None:
        """The wait of a process frozen with its cgroup; its object is the file that says so."""
        self._mounts = self._mounts or read_mounts(self._proc)
        cgroup = read_cgroup(pid, self._mounts, self._proc)
        file = frozen_by(cgroup, self._mounts) if cgroup else None
        if file is None:
            return None
        wait = self._wait(pid, pid) or Wait(state="D")
        return HaltedWait(pid=pid, tid=pid, depth=0, wait=wait, level=HaltLevel.STOPPED, object=str(file))

    def end_pass(self) -> None:
        """Clears the cache at the end of a pass."""
        if len(self._before) > _MAX_KEPT:
            self._before.clear()
            self._slept.clear()
            self._polled.clear()
        self._before |= self._waits
        self._waits.clear()
        self._locks = None
        self._pipes.end_pass()

    def _halt(self, pid: int, tid: int, depth: int, above: frozenset[int]) -> HaltedWait | None:
        """above: the processes that wait, in the end, for this one."""
        wait = self._asleep(pid, tid) if depth == 0 else self._wait(pid, tid)
        if wait is None:
            return None
        halt = HaltedWait(pid=pid, tid=tid, depth=depth, wait=wait, level=HaltLevel.AT_WORK)
        follow = _FOLLOW.get(wait.kind)
        found = follow(self, halt, above | {pid}) if follow else halt  # also in the first pass: the next one compares
        is_still = wait.kind == waiting.TIMER or self._is_still(pid, tid, wait)
        return found if is_still else replace(found, level=HaltLevel.AT_WORK)

    # By what is waited for

    def _lock(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        """A lock: threads of the same process, or processes that share the memory, could end the wait."""
        owner = halt.wait.owner_tid
        if owner and owner != halt.tid and not (self._proc / str(halt.pid) / "task" / str(owner)).exists():
            return replace(halt, level=HaltLevel.NEVER, object=f"held by thread {owner}, which does not hold it")
        level, because = self._own_threads(halt, above)
        if halt.wait.kind == waiting.SHARED_FUTEX:
            family = [one for one in self._family(halt.pid) if one not in above]
            levels = [self._process(one, halt.depth + 1, above) for one in family]
            level = min([level, *(one[0] for one in levels)])
            return replace(
                halt, level=level, owners=tuple(map(self._owner, family[:_MAX_OWNERS])), waits_behind=because
            )
        threads = len(self._threads(halt.pid))
        text = f"all {threads} threads of it wait for locks" if level is HaltLevel.NEVER and threads > 1 else ""
        text = "" if any(one.wait.kind not in _LOCKS for one in because) else text
        return replace(halt, level=level, object=text, waits_behind=because)

    def _pipe_read(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        """A read from a pipe; from standard input, a process waits for commands: that is no halt."""
        if halt.wait.fd == 0:
            return halt
        return self._pipe(halt, above, writes=True)

    def _pipe_write(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        return self._pipe(halt, above, writes=False)

    def _pipe(self, halt: HaltedWait, above: frozenset[int], *, writes: bool) -> HaltedWait:
        ends = self._pipes.find(halt.wait.target, self._family(halt.pid))
        holders = [pid for pid in (ends.writers if writes else ends.readers) if pid != halt.pid]
        owners = tuple(map(self._owner, holders[:_MAX_OWNERS]))
        if not writes and holders:  # it is full, and its readers have not read for as long
            busy = any(self._state(pid) in _AT_WORK for pid in holders)
            return replace(halt, level=HaltLevel.NAMED if busy else HaltLevel.NEVER, owners=owners)
        levels = [self._process(pid, halt.depth + 1, above) for pid in holders[:_MAX_OWNERS] if pid not in above]
        because = [one for _, one in levels if one is not None]
        level = min([one for one, _ in levels], default=HaltLevel.NEVER)
        if not holders and halt.pid in (ends.writers if writes else ends.readers):
            own, own_because = self._own_threads(halt, above)
            level, because = max(own, HaltLevel.NAMED), [*own_because]
        if level is HaltLevel.NEVER and not ends.is_complete:
            level = HaltLevel.NAMED
        return replace(halt, level=level, owners=owners, waits_behind=tuple(because))

    def _file_lock(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        if self._locks is None:
            self._locks = waiting.parse_locks(waiting.read_text(self._proc / "locks", most=1 << 20))
        holders = list(dict.fromkeys(one.pid for one in waiting.lock_holders(halt.pid, self._locks)))
        owners = tuple(map(self._owner, holders[:_MAX_OWNERS]))
        del above
        return replace(halt, level=HaltLevel.NEVER, object=halt.wait.target, owners=owners)

    def _network_file(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        del above
        wait = halt.wait
        place = f"{wait.target} on {wait.source} ({wait.file_system})"
        return replace(halt, level=HaltLevel.NAMED, object=place)

    def _terminal_write(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        del above
        return replace(halt, level=HaltLevel.NAMED, object=halt.wait.target)

    def _socket(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        """A socket; on an incoming connection it waits for a request: that is no halt."""
        del above
        peer = waiting.find_peer(halt.pid, halt.wait.inode, self._proc)
        if peer is None or peer.state == "LISTEN":
            return halt
        is_server = peer.local_port and waiting.is_listening(halt.pid, peer.local_port, self._proc)
        state = f", {peer.state}" if peer.state and peer.state != "ESTABLISHED" else ""
        text = f"{peer.protocol} {peer.remote}{state}".strip()
        return replace(halt, level=HaltLevel.AT_WORK if is_server else HaltLevel.NAMED, object=text)

    def _child(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        children = [pid for pid in self._children(halt.pid) if pid not in above][:_MAX_OWNERS]
        if not children:
            return halt
        levels = [self._process(pid, halt.depth + 1, above) for pid in children]
        because = tuple(one for _, one in levels if one is not None)
        level = min(one for one, _ in levels)
        return replace(halt, level=level, owners=tuple(map(self._owner, children)), waits_behind=because)

    def _timer(self, halt: HaltedWait, above: frozenset[int]) -> HaltedWait:
        """A timer sleep; a single one is the program's choice, but sleeps in a row with nothing between are polling."""
        del above
        if halt.depth:
            return halt
        now = _TimerSleeps(1, halt.wait.switches, self._ran_ns(halt.pid, halt.tid), kernel_clock.monotonic_ns())
        before = self._slept.get((halt.pid, halt.tid))
        if before and now.switches > before.switches + 1:
            is_idle = now.ran_ns - before.ran_ns <= _MAX_RUN * (now.time_ns - before.time_ns)
            now = replace(now, passes=before.passes + 1 if is_idle else 1)
        self._slept[halt.pid, halt.tid] = now
        if now.passes < _POLLS:
            return halt
        if (halt.pid, halt.tid) not in self._polled:
            path = self._path_of(halt.tid)
            self._polled[halt.pid, halt.tid] = waiting.absolute(self._files.folder(halt.pid), path)
        return replace(halt, level=HaltLevel.NAMED, object=self._polled[halt.pid, halt.tid])

    # Whoever could end it

    def _own_threads(self, halt: HaltedWait, above: frozenset[int]) -> tuple[HaltLevel, tuple[HaltedWait, ...]]:
        """Whether other threads of the process could end this wait, and what they wait for themselves."""
        others = [tid for tid in self._threads(halt.pid) if tid != halt.tid]
        if len(others) > _MAX_OTHERS:
            return HaltLevel.NAMED, ()
        level = HaltLevel.NEVER
        because: list[HaltedWait] = []
        self._read(halt.pid, others)
        for tid, wait in [(tid, self._wait(halt.pid, tid)) for tid in others]:
            if wait is None:
                continue
            if wait.kind in _LOCKS:
                if len(because) < _MAX_SHOWN and halt.wait.kind in _LOCKS:
                    because.append(
                        HaltedWait(pid=halt.pid, tid=tid, depth=halt.depth + 1, wait=wait, level=HaltLevel.NAMED)
                    )
                continue
            if not self._is_quiet(halt.pid, tid, wait):
                return HaltLevel.AT_WORK, ()
            if wait.kind in _ASKS:
                level = min(level, HaltLevel.NAMED)
            elif halt.depth < _MAX_DEPTH:
                halted = self._halt(halt.pid, tid, halt.depth + 1, above)
                if halted is None or halted.level is HaltLevel.AT_WORK:
                    return HaltLevel.AT_WORK, ()
                because.append(halted)
        return level, tuple(because)

    def _process(self, pid: int, depth: int, above: frozenset[int]) -> tuple[HaltLevel, HaltedWait | None]:
        """Whether a process that could end a wait is at work, and its own wait if not."""
        state = self._state(pid)
        if state in ("", "Z", "X", "T", "t"):
            return HaltLevel.NEVER, None
        if state in _AT_WORK or depth > _MAX_DEPTH:
            return HaltLevel.AT_WORK, None
        if any(self._thread_state(pid, tid) in _AT_WORK for tid in self._threads(pid)[:_MAX_OTHERS]):
            return HaltLevel.AT_WORK, None
        halt = self._halt(pid, pid, depth, above)
        if halt is None:
            return HaltLevel.NEVER, None
        if halt.wait.kind in _ASKS - {waiting.SOCKET_READ, waiting.TIMER}:
            return (HaltLevel.NAMED if self._is_quiet(pid, pid, halt.wait) else HaltLevel.AT_WORK), halt
        return halt.level, halt

    def _is_still(self, pid: int, tid: int, wait: Wait) -> bool:
        """Whether a thread is in the same sleep as at the last pass, or in the next piece of one with a timeout."""
        before = self._before.get((pid, tid))
        if wait.state in _AT_WORK and wait.kind != waiting.NETWORK_FILE:
            return False
        if before is None:
            return False
        is_same = (before.kind, before.target, before.address) == (wait.kind, wait.target, wait.address)
        return is_same and (before.switches == wait.switches or (wait.is_timed and before.is_timed))

    def _is_quiet(self, pid: int, tid: int, wait: Wait) -> bool:
        """Whether a thread that could end a wait slept since the last pass, or ran only for housekeeping."""
        before = self._before.get((pid, tid))
        if before is None or (wait.state in _AT_WORK and wait.kind != waiting.NETWORK_FILE):
            return False
        if wait.is_timed and wait.kind in _ASKS:
            return wait.switches - before.switches <= _SELDOM
        return self._is_still(pid, tid, wait)

    def _asleep(self, pid: int, tid: int) -> Wait | None:
        for _ in range(_TRIES):
            wait = self._wait(pid, tid)
            if wait is None or wait.state != "R":
                return wait
            self._waits.pop((pid, tid), None)
            time.sleep(_SOON_S)
        return self._wait(pid, tid)

    def _wait(self, pid: int, tid: int) -> Wait | None:
        self._read(pid, [tid])
        return self._waits[pid, tid]

    def _read(self, pid: int, tids: Sequence[int]) -> None:
        """Reads the waits of many threads at once: each question takes 0.2 ms."""
        new = [tid for tid in tids if (pid, tid) not in self._waits]
        if new:
            self._waits |= {(pid, tid): wait for tid, wait in zip(new, self._files.waits(pid, new), strict=True)}

    def _owner(self, pid: int) -> WaitOwner:
        return WaitOwner(pid, read_thread_name(pid, self._proc), self._state(pid))

    def _process_of(self, tid: int) -> int:
        """The process of a thread: the tracer of a process may be any thread of a debugger."""
        status = waiting.read_text(self._proc / str(tid) / "status")
        return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("Tgid:")), tid)

    def _state(self, pid: int) -> str:
        return self._thread_state(pid, pid)

    def _thread_state(self, pid: int, tid: int) -> str:
        status = waiting.read_text(self._proc / str(pid) / "task" / str(tid) / "status")  # `stat` may be withheld
        return next((line.split()[1] for line in status.splitlines() if line.startswith("State:")), "")

    def _ran_ns(self, pid: int, tid: int) -> int:
        words = waiting.read_text(self._proc / str(pid) / "task" / str(tid) / "schedstat").split()
        return int(words[0]) if words and words[0].isdecimal() else 0

    def _threads(self, pid: int) -> list[int]:
        try:
            return sorted(int(one.name) for one in (self._proc / str(pid) / "task").iterdir())
        except OSError:
            return []

    def _children(self, pid: int) -> list[int]:
        texts = (
            waiting.read_text(self._proc / str(pid) / "task" / str(tid) / "children")
            for tid in self._threads(pid)[:_MAX_OTHERS]
        )
        return [int(word) for text in texts for word in text.split() if word.isdecimal()]

    def _family(self, pid: int) -> list[int]:
        """Children, parent and siblings of a process: those that share pipes and memory with it."""
        status = waiting.read_text(self._proc / str(pid) / "status")
        parent = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:")), 0)
        near = [*self._children(pid), *([parent, *self._children(parent)] if parent > 1 else [])]
        return [one for one in dict.fromkeys(near) if one != pid][:_MAX_OTHERS]


_Follow = Callable[[WaitFollower, HaltedWait, frozenset[int]], HaltedWait]
_FOLLOW: dict[str, _Follow] = {
    waiting.FUTEX: WaitFollower._lock,
    waiting.SHARED_FUTEX: WaitFollower._lock,
    waiting.PIPE_READ: WaitFollower._pipe_read,
    waiting.PIPE_WRITE: WaitFollower._pipe_write,
    waiting.FILE_LOCK: WaitFollower._file_lock,
    waiting.NETWORK_FILE: WaitFollower._network_file,
    waiting.TERMINAL_WRITE: WaitFollower._terminal_write,
    waiting.SOCKET_READ: WaitFollower._socket,
    waiting.SOCKET_WRITE: WaitFollower._socket,
    waiting.CHILD: WaitFollower._child,
    waiting.TIMER: WaitFollower._timer,
}
