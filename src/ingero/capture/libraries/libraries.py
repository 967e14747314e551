"""Finds the copies of the traced libraries, probes each once, and takes the probes off files that are gone."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import CallSite, ProbeMode
from ingero.discover import kernel_clock
from ingero.discover.libraries import LibraryCopy, LibraryScan, LibraryScanner, PutOffError
from ingero.discover.library_reader import FileKey, HeldFile, LibraryReader, LibrarySites
from ingero.discover.processes import PROC
from ingero.discover.sites import MissingSite, Site, SiteReport
from ingero.errors import IngeroError
from ingero.ops import Kind, Library

logger = logging.getLogger(__name__)

# A nested call is recognized by the outer call in flight, so the outer library must be probed first.
_OUTER_FIRST = (Library.NCCL, Library.CUDART, Library.CUDA)
_TURN_S = 0.25  # at once: the rings are drained that often; a library takes 20 to 60 ms, and longer on a busy host
_SCANS_UNTIL_RELEASED = 5  # without a user, on a file system other than the host's root
_HELD = (
    "%s is not probed yet: process %d maps it and withholds its memory; the kernel would wait for that, and every fork "
    "of this host for the kernel"
)
_SCANS_UNTIL_DROPPED = 10  # without a user and without a path: a container that is started again finds its probes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of probing one site; reason is empty if attached. `site` is None if the file exports no such call."""

    copy: LibraryCopy
    site: Site | None
    missing: MissingSite | None
    reason: str

    @property
    def is_attached(self) -> bool:
        """Whether calls at this site are traced."""
        return self.site is not None and not self.reason


class LibraryProbes:
    """Probes on every library copy seen so far. Each file is probed once, an equal copy elsewhere too.

    launches_at_driver_only: the runtime's launch calls get no probe, which saves a quarter of what tracing costs; the
    driver's still count every launch, only the runtime's caller is lost.
    libraries: which of them are probed. given_files: files with other names, probed before any process maps them.
    reader: reads their files.
    """

    def __init__(
        self,
        kernel: KernelSide,
        *,
        launches_at_driver_only: bool = False,
        libraries: Collection[Library] = frozenset(Library),
        given_files: Sequence[Path] = (),
        reader: LibraryReader | None = None,
    ) -> None:
        self._kernel, self._libraries = kernel, libraries
        self._launches_at_driver_only = launches_at_driver_only
        self._reader = reader or LibraryReader()
        self._turn_until_s = math.inf
        self._scanner = LibraryScanner(
            given_files=given_files, reader=self._reader, is_turn_over=lambda: self.is_turn_over
        )
        self._put_off: dict[int, int] = {}  # copies that are not probed yet: the process on whose behalf
        self._held: dict[int, HeldFile] = {}  # the files of those that are
        self.probed_ns: dict[int, int] = {}  # by the copy's number, CLOCK_MONOTONIC
        self._probed: dict[int, FileKey | None] = {}  # as it was when it was probed
        self._unused: dict[int, int] = {}  # looks at which a probed copy had neither a user nor a path
        self._idle: dict[int, int] = {}  # looks at which it had no user
        self._given = {copy.number for copy in self._scanner.given}  # these stay
        self._root_device = _root_device()
        self.copies: list[LibraryCopy] = []

    def begin_turn(self) -> None:
        """Starts a time slice of the loop: work stops when it is used up, and goes on in the next.

        Before the first turn everything is done at once: no records wait then.
        """
        self._turn_until_s = time.monotonic() + _TURN_S

    @property
    def is_turn_over(self) -> bool:
        """Whether the time slice is used up: the rings must be drained."""
        return time.monotonic() > self._turn_until_s

    def scan(self, pids: Collection[int] | None = None) -> LibraryScan:
        """Scans which processes use which copies now; cheap if nothing has changed. pids: only these."""
        return self._wanted(self._scanner.scan(pids))

    def put_off(self) -> set[int]:
        """The processes to be scanned again that may be read now."""
        return {pid for pid in self._scanner.put_off if self._reader.may_read(pid)}

    def waiting(self) -> set[int]:
        """The processes with known copies that are not probed yet and may be read now."""
        return {pid for pid in set(self._put_off.values()) if self._reader.may_read(pid)}

    @property
    def may_search(self) -> bool:
        """Whether copies on disk may be examined now."""
        return self._reader.may_read(0)

    def rescan(self, pids: Iterable[int], waiting: Iterable[int] = ()) -> LibraryScan:
        """Scans these processes only, and those of `waiting` that have changed."""
        return self._wanted(self._scanner.rescan(pids, waiting))

    def _wanted(self, scan: LibraryScan) -> LibraryScan:
        return replace(scan, copies=tuple(copy for copy in scan.copies if copy.file.library in self._libraries))

    def on_disk(self, paths: Iterable[Path]) -> list[LibraryCopy]:
        """The copies at these paths that are not probed yet; unreadable files are ignored."""
        with self._reader.on_behalf_of(0):
            for problem in self._scanner.add_on_disk(paths):
                logger.info("%s: %s", problem.mapped_path, problem.reason)
        known = [copy for copy in self._scanner.known() if copy.file.library in self._libraries]
        return [copy for copy in known if copy.number not in self._probed]

    def drop_unused(self) -> None:
        """Detaches the probes of files that are gone, were overwritten in place, or are unused.

        The kernel keeps the instructions it has replaced: a process that maps changed code anew would run old ones. And
        a probe keeps the file system that its file lies on, which could not be unmounted.
        """
        probed = [copy for copy in self._scanner.known() if copy.number in self._probed]
        for copy, now in zip(probed, self._reader.keys(copy.file.path for copy in probed), strict=True):
            self._idle[copy.number] = 0 if copy.pids else self._idle.get(copy.number, 0) + 1
            if self.is_turn_over:  # the kernel takes 20 to 50 ms for each
                continue
            if self._is_gone(copy, now):
                self._drop(copy, "the file was deleted or replaced")
            elif self._keeps_a_mount(copy):
                self._drop(copy, "nobody uses it, and its file system can be unmounted; who maps it is probed again")

    def _drop(self, copy: LibraryCopy, reason: str) -> None:
        logger.info("%s: probes removed: %s", copy.mapped_path, reason)
        self._kernel.detach_file(copy.number)
        self._scanner.forget(copy.number)
        del self._probed[copy.number], self.probed_ns[copy.number]
        for kept in (self._held, self._unused, self._idle):
            kept.pop(copy.number, None)
        self.copies = [one for one in self.copies if one.number != copy.number]

    def _is_gone(self, copy: LibraryCopy, now: FileKey | None) -> bool:
        if now is not None and now != self._probed[copy.number]:
            # changed in place, or replaced and not in use any more
            return now[1] == copy.file.inode or not copy.pids
        self._unused[copy.number] = self._unused.get(copy.number, 0) + 1 if now is None and not copy.pids else 0
        return self._unused[copy.number] >= _SCANS_UNTIL_DROPPED

    def _keeps_a_mount(self, copy: LibraryCopy) -> bool:
        """Whether an unused copy lies on a file system of its own, of which nothing but its probes may be in use."""
        if copy.number in self._given or copy.file.device in (None, self._root_device):
            return False
        is_cheap = self._kernel.mode in (ProbeMode.SESSION, ProbeMode.MULTI)
        return is_cheap and self._idle[copy.number] >= _SCANS_UNTIL_RELEASED

    def attach_new(self, copies: Iterable[LibraryCopy]) -> list[ProbeResult]:
        """Probes the copies that are not probed yet, as many as fit into this time slice.

        One result per site and per missing call.
        """
        given = [copy for copy in self._scanner.given if copy.file.library in self._libraries]
        wanted = {copy.number: copy for copy in (*given, *copies)}
        new = [copy for copy in wanted.values() if copy.number not in self._probed]
        results: list[ProbeResult] = []
        withholds = cache(self._reader.withholds)  # of a process with a hundred copies it is asked once
        for place, copy in enumerate(self._in_order(new)):
            before, pid = self._put_off.pop(copy.number, 0), next(iter(copy.pids), 0)
            if place and self.is_turn_over:
                self._put_off[copy.number] = before or pid
                continue
            if holder := next(filter(withholds, copy.pids), 0):
                self._put_off[copy.number] = holder
                if holder != before:
                    logger.warning(_HELD, copy.mapped_path, holder)
                continue
            try:
                with self._reader.on_behalf_of(pid):
                    results += self._attach(copy)
            except PutOffError:
                self._put_off[copy.number] = pid
        return results

    def _in_order(self, copies: Iterable[LibraryCopy]) -> list[LibraryCopy]:
        """Copies in order of probing: those of deferred processes last."""
        waiting = set(self._put_off.values())
        return sorted(
            copies,
            key=lambda one: (not waiting.isdisjoint(one.pids), _OUTER_FIRST.index(one.file.library)),
        )

    def _attach(self, copy: LibraryCopy) -> list[ProbeResult]:
        key = next(iter(self._reader.keys([copy.file.path])))
        try:
            found, problem = self._reader.sites(copy.file), None
        except PutOffError:
            raise
        except (OSError, IngeroError) as error:
            found, problem = None, error
        self._probed[copy.number] = key
        self.copies.append(copy)
        results = self._attached(copy, found) if found else [self._unreadable(copy, problem)]
        self.probed_ns[copy.number] = kernel_clock.monotonic_ns()
        return results

    @staticmethod
    def _unreadable(copy: LibraryCopy, problem: Exception | None) -> ProbeResult:
        reason = f"{copy.file.path} cannot be read: {problem}"
        return ProbeResult(copy=copy, site=None, missing=None, reason=reason)

    def _attached(self, copy: LibraryCopy, found: LibrarySites) -> list[ProbeResult]:
        if found.held:
            self._held[copy.number] = found.held
        if found.failure:
            logger.info("%s: only exported symbols are probed: %s", copy.mapped_path, found.failure)
        report = self._wanted_sites(copy, found.report)
        self._attach_naming(copy, found)
        calls = {CallSite(path=found.path, offset=s.file_offset, cookie=s.cookie): s for s in report.sites}
        failed = self._kernel.attach_calls(list(calls), copy.number)
        logger.info("%s: %d probes, %d failed", copy.mapped_path, len(calls) - len(failed), len(failed))
        attached = [
            ProbeResult(copy=copy, site=site, missing=None, reason=failed.get(call, "")) for call, site in calls.items()
        ]
        missing = [ProbeResult(copy=copy, site=None, missing=one, reason=one.reason) for one in report.missing]
        return attached + missing

    def _attach_naming(self, copy: LibraryCopy, found: LibrarySites) -> None:
        is_nccl = copy.file.library is Library.NCCL
        attach = self._kernel.attach_communicators if is_nccl else self._kernel.attach_kernel_names
        what = "communicators" if is_nccl else "names of kernels"
        calls = [CallSite(path=found.path, offset=at, cookie=tells) for at, tells in found.naming.items()]
        for site, reason in attach(calls, copy.number).items():
            logger.warning("%s+%#x: %s are not seen: %s", copy.mapped_path, site.offset, what, reason)

    def _wanted_sites(self, copy: LibraryCopy, report: SiteReport) -> SiteReport:
        if self._launches_at_driver_only and copy.file.library is Library.CUDART:
            return _without_launches(report)
        return report


def _without_launches(report: SiteReport) -> SiteReport:
    left_out = {site.op: None for site in report.sites if site.op.kind & Kind.LAUNCH}
    reason = "launches are probed only in the driver"
    return replace(
        report,
        sites=tuple(site for site in report.sites if site.op not in left_out),
        missing=(*report.missing, *(MissingSite(op=op, reason=reason) for op in left_out)),
    )


def _root_device() -> int | None:
    """Device of the host's root file system; of this process's own if that of process 1 cannot be seen."""
    for root in (PROC / "1/root/", Path("/")):
        with suppress(OSError):
            return root.stat().st_dev
    return None
