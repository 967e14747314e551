"""Processes that have made GPU calls and make none any more: what their threads wait for, looked at once a second.

A wait is followed to whoever could end it: the other end of a pipe, the holder of a lock, the threads of the same
process. Three things can be known of it: that nobody who could end it will, because all of them are gone, stopped, or
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
from ingero.capture.processes.traced_processes import Target, Targets
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

QUIET_NS = SECOND_NS  # without a traced call, before anybody looks: a look costs 1 to 5 ms of a CPU
_ACTIVE_SECONDS = 3  # with traced calls, before a process is expected to make more
_EACH_SECOND_NS, _LATER_NS = 20 * SECOND_NS, 4 * SECOND_NS  # so long each second, then so often
_MOST_CPU_S = 0.1  # of one look; whom it does not reach comes first at the next
_MOST_THREADS = 4  # with traced calls, of a process, beside its first
_MOST_OTHERS = 256  # threads of a process that are asked whether they are at work
_SELDOM = 2  # times since the last look, a second ago: a heartbeat, a progress bar
_MOST_OWNERS = 8
_MOST_SHOWN = 4  # threads that wait for locks
_MOST_DEPTH = 4
_POLLS = 4  # looks in a row at each of which it had slept anew
_MOST_RUN = 0.05  # of a CPU between two of them: more than looking for something is work
_TRIES = 3  # to find a thread asleep that runs for a moment
_SOON_S = 0.004
_MOST_KEPT = 4096  # threads

_ASKS = frozenset(
    {waiting.EVENTS, waiting.ACCEPT, waiting.SOCKET_READ, waiting.TIMER, waiting.OTHER, waiting.SEMAPHORE}
)
_LOCKS = frozenset({waiting.FUTEX, waiting.SHARED_FUTEX})
_AT_WORK = frozenset("RDI")
_STOPPED = THREAD_STATES.index("stopped")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whoever could end a wait. state: the letter of its first thread, "" where it is gone."""

    pid: int
    name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """A thread in a chain of waits; depth 0: of the process that makes no calls any more."""

    pid: int
    tid: int
    depth: int
    wait: Wait
    level: HaltLevel
    object: str = ""
    owners: tuple[Owner, ...] = ()
    then: tuple[Halt, ...] = ()  # the waits of those that could end it

    def chain(self) -> Iterable[Halt]:
        """It, and what it follows from."""
        yield self
        for one in self.then:
            yield from one.chain()


@dataclass(slots=True)
class _Quiet:
    """What is known of a slot's calls. since_ns: CLOCK_MONOTONIC of the second that saw the last one."""

    hits: dict[int, int] = field(default_factory=dict)
    active_seconds: int = 0
    since_ns: int = 0
    since_unix_ns: int = 0
    looked_ns: int = 0


class Halts:
    """Finds halted processes among the targets, and writes rows of `raw_halts`; a context manager around its thread.

    files: who asks what threads wait for.
    """

    def __init__(self, sink: Sink, clock: WallClock, targets: Targets, files: WaitFiles | None = None) -> None:
        self._sink, self._clock, self._targets, self._files = sink, clock, targets, files or WaitFiles()
        self._slots: dict[int, _Quiet] = {}
        self._looker = Looker(PROC, _polled_path, self._files)
        self._is_looking = False
        self._seen: dict[int, HaltLevel] = {}
        self._quiet: frozenset[int] = frozenset()  # numbers of processes that have made calls, and made none lately
        self._chains: dict[int, frozenset[int]] = {}  # by the first's number, those of all in its chain of waits
        self.worker = Worker("ingero-halts", lambda _until_s: None, failed="halts_not_read")

    def second(self, threads: Array) -> int:
        """Accounts of all threads (`struct thread_dump`), once a second; answers how many processes are halted."""
        now_ns = kernel_clock.monotonic_ns()
        due = [target for target in self._targets if target.exit_ns is None and self._is_due(target, threads, now_ns)]
        self._quiet = frozenset(target.number for target in due)
        due.sort(key=lambda target: self._slots[target.slot].looked_ns)
        if due and not self._is_looking:
            self._is_looking = True
            self.worker.do(partial(self._look, [self._asked(one, threads) for one in due]))
        elif due:  # the look of a second ago has not come back: others may not answer, or have many threads
            self.worker.count("halts_not_read")
        self._seen = {number: level for number, level in list(self._seen.items()) if number in self._quiet}
        self._chains = {number: chain for number, chain in list(self._chains.items()) if number in self._quiet}
        return sum(level >= HaltLevel.NAMED for level in self._seen.values())

    @property
    def halted(self) -> frozenset[int]:
        """Numbers of processes that make no calls any more, and of those that they wait for."""
        return self._quiet.union(*list(self._chains.values()))

    def forget(self, slot: int) -> None:
        """Its process has ended."""
        self._slots.pop(slot, None)

    def _is_due(self, target: Target, threads: Array, now_ns: int) -> bool:
        mine = threads[threads["process_slot"] == target.slot]
        slot = self._slots.setdefault(target.slot, _Quiet())
        hits = dict(zip(mine["tid"].tolist(), mine["hits"].tolist(), strict=True))
        is_active = any(count > slot.hits.get(tid, 0) for tid, count in hits.items())
        slot.hits = hits
        is_held = bool((mine["state"] == _STOPPED).all())  # also within a call
        if is_active or (bool(mine["call_start_ns"].any()) and not is_held):
            slot.active_seconds += is_active
            slot.since_ns, slot.since_unix_ns = now_ns, self._clock.unix_ns_of(now_ns)
            self._seen.pop(target.number, None)
        quiet_ns = now_ns - slot.since_ns
        return slot.active_seconds >= _ACTIVE_SECONDS and quiet_ns >= QUIET_NS and len(mine) > 0

    def _asked(self, target: Target, threads: Array) -> _Asked:
        mine = threads[(threads["process_slot"] == target.slot) & (threads["hits"] > 0)]
        most = np.argsort(-mine["hits"].astype(np.int64))[:_MOST_THREADS]
        tids = [target.pid, *(tid for tid in mine["tid"][most].tolist() if tid != target.pid)]
        slot = self._slots[target.slot]
        return _Asked(target, tuple(tids), slot.since_unix_ns)

    def _look(self, asked: Sequence[_Asked]) -> None:
        until_s = time.thread_time() + _MOST_CPU_S
        try:
            for one in asked:
                if time.thread_time() > until_s:
                    return
                slot, now_ns = self._slots.get(one.target.slot), kernel_clock.monotonic_ns()
                if slot is None or not _is_turn(slot, now_ns):
                    continue
                slot.looked_ns = now_ns
                halt = self._looker.look(one.target.pid, one.tids)
                if halt is not None:
                    self._write(one, halt)
                    self._seen[one.target.number] = halt.level
        finally:
            self._looker.end_look()
            self._is_looking = False

    def _write(self, asked: _Asked, halt: Halt) -> None:
        now_ns = self._clock.now_ns()
        memory = self._files.shared_memory(halt.pid)
        targets = {one.pid: self._targets.of_pid(one.pid) for one in halt.chain()}
        self._chains[asked.target.number] = frozenset(one.number for one in targets.values() if one)
        for one in halt.chain():
            target = targets[one.pid]
            row = tables.HALTS.rows(
                1,
                session=self._sink.session,
                time_ns=now_ns,
                halted=asked.target.number,
                since_ns=asked.since_ns,
                depth=one.depth,
                process=target.number if target else 0,
                pid=one.pid,
                tid=one.tid,
                name=self._sink.intern(read_thread_name(one.pid)),
                state=one.wait.state,
                syscall=one.wait.syscall,
                wchan=one.wait.wchan,
                kind=one.wait.kind,
                object=one.object,
                is_timed=int(one.wait.is_timed),
                level=int(one.level),
                owners=json.dumps([[owner.pid, owner.name, owner.state] for owner in one.owners]),
                shm_bytes=memory[0] if memory else None,
                shm_free_bytes=memory[1] if memory else None,
            )
            self._sink.append(tables.HALTS, row)

    def __enter__(self) -> Halts:
        self.worker.__enter__()
        return self

    def __exit__(self, *reason: object) -> None:
        self.worker.__exit__(None, None, None)


@dataclass(frozen=True, slots=True)
class _Asked:
    target: Target
    tids: tuple[int, ...]
    since_ns: int  # unix


def _polled_path(tid: int) -> str:
    try:
        return polled_path(tid, waiting.path_arguments())
    except BpfError as error:  # then only the line tells
        logger.info("cannot see what thread %d polls: %s", tid, error)
        return ""


@dataclass(frozen=True, slots=True)
class _Sleeps:
    """A thread that slept by a timer: at so many looks in a row anew. time_ns: CLOCK_MONOTONIC."""

    looks: int
    switches: int
    ran_ns: int
    time_ns: int


def _is_turn(slot: _Quiet, now_ns: int) -> bool:
    return now_ns - slot.since_ns < _EACH_SECOND_NS or now_ns - slot.looked_ns >= _LATER_NS


class Looker:
    """Follows waits through /proc; one thread's. What it reads of a process is kept until `end_look`.

    path_of: the path that a thread asks for again and again; asked once of one that polls. files: who asks what threads
    wait for, and what processes have open; the rest of /proc nobody withholds.
    """

    def __init__(
        self, proc: Path = PROC, path_of: Callable[[int], str] = lambda _tid: "", files: WaitFiles | None = None
    ) -> None:
        self._proc, self._path_of, self._files = proc, path_of, files or WaitFiles(proc)
        self._pipes = PipeEnds(proc, self._files)
        self._polled: dict[tuple[int, int], str] = {}
        self._waits: dict[tuple[int, int], Wait | None] = {}
        self._locks: list[waiting.FileLock] | None = None
        self._before: dict[tuple[int, int], Wait | None] = {}  # as the last look had it
        self._slept: dict[tuple[int, int], _Sleeps] = {}
        self._mounts: CgroupMounts | None = None

    def look(self, pid: int, tids: Sequence[int]) -> Halt | None:
        """The wait of a process that the most is known of, its first thread's before others; None: it is at work.

        tids: of its threads that made calls, and its first.
        """
        if self._state(pid) in ("t", "T"):
            wait = self._wait(pid, pid) or Wait(state="T")
            tracer = (self._owner(self._process_of(wait.tracer_pid)),) if wait.tracer_pid else ()
            return Halt(pid=pid, tid=pid, depth=0, wait=wait, level=HaltLevel.STOPPED, owners=tracer)
        if frozen := self._frozen(pid):
            return frozen
        found = [self._halt(pid, tid, 0, frozenset()) for tid in tids]
        known = [one for one in found if one is not None]
        if not known or any(one.wait.state in _AT_WORK and one.wait.kind != waiting.NETWORK_FILE for one in known):
            return None
        best = max(known, key=lambda one: (one.level, one.wait.kind not in _LOCKS))
        return best if best.level >= HaltLevel.NAMED else None

    def _frozen(self, pid: int) -> Halt | None:
        """That a process is frozen with its cgroup; the object is the file that says so."""
        self._mounts = self._mounts or read_mounts(self._proc)
        cgroup = read_cgroup(pid, self._mounts, self._proc)
        file = frozen_by(cgroup, self._mounts) if cgroup else None
        if file is None:
            return None
        wait = self._wait(pid, pid) or Wait(state="D")
        return Halt(pid=pid, tid=pid, depth=0, wait=wait, level=HaltLevel.STOPPED, object=str(file))

    def end_look(self) -> None:
        """Forgets what may be otherwise at the next."""
        if len(self._before) > _MOST_KEPT:
            self._before.clear()
            self._slept.clear()
            self._polled.clear()
        self._before |= self._waits
        self._waits.clear()
        self._locks = None
        self._pipes.end_look()

    def _halt(self, pid: int, tid: int, depth: int, above: frozenset[int]) -> Halt | None:
        """above: the processes that wait, in the end, for this one."""
        wait = self._asleep(pid, tid) if depth == 0 else self._wait(pid, tid)
        if wait is None:
            return None
        halt = Halt(pid=pid, tid=tid, depth=depth, wait=wait, level=HaltLevel.AT_WORK)
        follow = _FOLLOW.get(wait.kind)
        found = follow(self, halt, above | {pid}) if follow else halt  # also at the first look: the next compares
        is_still = wait.kind == waiting.TIMER or self._is_still(pid, tid, wait)
        return found if is_still else replace(found, level=HaltLevel.AT_WORK)

    # By what is waited for

    def _lock(self, halt: Halt, above: frozenset[int]) -> Halt:
        """Threads of its own process could end it, or whoever shares the memory."""
        owner = halt.wait.owner_tid
        if owner and owner != halt.tid and not (self._proc / str(halt.pid) / "task" / str(owner)).exists():
            return replace(halt, level=HaltLevel.NEVER, object=f"held by thread {owner}, which does not hold it")
        level, because = self._own_threads(halt, above)
        if halt.wait.kind == waiting.SHARED_FUTEX:
            family = [one for one in self._family(halt.pid) if one not in above]
            levels = [self._process(one, halt.depth + 1, above) for one in family]
            level = min([level, *(one[0] for one in levels)])
            return replace(halt, level=level, owners=tuple(map(self._owner, family[:_MOST_OWNERS])), then=because)
        threads = len(self._threads(halt.pid))
        text = f"all {threads} threads of it wait for locks" if level is HaltLevel.NEVER and threads > 1 else ""
        text = "" if any(one.wait.kind not in _LOCKS for one in because) else text
        return replace(halt, level=level, object=text, then=because)

    def _pipe_read(self, halt: Halt, above: frozenset[int]) -> Halt:
        """Its standard input is what it takes orders from: that is no halt."""
        if halt.wait.fd == 0:
            return halt
        return self._pipe(halt, above, writes=True)

    def _pipe_write(self, halt: Halt, above: frozenset[int]) -> Halt:
        return self._pipe(halt, above, writes=False)

    def _pipe(self, halt: Halt, above: frozenset[int], *, writes: bool) -> Halt:
        ends = self._pipes.find(halt.wait.target, self._family(halt.pid))
        holders = [pid for pid in (ends.writers if writes else ends.readers) if pid != halt.pid]
        owners = tuple(map(self._owner, holders[:_MOST_OWNERS]))
        if not writes and holders:  # it is full, and whoever should read it has not for as long
            busy = any(self._state(pid) in _AT_WORK for pid in holders)
            return replace(halt, level=HaltLevel.NAMED if busy else HaltLevel.NEVER, owners=owners)
        levels = [self._process(pid, halt.depth + 1, above) for pid in holders[:_MOST_OWNERS] if pid not in above]
        because = [one for _, one in levels if one is not None]
        level = min([one for one, _ in levels], default=HaltLevel.NEVER)
        if not holders and halt.pid in (ends.writers if writes else ends.readers):
            own, own_because = self._own_threads(halt, above)
            level, because = max(own, HaltLevel.NAMED), [*own_because]
        if level is HaltLevel.NEVER and not ends.is_complete:
            level = HaltLevel.NAMED
        return replace(halt, level=level, owners=owners, then=tuple(because))

    def _file_lock(self, halt: Halt, above: frozenset[int]) -> Halt:
        if self._locks is None:
            self._locks = waiting.parse_locks(waiting.read_text(self._proc / "locks", most=1 << 20))
        holders = list(dict.fromkeys(one.pid for one in waiting.lock_holders(halt.pid, self._locks)))
        owners = tuple(map(self._owner, holders[:_MOST_OWNERS]))
        del above
        return replace(halt, level=HaltLevel.NEVER, object=halt.wait.target, owners=owners)

    def _network_file(self, halt: Halt, above: frozenset[int]) -> Halt:
        del above
        wait = halt.wait
        place = f"{wait.target} on {wait.source} ({wait.file_system})"
        return replace(halt, level=HaltLevel.NAMED, object=place)

    def _socket(self, halt: Halt, above: frozenset[int]) -> Halt:
        """Of a connection that came in, it waits for a request: that is no halt."""
        del above
        peer = waiting.find_peer(halt.pid, halt.wait.inode, self._proc)
        if peer is None or peer.state == "LISTEN":
            return halt
        is_server = peer.local_port and waiting.is_listening(halt.pid, peer.local_port, self._proc)
        state = f", {peer.state}" if peer.state and peer.state != "ESTABLISHED" else ""
        text = f"{peer.protocol} {peer.remote}{state}".strip()
        return replace(halt, level=HaltLevel.AT_WORK if is_server else HaltLevel.NAMED, object=text)

    def _child(self, halt: Halt, above: frozenset[int]) -> Halt:
        children = [pid for pid in self._children(halt.pid) if pid not in above][:_MOST_OWNERS]
        if not children:
            return halt
        levels = [self._process(pid, halt.depth + 1, above) for pid in children]
        because = tuple(one for _, one in levels if one is not None)
        level = min(one for one, _ in levels)
        return replace(halt, level=level, owners=tuple(map(self._owner, children)), then=because)

    def _timer(self, halt: Halt, above: frozenset[int]) -> Halt:
        """A sleep by itself is the program's choice; one after the other, with nothing between, looks for something."""
        del above
        if halt.depth:
            return halt
        now = _Sleeps(1, halt.wait.switches, self._ran_ns(halt.pid, halt.tid), kernel_clock.monotonic_ns())
        before = self._slept.get((halt.pid, halt.tid))
        if before and now.switches > before.switches + 1:
            is_idle = now.ran_ns - before.ran_ns <= _MOST_RUN * (now.time_ns - before.time_ns)
            now = replace(now, looks=before.looks + 1 if is_idle else 1)
        self._slept[halt.pid, halt.tid] = now
        if now.looks < _POLLS:
            return halt
        if (halt.pid, halt.tid) not in self._polled:
            path = self._path_of(halt.tid)
            self._polled[halt.pid, halt.tid] = waiting.absolute(self._files.folder(halt.pid), path)
        return replace(halt, level=HaltLevel.NAMED, object=self._polled[halt.pid, halt.tid])

    # Whoever could end it

    def _own_threads(self, halt: Halt, above: frozenset[int]) -> tuple[HaltLevel, tuple[Halt, ...]]:
        """Whether the other threads of a process could end the wait of one, and what else they wait for."""
        others = [tid for tid in self._threads(halt.pid) if tid != halt.tid]
        if len(others) > _MOST_OTHERS:
            return HaltLevel.NAMED, ()
        level = HaltLevel.NEVER
        because: list[Halt] = []
        self._read(halt.pid, others)
        for tid, wait in [(tid, self._wait(halt.pid, tid)) for tid in others]:
            if wait is None:
                continue
            if wait.kind in _LOCKS:
                if len(because) < _MOST_SHOWN and halt.wait.kind in _LOCKS:
                    because.append(Halt(pid=halt.pid, tid=tid, depth=halt.depth + 1, wait=wait, level=HaltLevel.NAMED))
                continue
            if not self._is_quiet(halt.pid, tid, wait):
                return HaltLevel.AT_WORK, ()
            if wait.kind in _ASKS:
                level = min(level, HaltLevel.NAMED)
            elif halt.depth < _MOST_DEPTH:
                one = self._halt(halt.pid, tid, halt.depth + 1, above)
                if one is None or one.level is HaltLevel.AT_WORK:
                    return HaltLevel.AT_WORK, ()
                because.append(one)
        return level, tuple(because)

    def _process(self, pid: int, depth: int, above: frozenset[int]) -> tuple[HaltLevel, Halt | None]:
        """Whether a process that could end a wait is at work."""
        state = self._state(pid)
        if state in ("", "Z", "X", "T", "t"):
            return HaltLevel.NEVER, None
        if state in _AT_WORK or depth > _MOST_DEPTH:
            return HaltLevel.AT_WORK, None
        if any(self._thread_state(pid, tid) in _AT_WORK for tid in self._threads(pid)[:_MOST_OTHERS]):
            return HaltLevel.AT_WORK, None
        halt = self._halt(pid, pid, depth, above)
        if halt is None:
            return HaltLevel.NEVER, None
        if halt.wait.kind in _ASKS - {waiting.SOCKET_READ, waiting.TIMER}:
            return (HaltLevel.NAMED if self._is_quiet(pid, pid, halt.wait) else HaltLevel.AT_WORK), halt
        return halt.level, halt

    def _is_still(self, pid: int, tid: int, wait: Wait) -> bool:
        """Whether a thread is in the very sleep that the last look saw, or in the next piece of one with a timeout."""
        before = self._before.get((pid, tid))
        if wait.state in _AT_WORK and wait.kind != waiting.NETWORK_FILE:
            return False
        if before is None:
            return False
        is_same = (before.kind, before.target, before.address) == (wait.kind, wait.target, wait.address)
        return is_same and (before.switches == wait.switches or (wait.is_timed and before.is_timed))

    def _is_quiet(self, pid: int, tid: int, wait: Wait) -> bool:
        """Whether a thread that could end a wait slept since the last look, or ran so seldom that it keeps house."""
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
        """Many at once where many are wanted: each question takes 0.2 ms."""
        new = [tid for tid in tids if (pid, tid) not in self._waits]
        if new:
            self._waits |= {(pid, tid): wait for tid, wait in zip(new, self._files.waits(pid, new), strict=True)}

    def _owner(self, pid: int) -> Owner:
        return Owner(pid, read_thread_name(pid, self._proc), self._state(pid))

    def _process_of(self, tid: int) -> int:
        """The process of a thread: a debugger may have threads, and one of them holds another process."""
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
            for tid in self._threads(pid)[:_MOST_OTHERS]
        )
        return [int(word) for text in texts for word in text.split() if word.isdecimal()]

    def _family(self, pid: int) -> list[int]:
        """Its children, its parent and its parent's other children: those that share pipes and memory with it."""
        status = waiting.read_text(self._proc / str(pid) / "status")
        parent = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:")), 0)
        near = [*self._children(pid), *([parent, *self._children(parent)] if parent > 1 else [])]
        return [one for one in dict.fromkeys(near) if one != pid][:_MOST_OTHERS]


_Follow = Callable[[Looker, Halt, frozenset[int]], Halt]
_FOLLOW: dict[str, _Follow] = {
    waiting.FUTEX: Looker._lock,
    waiting.SHARED_FUTEX: Looker._lock,
    waiting.PIPE_READ: Looker._pipe_read,
    waiting.PIPE_WRITE: Looker._pipe_write,
    waiting.FILE_LOCK: Looker._file_lock,
    waiting.NETWORK_FILE: Looker._network_file,
    waiting.SOCKET_READ: Looker._socket,
    waiting.SOCKET_WRITE: Looker._socket,
    waiting.CHILD: Looker._child,
    waiting.TIMER: Looker._timer,
}
