"""Places the generic call programs on the sites of library copies: one link per file, group and program."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache

from ingero.attach.groups import Coverage, Coverages, Group, group_of_cookie
from ingero.attach.libbpf import AttachType, BpfError, BpfObject, Link
from ingero.discover.kernel import read_kernel
from ingero.ops import BY_ID, Library

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


_INNER_FIRST = (None, Library.CUDA, Library.CUDART, Library.NCCL)
_MAX_THREADS = 32  # that detach at once


@lru_cache(maxsize=1)
def _share_stacks() -> bool:
    """Whether programs may share one stack per CPU (since Linux 6.13, as sessions)."""
    return "uprobe_session" in read_kernel().features


def in_object(program: str) -> str:
    """The name of a program in the BPF objects; where stacks are shared, of the variant with a stack of its own."""
    return f"{program}_own" if program != "call_session" and _share_stacks() else program


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


@dataclass(slots=True, kw_only=True)
class _GroupLinks:
    """The sites of one group in one file, and their links by program.

    owner: names it for `CallProbes.detach`. file: keeps the file reachable while detached.
    """

    path: str
    group: Group
    sites: list[CallSite]
    links: dict[str, list[Link]]
    owner: object = None
    file: int | None = None

    @property
    def library(self) -> Library | None:
        """The library of these calls; None: they are no traced calls."""
        op = BY_ID.get(self.sites[0].cookie & 0xFF)
        return op.library if op else None

    def close(self) -> None:
        """Detaches: entries before returns, else an entry would stay open for ever."""
        for name in list(reversed(self.links)):
            for link in reversed(self.links.pop(name)):
                link.close()
        if self.file is not None:
            os.close(self.file)
            self.file = None


def _kept_open(path: str) -> int:
    """A descriptor of a file; a duplicate if it is open already, as opening would ask its file system again."""
    folder, _, number = path.rpartition("/")
    if folder == "/proc/self/fd" and number.isdecimal():
        return os.dup(int(number))
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class CallProbes:
    """Links of the call programs, one per file, group and program.

    The driver is detached before the runtime: a nested call is recognized by the outer one. What `coverages` says holds
    for files that are probed later, too.
    """

    def __init__(self, calls: BpfObject, mode: ProbeMode) -> None:
        self._object, self.mode = calls, mode
        self._files: list[_GroupLinks] = []
        self._coverages: Coverages = {}
        self.attached = 0

    def attach(self, sites: Iterable[CallSite], owner: object = None) -> list[FailedSite]:
        """Probes sites, grouped by file, in the order given; what the kernel refuses is returned with its reason.

        owner: names what is attached, for `detach`.
        """
        places: dict[tuple[str, Group], list[CallSite]] = {}
        for site in sites:
            places.setdefault((site.path, group_of_cookie(site.cookie)), []).append(site)
        failures = []
        for (path, group), mine in places.items():
            failures += self._attach_group(_GroupLinks(path=path, group=group, sites=mine, links={}, owner=owner))
        return failures

    def _attach_group(self, new: _GroupLinks) -> list[FailedSite]:
        """One link for the whole group; if the kernel refuses it, one per site: a bad site costs only itself."""
        try:
            self._link(new)
        except BpfError as error:
            if len(new.sites) == 1:
                return [FailedSite(site=new.sites[0], reason=str(error))]
            logger.debug("one link for %s refused: %s", new.path, error)
            return [failed for site in new.sites for failed in self._attach_group(replace(new, sites=[site], links={}))]
        self._files.append(new)
        self.attached += len(new.sites)
        return []

    @property
    def can_detach(self) -> bool:
        """Whether one group can be detached alone; perf-event uprobes take 0.1 s per probe."""
        return self.mode is not ProbeMode.PERF_EVENT

    def raise_to(self, coverages: Coverages) -> list[FailedSite]:
        """Attaches missing probes for these coverages; sites that the kernel refuses stay detached."""
        self._coverages = dict(coverages)
        failures = []
        for place in self._files:
            try:
                self._link(place)
            except BpfError as error:
                failures += [FailedSite(site=site, reason=str(error)) for site in place.sites]
        return failures

    def lower_to(self, coverages: Coverages) -> None:
        """Detaches probes that these coverages do not need. No call of theirs may be in flight."""
        self._coverages = dict(coverages)
        if not self.can_detach:
            return
        for place in self._files:
            surplus = [name for name in place.links if name not in self._needed(place.group)]
            if surplus and self._keep_file(place):
                for name in surplus:
                    for link in place.links.pop(name):
                        link.close()

    @staticmethod
    def _keep_file(place: _GroupLinks) -> bool:
        """Keeps the file open to probe it again, even if the process is gone through whose root it was reached."""
        if place.file is None:
            try:
                place.file = _kept_open(place.path)
            except OSError as error:
                logger.debug("%s stays probed: %s", place.path, error)
        return place.file is not None

    def _needed(self, group: Group) -> tuple[str, ...]:
        """The programs that a group needs, in the order of attaching: an entry without its return stays open."""
        coverage = self._coverages.get(group, Coverage.FULL)
        if coverage is Coverage.NONE:
            return ()
        names = tuple(reversed(PROGRAMS[self.mode]))
        return names if coverage is Coverage.FULL else tuple(name for name in names if name != "call_return")

    def _link(self, place: _GroupLinks) -> None:
        """Attaches all needed and missing programs, or none."""
        with ExitStack() as undo:
            new: dict[str, list[Link]] = {}
            for name in self._needed(place.group):
                if name not in place.links:
                    new[name] = self._attach_program(name, place, undo)
            undo.pop_all()
        found = {**place.links, **new}
        place.links = {name: found[name] for name in reversed(PROGRAMS[self.mode]) if name in found}

    def _attach_program(self, name: str, place: _GroupLinks, undo: ExitStack) -> list[Link]:
        program, is_return = self._object.program(in_object(name)), name == "call_return"
        path = place.path if place.file is None else f"/proc/self/fd/{place.file}"
        if self.mode is ProbeMode.PERF_EVENT:
            links = []
            for site in place.sites:
                links.append(program.attach_uprobe(path, site.offset, site.cookie, is_return=is_return))
                undo.callback(links[-1].close)
            return links
        pairs = [(site.offset, site.cookie) for site in place.sites]
        link = program.attach_uprobes(path, pairs, UPROBE_TYPES[self.mode][name], is_return=is_return)
        undo.callback(link.close)
        return [link]

    def detach(self, owner: object) -> None:
        """Detaches the probes of an owner."""
        mine = [place for place in self._files if place.owner == owner]
        if mine:
            self._close(mine)

    def close(self) -> None:
        """Detaches everything: the driver, then the runtime, then NCCL, each in all its copies at once.

        Nearly all of it is waiting: one copy after the other takes 20 to 50 ms each, and a process may map a hundred.
        """
        for library in _INNER_FIRST:
            self._close([place for place in self._files if place.library is library])

    def _close(self, places: list[_GroupLinks]) -> None:
        if not places:
            return
        self._files = [place for place in self._files if place not in places]
        with ThreadPoolExecutor(min(len(places), _MAX_THREADS), "ingero-detach") as threads:
            list(threads.map(_GroupLinks.close, places))
