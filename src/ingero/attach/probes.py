"""Places the generic call programs on the sites of library copies: one link per file and program."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product

from ingero.attach.libbpf import AttachType, BpfError, BpfObject, Link

logger = logging.getLogger(__name__)


class ProbeMode(enum.Enum):
    """How calls are probed, best first. The value is shown to users."""

    SESSION = "uprobe.session"  # 6.13: entry and return in one link, and an entry may skip its return
    MULTI = "uprobe.multi"  # 6.6
    PERF_EVENT = "perf-event uprobe"  # needs CAP_SYS_ADMIN; detaching takes 0.1 s per probe
    ENTRY_ONLY = "entry only"  # return probes could harm the workload: counts without durations


PROGRAMS: dict[ProbeMode, tuple[str, ...]] = {
    ProbeMode.SESSION: ("call_session",),
    ProbeMode.MULTI: ("call_entry", "call_return"),
    ProbeMode.PERF_EVENT: ("call_entry", "call_return"),
    ProbeMode.ENTRY_ONLY: ("call_count",),
}
UPROBE_TYPES: dict[ProbeMode, dict[str, AttachType]] = {
    ProbeMode.SESSION: {"call_session": AttachType.UPROBE_SESSION},
    ProbeMode.MULTI: dict.fromkeys(PROGRAMS[ProbeMode.MULTI], AttachType.UPROBE_MULTI),
    ProbeMode.PERF_EVENT: {},
    ProbeMode.ENTRY_ONLY: {"call_count": AttachType.UPROBE_MULTI},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """One place to probe: a file, an offset in it, and the cookie that says what the call is."""

    path: str
    offset: int
    cookie: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSite:
    """A site that could not be probed, and the kernel's reason."""

    site: CallSite
    reason: str


class CallProbes:
    """Links of the call programs. Detached in reverse order of attaching: the driver before the runtime."""

    def __init__(self, calls: BpfObject, mode: ProbeMode) -> None:
        self._object, self.mode = calls, mode
        self._links: list[Link] = []
        self.attached = 0

    def attach(self, sites: Iterable[CallSite]) -> list[FailedSite]:
        """Probes sites, grouped by file, in the order given; what the kernel refuses is returned with its reason."""
        by_path: dict[str, list[CallSite]] = {}
        for site in sites:
            by_path.setdefault(site.path, []).append(site)
        return [failed for path, group in by_path.items() for failed in self._attach_file(path, group)]

    def _attach_file(self, path: str, sites: Sequence[CallSite]) -> list[FailedSite]:
        """One link for the whole file; if the kernel refuses it, one per site: a bad site costs only itself."""
        try:
            self._links += self._link(path, sites)
        except BpfError as error:
            if len(sites) == 1:
                return [FailedSite(site=sites[0], reason=str(error))]
            logger.debug("one link for %s refused: %s", path, error)
            return [failed for site in sites for failed in self._attach_file(path, [site])]
        self.attached += len(sites)
        return []

    def _link(self, path: str, sites: Sequence[CallSite]) -> list[Link]:
        if self.mode is ProbeMode.PERF_EVENT:
            return self._perf_links(path, sites)
        pairs = [(site.offset, site.cookie) for site in sites]
        attach_type = AttachType.UPROBE_SESSION if self.mode is ProbeMode.SESSION else AttachType.UPROBE_MULTI
        with ExitStack() as undo:
            links = []
            for name in reversed(PROGRAMS[self.mode]):  # returns first: an entry without its return stays open for ever
                program, is_return = self._object.program(name), name == "call_return"
                links.append(program.attach_uprobes(path, pairs, attach_type, is_return=is_return))
                undo.callback(links[-1].close)
            undo.pop_all()
            return links

    def _perf_links(self, path: str, sites: Sequence[CallSite]) -> list[Link]:
        with ExitStack() as undo:
            links = []
            for name, site in product(reversed(PROGRAMS[self.mode]), sites):
                program, is_return = self._object.program(name), name == "call_return"
                links.append(program.attach_uprobe(path, site.offset, site.cookie, is_return=is_return))
                undo.callback(links[-1].close)
            undo.pop_all()
            return links

    def close(self) -> None:
        """Detaches everything, last attached first."""
        while self._links:
            self._links.pop().close()
