"""Finds the copies of the traced libraries that are in use, and probes each once."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import CallSite
from ingero.discover.driver_offsets import driver_offsets
from ingero.discover.elf import UnreadableElfError
from ingero.discover.libraries import LibraryCopy, LibraryScan, LibraryScanner
from ingero.discover.sites import MissingSite, Site, SiteReport, communicator_sites, probe_sites
from ingero.ops import Kind, Library

logger = logging.getLogger(__name__)

# A nested call is told by the open outer one, so the outer library must be probed first.
_OUTER_FIRST = (Library.NCCL, Library.CUDART, Library.CUDA)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What became of one site; reason is empty if attached. `site` is None where the file exports no such call."""

    copy: LibraryCopy
    site: Site | None
    missing: MissingSite | None
    reason: str

    @property
    def is_attached(self) -> bool:
        """Whether calls at this site are seen."""
        return self.site is not None and not self.reason


class LibraryProbes:
    """Probes on every copy seen so far. The same file is probed once, an equal copy elsewhere as well.

    launches_at_driver_only: the runtime's launch calls get no probe, which saves a quarter of what tracing costs; the
    driver's still count every launch, only the runtime's caller is lost.
    libraries: which of them are probed. given_files: files with names of their own, probed before anybody maps them.
    """

    def __init__(
        self,
        kernel: KernelSide,
        *,
        launches_at_driver_only: bool = False,
        libraries: Collection[Library] = frozenset(Library),
        given_files: Sequence[Path] = (),
    ) -> None:
        self._kernel, self._libraries = kernel, libraries
        self._launches_at_driver_only = launches_at_driver_only
        self._scanner = LibraryScanner(given_files=given_files)
        self.probed_ns: dict[int, int] = {}  # by the copy's number, CLOCK_MONOTONIC
        self._reported: set[tuple[str, str]] = set()
        self.copies: list[LibraryCopy] = []

    def scan(self) -> LibraryScan:
        """Which processes use which copies right now; cheap when nothing has changed."""
        scan = self._scanner.scan()
        for problem in scan.unreadable:
            if (problem.mapped_path, problem.reason) not in self._reported:
                self._reported.add((problem.mapped_path, problem.reason))
                logger.warning("%s is not traced: %s", problem.mapped_path, problem.reason)
        return replace(scan, copies=tuple(copy for copy in scan.copies if copy.file.library in self._libraries))

    def attach_new(self, copies: Iterable[LibraryCopy]) -> list[ProbeResult]:
        """Probes the copies that are not probed yet; one result per site and per missing call."""
        wanted = {copy.number: copy for copy in (*self._scanner.given, *copies)}
        new = [copy for copy in wanted.values() if copy.number not in self.probed_ns]
        results: list[ProbeResult] = []
        for copy in sorted(new, key=lambda one: _OUTER_FIRST.index(one.file.library)):
            self.copies.append(copy)
            results += self._attach(copy)
            self.probed_ns[copy.number] = time.monotonic_ns()
        return results

    def _attach(self, copy: LibraryCopy) -> list[ProbeResult]:
        try:
            report = self._sites(copy)
        except (OSError, UnreadableElfError) as error:
            reason = f"{copy.file.path} cannot be read: {error}"
            return [ProbeResult(copy=copy, site=None, missing=None, reason=reason)]
        if copy.file.library is Library.NCCL:
            self._attach_communicators(copy)
        calls = {CallSite(path=str(copy.file.path), offset=s.file_offset, cookie=s.cookie): s for s in report.sites}
        failed = self._kernel.attach_calls(list(calls))
        logger.info("%s: %d probes, %d failed", copy.mapped_path, len(calls) - len(failed), len(failed))
        attached = [
            ProbeResult(copy=copy, site=site, missing=None, reason=failed.get(call, "")) for call, site in calls.items()
        ]
        missing = [ProbeResult(copy=copy, site=None, missing=one, reason=one.reason) for one in report.missing]
        return attached + missing

    def _attach_communicators(self, copy: LibraryCopy) -> None:
        path = str(copy.file.path)
        sites = communicator_sites(copy.file).items()
        failed = self._kernel.attach_communicators(
            [CallSite(path=path, offset=at, cookie=tells) for at, tells in sites]
        )
        for site, reason in failed.items():
            logger.warning("%s+%#x: communicators are not seen: %s", copy.mapped_path, site.offset, reason)

    def _sites(self, copy: LibraryCopy) -> SiteReport:
        report = probe_sites(copy.file)
        if self._launches_at_driver_only and copy.file.library is Library.CUDART:
            return _without_launches(report)
        if copy.file.library is not Library.CUDA:
            return report
        answer = driver_offsets(copy.file, report.sites)
        if answer.failure:
            logger.info("%s: only its exported symbols are probed: %s", copy.mapped_path, answer.failure)
        return answer.added_to(report)


def _without_launches(report: SiteReport) -> SiteReport:
    left_out = {site.op: None for site in report.sites if site.op.kind & Kind.LAUNCH}
    reason = "launches are probed in the driver only"
    return replace(
        report,
        sites=tuple(site for site in report.sites if site.op not in left_out),
        missing=(*report.missing, *(MissingSite(op=op, reason=reason) for op in left_out)),
    )
