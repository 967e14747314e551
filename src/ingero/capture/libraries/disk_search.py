"""Searches the disk for copies of traced libraries in a thread of its own, to probe them before they are mapped.

Programs of processes of interest and their library settings are examined; each program once.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.disk_files import DiskFiles, FoundFile
from ingero.discover.library_files import library_kind
from ingero.discover.library_search import python_prefix
from ingero.discover.memory_files import MemoryFiles, variables
from ingero.discover.processes import PROC
from ingero.ops import Library

logger = logging.getLogger(__name__)

_PERIOD_S = 5.0  # a program that starts meanwhile is seen when it maps the library
_WELL_KNOWN_EVERY = 12  # searches; a package that was installed meanwhile is found a minute later
_NAMING = ("LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_OWN_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class _KnownProgram:
    """Where a process may load its libraries from; root: of its file system, as the agent reaches it."""

    root: Path
    executable: str
    environ: tuple[tuple[str, str], ...]


class DiskSearch:
    """Finds library files; each is handed over once.

    pids: the processes of interest, asked for in the thread. homes: see `library_copies_on_disk`. memory: what they
    run and were started with. disk: who searches.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        homes: Sequence[Path] | None,
        memory: MemoryFiles | None = None,
        disk: DiskFiles | None = None,
    ) -> None:
        self._pids, self._homes, self._memory, self._disk = pids, homes, memory or MemoryFiles(), disk or DiskFiles()
        self._found: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._handed_over: set[FoundFile] = set()
        self._executables: dict[int, str] = {}
        self._programs: set[_KnownProgram] = set()
        self._roots: dict[tuple[int, int], Path] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk search", daemon=True)

    def start(self) -> None:
        """Starts the search thread."""
        self._thread.start()

    def take(self) -> Path | None:
        """A path that was found, or None."""
        try:
            return self._found.get_nowait()
        except queue.Empty:
            return None

    def close(self) -> None:
        """Ends the thread, which is not waited for: it holds nothing, and may stand in a network file system."""
        self._stop.set()

    def _run(self) -> None:
        searches = 0
        while not self._stop.is_set():
            try:
                self.search(well_known=searches % _WELL_KNOWN_EVERY == 0)
            except OSError as error:  # a file system that does not answer must not end the recording
                logger.info("search for libraries on disk: %s", error)
            searches += 1
            self._stop.wait(_PERIOD_S)

    def search(self, *, well_known: bool) -> None:
        """Searches once: for programs not seen before, and in the well-known places if `well_known`."""
        if well_known:
            self._forget_gone()
        pids = set(self._pids())
        self._executables = {pid: path for pid, path in self._executables.items() if pid in pids}
        programs = {program for pid in pids if (program := self._program(pid))}
        new, roots = programs - self._programs, {program.root for program in self._programs}
        self._programs |= new
        for root in {program.root for program in new} | ({_OWN_ROOT} if well_known else set()):
            mine = [program for program in new if program.root == root]
            places = root not in roots or (well_known and root == _OWN_ROOT)
            try:
                self._hand_over(self._copies_for(mine, root, with_well_known=places))
            except OSError as error:  # one that does not answer costs itself
                logger.info("search for libraries below %s: %s", root, error)

    def _forget_gone(self) -> None:
        """Forgets containers and files that are gone; not often, as each of them is checked."""
        places = [*{program.root for program in self._programs}, *{sign.path for sign in self._handed_over}]
        try:
            there = {place for place, is_there in zip(places, self._disk.present(places), strict=True) if is_there}
        except OSError:  # one of them does not answer: nothing is forgotten
            return
        self._programs = {program for program in self._programs if program.root in there}
        self._roots = {place: root for place, root in self._roots.items() if root in there}
        self._handed_over = {sign for sign in self._handed_over if sign.path in there}

    def _hand_over(self, found: Iterable[FoundFile]) -> None:
        """Hands NCCL over first: only calls at the start tell which process is which rank."""
        for file in sorted(found, key=lambda file: library_kind(file.path.name) is not Library.NCCL):
            if file not in self._handed_over:
                self._handed_over.add(file)
                self._found.put(file.path)

    def _program(self, pid: int) -> _KnownProgram | None:
        """The program of a process, if it differs from the last time."""
        try:
            executable = self._memory.program(pid)
            if self._executables.get(pid) == executable:
                return None
            self._executables[pid] = executable
            root = self._root_of(pid)
        except OSError:  # a kernel thread, or gone
            return None
        environ = variables(self._memory.launched_with(pid)) or {}
        return _KnownProgram(root, executable, tuple((name, environ[name]) for name in _NAMING if name in environ))

    def _root_of(self, pid: int) -> Path:
        """The root of a process: one path for all processes of a container."""
        place = self._disk.root(pid)
        if place == self._disk.root(0):
            return _OWN_ROOT
        known = self._roots.get(place)
        if known is None or not known.parent.exists():
            known = self._roots[place] = PROC / str(pid) / "root"
        return known

    def _copies_for(self, programs: Sequence[_KnownProgram], root: Path, *, with_well_known: bool) -> list[FoundFile]:
        def inside(path: str) -> str:
            return str(root / path.lstrip("/")) if path.startswith("/") else path

        prefixes = {Path(inside(str(python_prefix(Path(one.executable))))) for one in programs}
        environs = [{name: ":".join(map(inside, value.split(":"))) for name, value in one.environ} for one in programs]
        if not (programs or with_well_known):
            return []
        return self._disk.copies(
            root,
            prefixes=sorted(prefixes),
            environs=environs,
            homes=[Path(inside(str(home))) for home in self._homes] if self._homes is not None else None,
            has_well_known=with_well_known,
        )
