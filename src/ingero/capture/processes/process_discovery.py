"""Finds the processes to trace and releases them: selected, admitted, refused for lack of a slot, ended."""

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

from ingero.attach.kernel_side import NO_SLOT, Admission, KernelSide, UnavailableObject
from ingero.attach.libbpf import BpfError
from ingero.attach.mapping_events import MappingEvents
from ingero.capture.libraries.disk_search import DiskSearch
from ingero.capture.libraries.libraries import LibraryProbes, ProbeResult
from ingero.capture.processes.traced_processes import TracedProcess, TracedProcesses
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

_MAX_USERS = 3  # named
_SCAN_NS = 1_000_000_000
_SCAN_WITH_EVENTS_NS = 5_000_000_000  # the kernel tells of each mapping: the scan only makes sure


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSelection:
    """The processes to trace: some with their children, or all, or all of one real user id.

    is_traced: the caller's own decision for each process; the kernel admits none then.
    """

    pids: Sequence[int] = ()
    uid: int | None = None
    is_traced: Callable[[int], bool] | None = None

    @property
    def admission(self) -> Admission:
        """Which processes the kernel begins to trace at their first traced call."""
        if self.pids or self.is_traced is not None:
            return Admission.NOBODY
        return Admission.ANYBODY if self.uid is None else Admission.USER

    def has(self, pid: int) -> bool:
        """Whether a process that uses a traced library is to be traced, if no pids were given."""
        if pid == os.getpid() or (self.is_traced is not None and not self.is_traced(pid)):
            return False
        return self.uid is None or real_uid(pid) == self.uid

    def homes(self) -> list[Path] | None:
        """The home folders in which libraries of these processes may lie; None: all."""
        if self.pids:
            return []
        if self.uid is None:
            return None
        try:
            return [Path(pwd.getpwuid(self.uid).pw_dir)]
        except KeyError:
            return []


class ProcessChange(enum.Enum):
    """What has happened to a traced process."""

    BEGUN = enum.auto()
    FORKED = enum.auto()
    EXECUTED = enum.auto()
    ENDED = enum.auto()


class DiscoveryListener(Protocol):
    """Receives what process discovery finds."""

    def process_changed(
        self,
        traced_process: TracedProcess,
        change: ProcessChange,
        seen_ns: int | None = None,
        parent: TracedProcess | None = None,
    ) -> None:
        """A traced process was found, called exec, or ended. seen_ns: monotonic; None: now. parent: if forked."""

    def libraries_used(self, copies: Sequence[LibraryCopy]) -> None:
        """A scan has found these copies in use; those of traced processes are probed."""

    def probes_changed(self, results: Sequence[ProbeResult], unreadable: Sequence[UnreadableLibrary]) -> None:
        """Reports sites that were probed or could not be, and libraries that cannot be read."""


def left_out_text(users: Mapping[int, int]) -> str:
    """A sentence about CUDA processes of other users (by user id), with the option that includes them."""
    if not users:
        return ""
    shown = sorted(users.items(), key=lambda one: -one[1])[:_MAX_USERS]
    whose = " and ".join(f"{format_counted(count, 'CUDA process')} of {_user_name(uid)}" for uid, count in shown)
    more = f" and those of {len(users) - _MAX_USERS} more users" if len(users) > _MAX_USERS else ""
    option = f"--user {_user_name(shown[0][0])}, or --user all" if len(users) == 1 else "--user all"
    return (
        f"not traced: {whose}{more}, because only your own are (containers often run as root); to trace them: {option}"
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class ProcessDiscovery:
    """Finds the traced processes of one recording.

    sync: hands over the records that wait, so that those of processes arrive here.
    """

    def __init__(
        self,
        kernel: KernelSide,
        traced_processes: TracedProcesses,
        selection: ProcessSelection,
        reports: DiscoveryListener,
        libraries: LibraryProbes,
        memory: MemoryFiles | None = None,
        disk: DiskFiles | None = None,
    ) -> None:
        self._kernel, self._traced_processes, self._selection, self._reports = (
            kernel,
            traced_processes,
            selection,
            reports,
        )
        self.libraries = libraries
        self.unreadable: dict[tuple[str, str], UnreadableLibrary] = {}  # by path and reason
        self.is_open = False
        self._search = DiskSearch(self._of_interest, selection.homes(), memory, disk)
        self._events: MappingEvents | None = None
        self._admitted: dict[int, int] = {}  # slots by pid whose other threads are not tracked yet
        self._on_disk: list[LibraryCopy] = []
        self._scanned_ns = 0
        self._left_out: dict[int, int] = {}  # processes that use a traced library, by user id, of other users

    @property
    def left_out(self) -> str:
        """A sentence on CUDA processes not traced because they are of other users; "" for none."""
        return left_out_text(self._left_out)

    def begin(self, sync: Callable[[], None]) -> None:
        """Probes the libraries in use, traces the processes that use them, and begins to watch for others."""
        self._watch()
        self._search.start()
        scan = self._scan()
        # enrolled last: off-CPU buffers are not emptied while probes are being attached
        self._probe(scan)
        self.is_open = self._selection.admission is not Admission.NOBODY
        if self.is_open:
            self._kernel.set_admission(self._selection.admission, self._selection.uid or 0)
        if self._selection.pids:
            self._enroll_families(sync)
        else:
            self._enroll_users(scan.pids)

    def _watch(self) -> None:
        try:
            self._events = MappingEvents(may_be_traced)
        except BpfError as error:
            reason = f"a library that is loaded late is found up to 1 s later: {error}"
            self._kernel.unavailable.append(UnavailableObject(name="mapping events", reason=reason))

    def catch_up(self) -> None:
        """Handles processes and mappings that are new since the last call; called often."""
        self.libraries.begin_turn()
        if self._admitted:
            admitted, self._admitted = self._admitted, {}
            self._kernel.enroll_threads(admitted)
        mapped = self._events.read() if self._events else None
        if mapped and not mapped.are_all:
            self._scanned_ns = 0
        changed = set(filter(self._is_of_interest, mapped.pids)) if mapped and mapped.are_all else set()
        for traced_process in filter(None, map(self._traced_processes.of_pid, changed)):
            traced_process.callers.read_mappings()
        changed |= self.libraries.put_off()
        waiting = self.libraries.waiting()
        if changed or waiting:
            scan = self.libraries.rescan(changed, waiting)
            self._probe(scan)
            if not self._selection.pids:
                self._enroll_users(sorted(changed.intersection(scan.pids)))
        if self.libraries.may_search:
            self._probe_one_on_disk()

    def _is_of_interest(self, pid: int) -> bool:
        """Whether a process may be selected: given pids, or children of theirs that may not be known yet."""
        if not self._selection.pids or pid in self._selection.pids or self._traced_processes.of_pid(pid):
            return True
        parent = parent_of(pid)
        return parent is not None and self._traced_processes.of_pid(parent) is not None

    def tick(self) -> None:
        """Once a second: scans for processes that were missed."""
        self.libraries.begin_turn()
        self.libraries.drop_unused()
        now_ns = kernel_clock.monotonic_ns()
        if now_ns - self._scanned_ns < (_SCAN_WITH_EVENTS_NS if self._events else _SCAN_NS):
            self._retry_refused()
            return
        scan = self._scan()
        self._probe(scan)
        self._let_go(scan)
        if not self._selection.pids:
            self._enroll_users(scan.pids)
        self._retry_refused()

    def _scan(self) -> LibraryScan:
        self._scanned_ns = kernel_clock.monotonic_ns()
        scan = self.libraries.scan(set(self._of_interest()) if self._selection.pids else None)
        self._note_left_out(scan.pids)
        return scan

    def _note_left_out(self, pids: Iterable[int]) -> None:
        """Logs once for each user that processes are left out."""
        if self._selection.uid is None or self._selection.pids or self._selection.is_traced is not None:
            return
        owners = (real_uid(pid) for pid in pids if pid != os.getpid())
        users = Counter(uid for uid in owners if uid is not None and uid != self._selection.uid)
        is_new = not users.keys() <= self._left_out.keys()
        self._left_out |= users
        if is_new:
            logger.warning("%s", self.left_out)

    def _probe(self, scan: LibraryScan) -> None:
        """Probes new copies that a traced or selected process uses: probes cost other users of a copy, too."""
        users = self._users_wanted(scan.pids)
        results = self.libraries.attach_new([copy for copy in scan.copies if not users.isdisjoint(copy.pids)])
        problems = {(library.mapped_path, library.reason): library for library in scan.unreadable}
        new = {
            key: library
            for key, library in problems.items()
            if key not in self.unreadable
            and (library.pid in users or (not self._selection.pids and self._selection.has(library.pid)))
        }
        self.unreadable |= new
        if results or new:
            self._reports.probes_changed(results, list(new.values()))
        self._reports.libraries_used(scan.copies)

    def _users_wanted(self, users: Sequence[int]) -> set[int]:
        if not self._selection.pids:
            return {pid for pid in users if self._traced_processes.of_pid(pid) or self._selection.has(pid)}
        return set(self._of_interest())

    def _of_interest(self) -> Iterable[int]:
        """The pids whose programs show where libraries may lie; also called by the disk search thread."""
        if not self._selection.pids:
            return [pid for pid in list_pids() if self._selection.uid is None or real_uid(pid) == self._selection.uid]
        if len(self._traced_processes):
            return [traced_process.pid for traced_process in self._traced_processes]
        return [*self._selection.pids, *descendants(self._selection.pids, parents())]

    def _probe_one_on_disk(self) -> None:
        """Probes one copy found on disk at a time, so that the rings are drained in between."""
        while not self._on_disk and not self.libraries.is_turn_over and (path := self._search.take()):
            self._on_disk = self.libraries.on_disk([path])
        if self._on_disk:
            copy = self._on_disk.pop()
            if not copy.pids or not self._users_wanted(copy.pids).isdisjoint(copy.pids):
                self._reports.probes_changed(self.libraries.attach_new([copy]), [])

    def _enroll_users(self, pids: Sequence[int]) -> None:
        for pid in pids:
            if self._traced_processes.of_pid(pid) is None and self._selection.has(pid):
                self._add(pid)

    def _enroll_families(self, sync: Callable[[], None]) -> None:
        """Traces the given pids and all their descendants; from then on the kernel follows forks.

        Until nothing new is found: a child may be forked between the look at /proc and its parent's enrollment.
        """
        pids: Sequence[int] = self._selection.pids
        while [pid for pid in pids if self._traced_processes.of_pid(pid) is None and self._add(pid)]:
            pids = descendants(self._selection.pids, parents())
            sync()  # makes known what the kernel has already followed

    def _add(self, pid: int) -> bool:
        """Traces a process; returns whether it is traced now. One that has ended is not tried again."""
        self._kernel.start_clocks()
        traced_process = self._traced_processes.add(pid)
        if traced_process is None:
            return False
        # nothing else will tell of the end of one that ended meanwhile, and what is kept of it would stay
        self._reports.process_changed(
            traced_process, ProcessChange.BEGUN if traced_process.exit_ns is None else ProcessChange.ENDED
        )
        return traced_process.exit_ns is None

    def _retry_refused(self) -> None:
        """Tries living processes again that found no slot, as slots may be free now."""
        for identity in self._traced_processes.living_refused():
            if self._traced_processes.of_pid(identity.pid) is None and not self._add(identity.pid):
                return

    def _let_go(self, scan: LibraryScan) -> None:
        """Releases traced processes whose end was missed because its record was lost."""
        for traced_process in self._traced_processes.end_vanished(scan.living):
            self._reports.process_changed(traced_process, ProcessChange.ENDED)

    def lifecycle(self, batch: np.ndarray[Any, Any], unix_ns_of: Callable[[int], int]) -> None:
        """Handles starts, execs and ends of processes (`struct lifecycle_record`)."""
        for record in batch:
            kind, slot, time_ns = int(record["kind"]), int(record["process_slot"]), int(record["time_ns"])
            pid = int(record["other_pid"] if kind == LifecycleKind.FORK else record["pid"])
            start_ns, name = int(record["start_boottime_ns"]), decoded(record["comm"])
            traced_process: TracedProcess | None = None
            change, parent = ProcessChange.BEGUN, None
            if kind in (LifecycleKind.FORK, LifecycleKind.ADMIT) and slot == NO_SLOT:
                self._traced_processes.on_refused(pid, start_ns, name)
            elif kind == LifecycleKind.FORK:
                change, parent = ProcessChange.FORKED, self._traced_processes.of_pid(int(record["pid"]))
                traced_process = self._traced_processes.on_admitted(pid, slot, start_ns, name)
            elif kind == LifecycleKind.ADMIT:
                self._kernel.start_clocks()
                traced_process = self._traced_processes.on_admitted(pid, slot, start_ns, name)
                self._admitted[pid] = slot
            elif kind == LifecycleKind.EXEC:
                change = ProcessChange.EXECUTED
                traced_process = self._traced_processes.on_exec(slot, pid, name)
            elif kind == LifecycleKind.EXIT:
                change = ProcessChange.ENDED
                self._traced_processes.on_admitted(pid, slot, start_ns, name)  # should its beginning have been lost
                identity = ProcessId.from_boottime(pid, start_ns)
                traced_process = self._traced_processes.on_exit(
                    slot, identity, unix_ns_of(time_ns), int(record["code"])
                )
                self._admitted.pop(pid, None)
            if traced_process:
                self._reports.process_changed(traced_process, change, time_ns, parent)

    def end(self, sync: Callable[[], None]) -> None:
        """Ends tracing: no process is admitted any more, and calls of traced ones no longer count."""
        self._search.close()
        if self.is_open:
            self._kernel.set_admission(Admission.NOBODY)
        sync()
        for traced_process in self._traced_processes:
            self._kernel.release(traced_process.pid, traced_process.slot)

    def close(self) -> None:
        """Ends the disk search and the mapping events."""
        self._search.close()
        if self._events:
            self._events.close()
