"""Picks targets up and lets them go: who is wanted, who has come, been admitted, found no slot, or ended."""

from __future__ import annotations

import enum
import logging
import os
import pwd
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ingero.attach.kernel_side import NO_SLOT, Admission, KernelSide, Unavailable
from ingero.attach.libbpf import BpfError
from ingero.attach.mapping_events import MappingEvents
from ingero.capture.libraries.disk_search import DiskSearch
from ingero.capture.libraries.libraries import LibraryProbes, ProbeResult
from ingero.capture.processes.traced_processes import Target, Targets
from ingero.discover import kernel_clock
from ingero.discover.disk_files import DiskFiles
from ingero.discover.libraries import LibraryCopy, LibraryScan, UnreadableLibrary
from ingero.discover.library_files import may_be_traced
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.processes import ProcessId, descendants, list_pids, parent_of, parents, real_uid
from ingero.events import LifecycleKind
from ingero.foreign_text import decoded
from ingero.units import format_counted

logger = logging.getLogger(__name__)

_MOST_USERS = 3  # named
_SCAN_NS = 1_000_000_000
_SCAN_WITH_EVENTS_NS = 5_000_000_000  # the kernel tells of each mapping: the scan only makes sure


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Who is to be traced: these processes with their children, or everybody, or everybody of one real user id.

    is_traced: an answer of the caller's own for each process; nobody is admitted in the kernel then.
    """

    pids: Sequence[int] = ()
    uid: int | None = None
    is_traced: Callable[[int], bool] | None = None

    @property
    def admission(self) -> Admission:
        """Whom the kernel makes a target at the first traced call."""
        if self.pids or self.is_traced is not None:
            return Admission.NOBODY
        return Admission.ANYBODY if self.uid is None else Admission.USER

    def has(self, pid: int) -> bool:
        """Whether a process that uses a traced library is to be traced, where no pids were given."""
        if pid == os.getpid() or (self.is_traced is not None and not self.is_traced(pid)):
            return False
        return self.uid is None or real_uid(pid) == self.uid

    def homes(self) -> list[Path] | None:
        """The home folders in which their libraries may lie; None: all."""
        if self.pids:
            return []
        if self.uid is None:
            return None
        try:
            return [Path(pwd.getpwuid(self.uid).pw_dir)]
        except KeyError:
            return []


class Change(enum.Enum):
    """What has happened to a target."""

    BEGUN = enum.auto()
    FORKED = enum.auto()
    EXECUTED = enum.auto()
    ENDED = enum.auto()


class Reports(Protocol):
    """Who writes down what is found."""

    def target_changed(
        self, target: Target, change: Change, seen_ns: int | None = None, parent: Target | None = None
    ) -> None:
        """A target has come, become another program, or ended. seen_ns: monotonic; None: now. parent: if it forked."""

    def libraries_used(self, copies: Sequence[LibraryCopy]) -> None:
        """A scan has found these copies in use; those that targets use are probed."""

    def probes_changed(self, results: Sequence[ProbeResult], unreadable: Sequence[UnreadableLibrary]) -> None:
        """Sites have been probed, or could not be; libraries cannot be read."""


def left_out_text(users: Mapping[int, int]) -> str:
    """CUDA processes of other users, by user id, as a sentence with the option that takes them in."""
    if not users:
        return ""
    shown = sorted(users.items(), key=lambda one: -one[1])[:_MOST_USERS]
    whose = " and ".join(f"{format_counted(count, 'CUDA process')} of {_user_name(uid)}" for uid, count in shown)
    more = f" and those of {len(users) - _MOST_USERS} more users" if len(users) > _MOST_USERS else ""
    option = f"--user {_user_name(shown[0][0])}, or --user all" if len(users) == 1 else "--user all"
    return (
        f"not traced: {whose}{more}, because only your own are (containers often run as root); to trace them: {option}"
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class Pickup:
    """The targets of one recording.

    sync: hands over the records that wait, so that those of processes arrive here.
    """

    def __init__(
        self,
        kernel: KernelSide,
        targets: Targets,
        wanted: Wanted,
        reports: Reports,
        libraries: LibraryProbes,
        memory: MemoryFiles | None = None,
        disk: DiskFiles | None = None,
    ) -> None:
        self._kernel, self._targets, self._wanted, self._reports = kernel, targets, wanted, reports
        self.libraries = libraries
        self.unreadable: dict[tuple[str, str], UnreadableLibrary] = {}  # by path and reason
        self.is_open = False
        self._search = DiskSearch(self._of_interest, wanted.homes(), memory, disk)
        self._events: MappingEvents | None = None
        self._admitted: dict[int, int] = {}  # slots by pid, whose other threads have no account yet
        self._on_disk: list[LibraryCopy] = []
        self._scanned_ns = 0
        self._left_out: dict[int, int] = {}  # processes that use a traced library, by user id, of other users

    @property
    def left_out(self) -> str:
        """How many CUDA processes of whom are not traced because they are not this user's; "" for none."""
        return left_out_text(self._left_out)

    def begin(self, sync: Callable[[], None]) -> None:
        """Probes the libraries in use, admits and enrolls who uses them, and begins to watch for others."""
        self._watch()
        self._search.start()
        scan = self._scan()
        # enrolled last: nobody empties a target's buffers while probes are being attached
        self._probe(scan)
        self.is_open = self._wanted.admission is not Admission.NOBODY
        if self.is_open:
            self._kernel.set_admission(self._wanted.admission, self._wanted.uid or 0)
        if self._wanted.pids:
            self._enroll_families(sync)
        else:
            self._enroll_users(scan.pids)

    def _watch(self) -> None:
        try:
            self._events = MappingEvents(may_be_traced)
        except BpfError as error:
            reason = f"a library that is loaded late is found up to 1 s later: {error}"
            self._kernel.unavailable.append(Unavailable(name="mapping events", reason=reason))

    def catch_up(self) -> None:
        """What has come since the last time; called often."""
        self.libraries.begin_turn()
        if self._admitted:
            admitted, self._admitted = self._admitted, {}
            self._kernel.enroll_threads(admitted)
        mapped = self._events.read() if self._events else None
        if mapped and not mapped.are_all:
            self._scanned_ns = 0
        changed = set(filter(self._is_of_interest, mapped.pids)) if mapped and mapped.are_all else set()
        for target in filter(None, map(self._targets.of_pid, changed)):
            target.callers.read_mappings()
        changed |= self.libraries.put_off()
        waiting = self.libraries.waiting()
        if changed or waiting:
            scan = self.libraries.look_again(changed, waiting)
            self._probe(scan)
            if not self._wanted.pids:
                self._enroll_users(sorted(changed.intersection(scan.pids)))
        if self.libraries.may_search:
            self._probe_one_on_disk()

    def _is_of_interest(self, pid: int) -> bool:
        """Whether it is asked for: where pids are given, their children may not be known yet, and nobody else is."""
        if not self._wanted.pids or pid in self._wanted.pids or self._targets.of_pid(pid):
            return True
        parent = parent_of(pid)
        return parent is not None and self._targets.of_pid(parent) is not None

    def tick(self) -> None:
        """Once a second: makes sure that nothing was missed."""
        self.libraries.begin_turn()
        self.libraries.drop_unused()
        now_ns = kernel_clock.monotonic_ns()
        if now_ns - self._scanned_ns < (_SCAN_WITH_EVENTS_NS if self._events else _SCAN_NS):
            self._retry_refused()
            return
        scan = self._scan()
        self._probe(scan)
        self._let_go(scan)
        if not self._wanted.pids:
            self._enroll_users(scan.pids)
        self._retry_refused()

    def _scan(self) -> LibraryScan:
        self._scanned_ns = kernel_clock.monotonic_ns()
        scan = self.libraries.scan(set(self._of_interest()) if self._wanted.pids else None)
        self._note_left_out(scan.pids)
        return scan

    def _note_left_out(self, pids: Iterable[int]) -> None:
        """Says once for each user that processes are left out."""
        if self._wanted.uid is None or self._wanted.pids or self._wanted.is_traced is not None:
            return
        owners = (real_uid(pid) for pid in pids if pid != os.getpid())
        users = Counter(uid for uid in owners if uid is not None and uid != self._wanted.uid)
        is_new = not users.keys() <= self._left_out.keys()
        self._left_out |= users
        if is_new:
            logger.warning("%s", self.left_out)

    def _probe(self, scan: LibraryScan) -> None:
        """Probes copies not seen before that a target uses, or who is to become one: others would pay for it."""
        wanted = self._users_wanted(scan.pids)
        results = self.libraries.attach_new([copy for copy in scan.copies if not wanted.isdisjoint(copy.pids)])
        problems = {(one.mapped_path, one.reason): one for one in scan.unreadable}
        new = {
            key: one
            for key, one in problems.items()
            if key not in self.unreadable
            and (one.pid in wanted or (not self._wanted.pids and self._wanted.has(one.pid)))
        }
        self.unreadable |= new
        if results or new:
            self._reports.probes_changed(results, list(new.values()))
        self._reports.libraries_used(scan.copies)

    def _users_wanted(self, users: Sequence[int]) -> set[int]:
        if not self._wanted.pids:
            return {pid for pid in users if self._targets.of_pid(pid) or self._wanted.has(pid)}
        return set(self._of_interest())

    def _of_interest(self) -> Iterable[int]:
        """Whose programs tell where libraries may lie; also asked by the thread that searches the disk."""
        if not self._wanted.pids:
            return [pid for pid in list_pids() if self._wanted.uid is None or real_uid(pid) == self._wanted.uid]
        if len(self._targets):
            return [target.pid for target in self._targets]
        return [*self._wanted.pids, *descendants(self._wanted.pids, parents())]

    def _probe_one_on_disk(self) -> None:
        """One copy at a time, so that the rings are not left alone for long."""
        while not self._on_disk and not self.libraries.is_turn_over and (path := self._search.take()):
            self._on_disk = self.libraries.on_disk([path])
        if self._on_disk:
            copy = self._on_disk.pop()
            if not copy.pids or not self._users_wanted(copy.pids).isdisjoint(copy.pids):
                self._reports.probes_changed(self.libraries.attach_new([copy]), [])

    def _enroll_users(self, pids: Sequence[int]) -> None:
        for pid in pids:
            if self._targets.of_pid(pid) is None and self._wanted.has(pid):
                self._add(pid)

    def _enroll_families(self, sync: Callable[[], None]) -> None:
        """The processes asked for by pid and all their descendants; the kernel follows what these fork from then on.

        Until nothing new is found: a child may be forked between the look at /proc and its parent's enrollment.
        """
        wanted: Sequence[int] = self._wanted.pids
        while [pid for pid in wanted if self._targets.of_pid(pid) is None and self._add(pid)]:
            wanted = descendants(self._wanted.pids, parents())
            sync()  # makes known what the kernel has already followed

    def _add(self, pid: int) -> bool:
        """Whether it is traced now; one that has ended is not, and is asked for no more."""
        self._kernel.start_clocks()
        target = self._targets.add(pid)
        if target is None:
            return False
        # nothing else will tell of the end of one that ended meanwhile, and what is kept of it would stay
        self._reports.target_changed(target, Change.BEGUN if target.exit_ns is None else Change.ENDED)
        return target.exit_ns is None

    def _retry_refused(self) -> None:
        """Slots may have become free; who has found none and lives is tried again."""
        for identity in self._targets.waiting():
            if self._targets.of_pid(identity.pid) is None and not self._add(identity.pid):
                return

    def _let_go(self, scan: LibraryScan) -> None:
        """Targets whose end was not seen because its record was lost."""
        for target in self._targets.vanished(scan.living):
            self._reports.target_changed(target, Change.ENDED)

    def lifecycle(self, batch: np.ndarray[Any, Any], unix_ns_of: Callable[[int], int]) -> None:
        """Records of processes that came, changed or went (`struct lifecycle_record`)."""
        for record in batch:
            kind, slot, time_ns = int(record["kind"]), int(record["process_slot"]), int(record["time_ns"])
            pid = int(record["other_pid"] if kind == LifecycleKind.FORK else record["pid"])
            start_ns, name = int(record["start_boottime_ns"]), decoded(record["comm"])
            target: Target | None = None
            change, parent = Change.BEGUN, None
            if kind in (LifecycleKind.FORK, LifecycleKind.ADMIT) and slot == NO_SLOT:
                self._targets.turned_away(pid, start_ns, name)
            elif kind == LifecycleKind.FORK:
                change, parent = Change.FORKED, self._targets.of_pid(int(record["pid"]))
                target = self._targets.entered(pid, slot, start_ns, name)
            elif kind == LifecycleKind.ADMIT:
                self._kernel.start_clocks()
                target = self._targets.entered(pid, slot, start_ns, name)
                self._admitted[pid] = slot
            elif kind == LifecycleKind.EXEC:
                change = Change.EXECUTED
                target = self._targets.executed(slot, pid, name)
            elif kind == LifecycleKind.EXIT:
                change = Change.ENDED
                self._targets.entered(pid, slot, start_ns, name)  # should its beginning have been lost
                identity = ProcessId.from_boottime(pid, start_ns)
                target = self._targets.exited(slot, identity, unix_ns_of(time_ns), int(record["code"]))
                self._admitted.pop(pid, None)
            if target:
                self._reports.target_changed(target, change, time_ns, parent)

    def end(self, sync: Callable[[], None]) -> None:
        """No more targets: nobody is admitted, and what those that are there do counts no more."""
        self._search.close()
        if self.is_open:
            self._kernel.set_admission(Admission.NOBODY)
        sync()
        for target in self._targets:
            self._kernel.release(target.pid, target.slot)

    def close(self) -> None:
        """Ends the search and the events."""
        self._search.close()
        if self._events:
            self._events.close()
