"""The traced processes: slot, start and known facts of each."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

from ingero.attach.kernel_side import MAX_PROCESSES, KernelSide
from ingero.capture.loop.rings import Backlog
from ingero.capture.processes.callers import CallerLocations
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.processes import ProcessId, is_alive, read_process, read_process_id

logger = logging.getLogger(__name__)

_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_REFUSED_KEPT = 1024  # by name; how many there were is counted
TICKS_UNTIL_RECYCLED = 2  # readings of the kernel's sums after the end, so that the last one has seen everything


@dataclass(slots=True, kw_only=True)
class TracedProcess:
    """One traced process.

    identity: rank, container and job, for people; container: its id; cgroup_path: as last read.
    number: its number in the database. start_ns: unix. exit_ns: unix, None while it lives; ticks_gone counts readings
    since; backlog: the records that may still be its own.
    """

    slot: int
    id: ProcessId
    number: int
    start_ns: int
    name: str
    callers: CallerLocations
    exit_ns: int | None = None
    exit_code: int | None = None
    ticks_gone: int = 0
    backlog: Backlog = field(default_factory=Backlog)
    is_described: bool = False
    identity: str = ""
    rank: int | None = None
    world_size: int | None = None
    container: str | None = None
    cgroup_path: str = ""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.id.pid


class TracedProcesses:
    """All traced processes, by slot and by pid.

    boot_unix_ns: wall-clock time of CLOCK_BOOTTIME 0. number_of: database number of (pid, start_ns).
    """

    def __init__(
        self,
        kernel: KernelSide,
        boot_unix_ns: int,
        number_of: Callable[[int, int], int],
        files: MemoryFiles | None = None,
    ) -> None:
        self._kernel, self._boot_unix_ns, self._number_of = kernel, boot_unix_ns, number_of
        self._files = files or MemoryFiles()
        self._by_slot: dict[int, TracedProcess] = {}
        self._by_pid: dict[int, TracedProcess] = {}
        self.refused: dict[ProcessId, str] = {}  # by name; processes that found no slot, and were not traced until then
        self._waiting: set[ProcessId] = set()
        self._uncounted = 0

    def __iter__(self) -> Iterator[TracedProcess]:
        return iter(list(self._by_slot.values()))

    def __len__(self) -> int:
        return len(self._by_pid)

    def at(self, slot: int) -> TracedProcess | None:
        """The traced process in a slot; also a child whose fork the kernel has not reported yet."""
        return self._by_slot.get(slot) or self._newborn(slot)

    def _newborn(self, slot: int) -> TracedProcess | None:
        # its sums may be read before its lifecycle record, and without an entry they would be lost
        found = self._kernel.process_at(slot)
        return self.on_admitted(found[0], slot, found[1]) if found else None

    def of_pid(self, pid: int) -> TracedProcess | None:
        """The living traced process with this pid."""
        return self._by_pid.get(pid)

    def add(self, pid: int) -> TracedProcess | None:
        """Begins to trace a running process; None if it has ended meanwhile or no slot is left."""
        if pid in self._by_pid:
            return self._by_pid[pid]
        stat_of = self._files.stat
        identity = read_process_id(pid, stat_of=stat_of)
        if identity is None or not is_alive(
            identity, stat_of=stat_of
        ):  # one that nobody has waited for would take a slot in vain
            return None
        slot = self._kernel.enroll(pid, identity.start_ticks * _NS_PER_TICK)
        if slot is None:
            if identity not in self.refused:
                self._uncounted += 1
                self._refuse(identity, "")
            return None
        self._waiting.discard(identity)
        known = self._by_slot.get(slot)
        traced_process = known if known and known.id == identity else self._enter(slot, identity, "")
        if not is_alive(identity, stat_of=stat_of):  # it ended before the kernel knew it: no record will come
            self._kernel.release(pid, slot)
            self._end(traced_process, time.time_ns(), None)
        return traced_process

    def on_refused(self, pid: int, start_boottime_ns: int, name: str) -> None:
        """Notes a process for which the kernel had no slot; the kernel has counted it."""
        identity = ProcessId.from_boottime(pid, start_boottime_ns)
        if identity not in self.refused:
            self._refuse(identity, name)

    def _refuse(self, identity: ProcessId, name: str) -> None:
        facts = read_process(identity.pid, stat_of=self._files.stat)
        self.refused[identity] = facts.name if facts and facts.id == identity else name
        self._waiting.add(identity)
        if len(self.refused) > _REFUSED_KEPT:
            ended = (one for one in self.refused if one not in self._waiting)
            self.refused.pop(next(ended, next(iter(self.refused))))

    def take_newly_refused(self) -> int:
        """How many processes were refused since the last call, without those that the kernel has counted."""
        count, self._uncounted = self._uncounted, 0
        return count

    def living_refused(self) -> Iterator[ProcessId]:
        """Refused processes that still live and are not traced."""
        for identity in list(self._waiting):
            if is_alive(identity, stat_of=self._files.stat):
                yield identity
            elif not self._files.is_paused(identity.pid):
                self._waiting.discard(identity)

    def on_admitted(self, pid: int, slot: int, start_boottime_ns: int, name: str = "") -> TracedProcess:
        """Notes that the kernel gave a process a slot: a child of a traced process, or a caller. Idempotent."""
        identity = ProcessId.from_boottime(pid, start_boottime_ns)
        self._waiting.discard(identity)
        known = self._by_slot.get(slot)
        if known is None or known.id != identity:
            return self._enter(slot, identity, name)
        known.name = known.name or name  # found by its sums, it had none if it ended before it was read
        return known

    def _enter(self, slot: int, identity: ProcessId, name: str) -> TracedProcess:
        start_ns = identity.start_unix_ns(self._boot_unix_ns)
        facts = read_process(identity.pid, stat_of=self._files.stat)
        traced_process = TracedProcess(
            slot=slot,
            id=identity,
            number=self._number_of(identity.pid, start_ns),
            start_ns=start_ns,
            name=facts.name if facts and facts.id == identity else name,
            callers=CallerLocations(identity.pid, self._files),
        )
        traced_process.callers.read_mappings()
        self._by_slot[slot] = self._by_pid[identity.pid] = traced_process
        return traced_process

    def on_exec(self, slot: int, pid: int, name: str) -> TracedProcess | None:
        """Notes that a traced process runs another program now."""
        traced_process = self._by_slot.get(slot)
        if traced_process is None or traced_process.pid != pid:
            return None
        traced_process.name, traced_process.is_described = name, False
        traced_process.callers.forget_mappings()
        return traced_process

    def on_exit(self, slot: int, identity: ProcessId, exit_ns: int, exit_code: int | None) -> TracedProcess | None:
        """Notes that a traced process has ended; its slot is kept until its sums are read. None if that was known."""
        traced_process = self._by_slot.get(slot)
        if traced_process is None or traced_process.id != identity or traced_process.exit_code is not None:
            return None
        self._end(traced_process, exit_ns, exit_code)
        return traced_process

    def _end(self, traced_process: TracedProcess, exit_ns: int, exit_code: int | None) -> None:
        traced_process.exit_ns, traced_process.exit_code = exit_ns, exit_code
        if self._by_pid.get(traced_process.pid) is traced_process:  # a later process may have the same pid already
            del self._by_pid[traced_process.pid]

    def end_vanished(self, living: Container[int]) -> list[TracedProcess]:
        """Ends traced processes that no longer live, or whose pid was reused: their end was not reported."""
        gone = [
            traced_process
            for traced_process in self
            if traced_process.exit_ns is None
            and (traced_process.pid not in living or self._by_pid.get(traced_process.pid) is not traced_process)
        ]
        for traced_process in gone:
            self._kernel.release(traced_process.pid, traced_process.slot)
            self._end(traced_process, time.time_ns(), None)
        return gone

    @property
    def has_many_ended(self) -> bool:
        """Whether ended processes hold so many slots that sums should be read before the second is over."""
        return 2 * (len(self._by_slot) - len(self._by_pid)) >= MAX_PROCESSES

    def recycle(self, held: Container[int] = (), backlog: Callable[[], Backlog] = Backlog) -> Iterator[int]:
        """Counts a reading; yields the slots to be cleared, of processes that ended long enough ago.

        held: slots named by threads in this reading. A process is said to end before its files and its
        memory are let go, which takes the driver seconds: until then its last thread has clocks, and adds them to
        whoever has the slot.
        backlog: answers what is not yet handed over. On a machine that leaves the agent no time records come late, and
        are of whoever has the slot by then.
        """
        for traced_process in self:
            if traced_process.exit_ns is None or traced_process.slot in held:
                continue
            traced_process.ticks_gone += 1
            if traced_process.ticks_gone == 1:
                traced_process.backlog = backlog()
            if traced_process.ticks_gone >= TICKS_UNTIL_RECYCLED and traced_process.backlog.is_drained:
                yield traced_process.slot
                del self._by_slot[
                    traced_process.slot
                ]  # only now: what is left of its sums is still written under its name
