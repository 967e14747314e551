"""The target processes: who has which slot, since when, and what is known of each."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field

from ingero.attach.kernel_side import MAX_PROCESSES, KernelSide
from ingero.capture.loop.rings import Backlog
from ingero.capture.processes.callers import Callers
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.processes import ProcessId, is_alive, read_process, read_process_id

logger = logging.getLogger(__name__)

_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_REFUSED_KEPT = 1024  # by name; how many there were is counted
TICKS_UNTIL_RECYCLED = 2  # readings of the kernel's sums after the end, so that the last one has seen everything


@dataclass(slots=True, kw_only=True)
class Target:
    """One traced process.

    identity: rank, container and job, for people; container: its id; cgroup_path: where it was when looked at.
    number: its number in the database. start_ns: unix. exit_ns: unix, None while it lives; ticks_gone counts readings
    since; backlog: the records that may still be its own.
    """

    slot: int
    id: ProcessId
    number: int
    start_ns: int
    name: str
    callers: Callers
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
        """Its process id."""
        return self.id.pid


class Targets:
    """All targets, by slot and by pid.

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
        self._by_slot: dict[int, Target] = {}
        self._by_pid: dict[int, Target] = {}
        self.refused: dict[ProcessId, str] = {}  # by name; processes that found no slot, and were not traced until then
        self._waiting: set[ProcessId] = set()
        self._uncounted = 0

    def __iter__(self) -> Iterator[Target]:
        return iter(list(self._by_slot.values()))

    def __len__(self) -> int:
        return len(self._by_pid)

    def at(self, slot: int) -> Target | None:
        """The target that has a slot; also a child whose birth the kernel has not reported yet."""
        return self._by_slot.get(slot) or self._newborn(slot)

    def _newborn(self, slot: int) -> Target | None:
        # its sums may be read before its lifecycle record, and without a target they would be lost
        found = self._kernel.process_at(slot)
        return self.entered(found[0], slot, found[1]) if found else None

    def of_pid(self, pid: int) -> Target | None:
        """The living target with this pid."""
        return self._by_pid.get(pid)

    def add(self, pid: int) -> Target | None:
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
        target = known if known and known.id == identity else self._enter(slot, identity, "")
        if not is_alive(identity, stat_of=stat_of):  # it has ended before the kernel knew it: nobody will tell
            self._kernel.release(pid, slot)
            self._end(target, time.time_ns(), None)
        return target

    def turned_away(self, pid: int, start_boottime_ns: int, name: str) -> None:
        """The kernel had no slot for a process, and has counted that."""
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

    def newly_refused(self) -> int:
        """How many were refused since the last time that the kernel has not counted."""
        count, self._uncounted = self._uncounted, 0
        return count

    def waiting(self) -> Iterator[ProcessId]:
        """Refused processes that still live and are not traced."""
        for identity in list(self._waiting):
            if is_alive(identity, stat_of=self._files.stat):
                yield identity
            elif not self._files.is_paused(identity.pid):
                self._waiting.discard(identity)

    def entered(self, pid: int, slot: int, start_boottime_ns: int, name: str = "") -> Target:
        """The kernel has given a process a slot: a child of a target, or a caller. Told again, it is the same one."""
        identity = ProcessId.from_boottime(pid, start_boottime_ns)
        self._waiting.discard(identity)
        known = self._by_slot.get(slot)
        if known is None or known.id != identity:
            return self._enter(slot, identity, name)
        known.name = known.name or name  # found by its sums, it had none where it has ended before it was looked at
        return known

    def _enter(self, slot: int, identity: ProcessId, name: str) -> Target:
        start_ns = identity.start_unix_ns(self._boot_unix_ns)
        facts = read_process(identity.pid, stat_of=self._files.stat)
        target = Target(
            slot=slot,
            id=identity,
            number=self._number_of(identity.pid, start_ns),
            start_ns=start_ns,
            name=facts.name if facts and facts.id == identity else name,
            callers=Callers(identity.pid, self._files),
        )
        target.callers.read_mappings()
        self._by_slot[slot] = self._by_pid[identity.pid] = target
        return target

    def executed(self, slot: int, pid: int, name: str) -> Target | None:
        """A target runs another program now."""
        target = self._by_slot.get(slot)
        if target is None or target.pid != pid:
            return None
        target.name, target.is_described = name, False
        target.callers.forget_mappings()
        return target

    def exited(self, slot: int, identity: ProcessId, exit_ns: int, exit_code: int | None) -> Target | None:
        """A target has ended; it keeps its slot until its sums have been read. None if that was known."""
        target = self._by_slot.get(slot)
        if target is None or target.id != identity or target.exit_code is not None:
            return None
        self._end(target, exit_ns, exit_code)
        return target

    def _end(self, target: Target, exit_ns: int, exit_code: int | None) -> None:
        target.exit_ns, target.exit_code = exit_ns, exit_code
        if self._by_pid.get(target.pid) is target:  # a later process may have the same pid already
            del self._by_pid[target.pid]

    def vanished(self, living: Container[int]) -> list[Target]:
        """Ends targets that do not live, or whose pid another process has: their end was not told."""
        gone = [
            target
            for target in self
            if target.exit_ns is None and (target.pid not in living or self._by_pid.get(target.pid) is not target)
        ]
        for target in gone:
            self._kernel.release(target.pid, target.slot)
            self._end(target, time.time_ns(), None)
        return gone

    @property
    def is_crowded(self) -> bool:
        """Whether ended processes hold so many slots that they should be read before the second is over."""
        return 2 * (len(self._by_slot) - len(self._by_pid)) >= MAX_PROCESSES

    def recycle(self, held: Container[int] = (), backlog: Callable[[], Backlog] = Backlog) -> Iterator[int]:
        """Counts a reading; hands out, to be cleared, the slots of targets that ended long enough ago.

        held: slots that accounts of threads name in this reading. A process is said to end before its files and its
        memory are let go, which takes the driver seconds: until then its last thread has clocks, and adds them to
        whoever has the slot.
        backlog: answers what is not yet handed over. On a machine that leaves the agent no time records come late, and
        are of whoever has the slot by then.
        """
        for target in self:
            if target.exit_ns is None or target.slot in held:
                continue
            target.ticks_gone += 1
            if target.ticks_gone == 1:
                target.backlog = backlog()
            if target.ticks_gone >= TICKS_UNTIL_RECYCLED and target.backlog.is_drained:
                yield target.slot
                del self._by_slot[target.slot]  # only now: what is left of its sums is still written under its name
