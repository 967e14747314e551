"""Finds all copies of traced libraries that processes map, and which processes map them.

Hundreds of processes are scanned often, so a process is read again only when the size of its address space has
changed: loading a library always changes it. What never has an address space (a kernel thread) is read once.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from ingero.discover.confinement import confinement
from ingero.discover.file_systems import kept_mount
from ingero.discover.library_files import MAPPED_NAME, LibraryFile, library_kind, may_be_traced
from ingero.discover.library_reader import FileKey, LibraryReader
from ingero.discover.linked_libraries import (
    LinkedLibraries,
    candidates,
    is_likely_host,
    names_of,
    stripped_reason,
    wanted_libraries,
    way_out,
)
from ingero.discover.mapped_paths import Reach
from ingero.discover.mappings import Mapping as MappedRange
from ingero.discover.mappings import mappings_named
from ingero.discover.processes import PROC
from ingero.errors import IngeroError
from ingero.ops import Library
from ingero.sandbox.process import NoAnswerError

_NO_PAGES = b"0"  # of a kernel thread, or a process that has ended and is not waited for: neither gets any


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCopy:
    """One distinct copy of a traced library.

    number: the same for the same file as long as its `LibraryScanner` lives.
    file: read through `file.path`, which may end with the process it goes through.
    mapped_path: as the processes name it.
    pids: the processes that map it now, ascending; empty for a copy on disk that no process has loaded yet.
    """

    number: int
    file: LibraryFile
    mapped_path: str
    reach: Reach
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLibrary:
    """A mapped library that cannot be probed, and why. hint: what helps; library: None where that is not known."""

    pid: int
    mapped_path: str
    reason: str
    hint: str = ""
    library: Library | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryScan:
    """The result of one scan of all processes.

    processes: how many were scanned; read_again: how many of them had changed.
    skipped: processes that could not be read, by reason.
    living: the pids of all that were there.
    """

    copies: tuple[LibraryCopy, ...]
    unreadable: tuple[UnreadableLibrary, ...]
    processes: int
    read_again: int
    skipped: Mapping[str, int]
    living: frozenset[int] = frozenset()

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids that map a traced library."""
        return tuple(sorted({pid for copy in self.copies for pid in copy.pids}))


@dataclass(frozen=True, slots=True)
class _CopyUse:
    """How one process reaches one copy."""

    number: int
    mapped_path: str
    path: Path
    reach: Reach


@dataclass(frozen=True, slots=True)
class _ScannedProcess:
    """The copies a process mapped, and a fingerprint of its mappings to detect changes."""

    sign: tuple[int, bytes]
    uses: tuple[_CopyUse, ...] = ()
    unreadable: tuple[UnreadableLibrary, ...] = ()


def _as_changed(seen: _ScannedProcess) -> _ScannedProcess:
    return replace(seen, sign=(seen.sign[0], b""))


@dataclass(slots=True)
class _PartialScan:
    """The partial result for a process whose scan was cut short, by mapping. inode: of its /proc folder."""

    inode: int
    places: dict[tuple[str, int, int], tuple[_CopyUse | UnreadableLibrary, ...]] = field(default_factory=dict)

    @property
    def uses(self) -> tuple[_CopyUse, ...]:
        return tuple(one for found in self.places.values() for one in found if isinstance(one, _CopyUse))

    @property
    def unreadable(self) -> tuple[UnreadableLibrary, ...]:
        return tuple(one for found in self.places.values() for one in found if isinstance(one, UnreadableLibrary))


class PutOffError(IngeroError):
    """The owner of a process has used up its share of the agent's time, or the time slice is over; try later."""

    def __init__(self) -> None:
        super().__init__("it is put off", hint="its files take longer to read than others: check where they come from")


class LibraryScanner:
    """Scans processes for library copies; remembers results between scans, and numbers each file for good.

    given_files: looked for as well, whatever they are called. reader: reads the files. is_turn_over: whether what is
    left is to be put off: a process may map thousands of files that are called like libraries.

    Raises:
        OSError, IngeroError: a given file is gone, damaged or exports no traced call.
    """

    def __init__(
        self,
        proc: Path = PROC,
        given_files: Sequence[Path] = (),
        reader: LibraryReader | None = None,
        is_turn_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._proc, self._reader, self._is_turn_over = proc, reader or LibraryReader(), is_turn_over
        self.put_off: set[int] = set()  # processes to be scanned again: their share or the time slice is used up
        self._begun: dict[int, _PartialScan] = {}  # of those what is known already
        self._given_names = [path.resolve().name for path in given_files]
        self._scanned_processes: dict[int, _ScannedProcess] = {}
        self._copies: dict[int, LibraryCopy] = {}
        self._numbers: dict[FileKey, tuple[int, ...]] = {}  # by what stat() says, to read each file once
        self._linked: dict[FileKey, LinkedLibraries] = {}  # likewise, of files of other names
        self._next_number = 1
        self._given_numbers = [
            number for path in given_files for number in self._numbers_at(path.resolve(), str(path), Reach.PLAIN)
        ]
        self._given_hints = [b"/" + os.fsencode(name) for name in self._given_names]
        self._mapped_name = _named(self._given_names)

    @property
    def given(self) -> list[LibraryCopy]:
        """The copies of the given files."""
        return [self._copies[number] for number in dict.fromkeys(self._given_numbers) if number in self._copies]

    def scan(self, pids: Collection[int] | None = None) -> LibraryScan:
        """Scans all processes once; pids: only these.

        A copy stays known, with no pids, after its last process has gone.
        """
        before, self._scanned_processes = self._scanned_processes, {}
        return self._scanned({pid: inode for pid, inode in self._list() if pids is None or pid in pids}, before)

    def rescan(self, pids: Iterable[int], waiting: Iterable[int] = ()) -> LibraryScan:
        """Scans these processes only; for others the last result still holds.

        waiting: others, at which it looks if they have changed.
        """
        before, wanted = self._scanned_processes, set(pids)
        again: dict[int, int] = {}
        for pid in sorted({*wanted, *waiting}, key=self.put_off.__contains__):  # who was put off comes last
            with suppress(OSError):
                again[pid] = (self._proc / str(pid)).stat().st_ino
        self._scanned_processes = {pid: seen for pid, seen in before.items() if pid not in again}
        known = {pid: before[pid] for pid in again if pid in before}
        return self._scanned(again, {pid: _as_changed(one) if pid in wanted else one for pid, one in known.items()})

    def _scanned(self, inodes: Mapping[int, int], before: Mapping[int, _ScannedProcess]) -> LibraryScan:
        skipped: Counter[str] = Counter()
        for pid, inode in inodes.items():
            self.put_off.discard(pid)
            seen = self._scan_process(pid, inode, before.get(pid))
            if isinstance(seen, _ScannedProcess):
                self._scanned_processes[pid] = seen
            else:
                skipped[_reason(seen)] += 1
        self.put_off &= self._scanned_processes.keys()  # the others have ended
        self._begun = {pid: found for pid, found in self._begun.items() if pid in self.put_off}
        read_again = sum(1 for pid in inodes if self._scanned_processes.get(pid) is not before.get(pid))
        self._collect_uses()
        return LibraryScan(
            copies=tuple(self._copies.values()),
            unreadable=tuple(problem for seen in self._scanned_processes.values() for problem in seen.unreadable),
            processes=len(self._scanned_processes),
            read_again=read_again,
            skipped=dict(skipped),
            living=frozenset(self._scanned_processes) | inodes.keys(),
        )

    def add_on_disk(self, paths: Iterable[Path]) -> tuple[UnreadableLibrary, ...]:
        """Adds copies that no process may have loaded yet; returns those that cannot be read, as of pid 0."""
        tried = (self._try_numbers_at(path, str(path), _reach_of(path)) for path in paths)
        return tuple(problem for problem in tried if problem is not None)

    def known(self) -> tuple[LibraryCopy, ...]:
        """All copies, used or not, as of the last scan."""
        return tuple(self._copies.values())

    def forget(self, number: int) -> None:
        """Forgets a copy that no process maps any more; found again, it gets another number."""
        self._copies.pop(number, None)
        self._numbers = {key: numbers for key, numbers in self._numbers.items() if number not in numbers}

    def _list(self) -> Iterator[tuple[int, int]]:
        """pids with the inode of their /proc folder: a new process has a new inode, even if it has an old pid."""
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdigit():
                    yield int(entry.name), entry.inode()

    def _scan_process(self, pid: int, inode: int, before: _ScannedProcess | None) -> _ScannedProcess | OSError:
        if before is not None and before.sign[0] != inode:
            before = None  # of an earlier process with this pid
        if before is not None and before.sign == (inode, _NO_PAGES):
            return before
        try:
            sign = (inode, _address_space_pages(f"{self._proc}/{pid}/statm"))
        except OSError as error:
            return error
        return before if before is not None and before.sign == sign else self._scan_anew(pid, sign, before)

    def _scan_anew(
        self, pid: int, sign: tuple[int, bytes], before: _ScannedProcess | None
    ) -> _ScannedProcess | OSError:
        known = before or _ScannedProcess(sign)
        begun = self._begun.pop(pid, None)
        found = begun if begun and begun.inode == sign[0] else _PartialScan(sign[0])
        try:
            raw = self._maps(pid, is_new=before is None)
            if self._may_matter(raw):
                with self._reader.on_behalf_of(pid):
                    self._examine_mappings(pid, raw, found)
        except (TimeoutError, BlockingIOError):  # withheld: what was known may still hold, and it is read again
            return replace(known, sign=(sign[0], b""))
        except OSError as error:
            return error
        except PutOffError:
            self.put_off.add(pid)
            self._begun[pid] = found
            uses = tuple(dict.fromkeys((*known.uses, *found.uses)))
            return replace(known, sign=(sign[0], b""), uses=uses)  # it is read again
        return _ScannedProcess(sign, found.uses, found.unreadable)

    def _maps(self, pid: int, *, is_new: bool) -> bytes:
        """The mappings of a process. is_new: free of charge, as finding its owner takes as long."""
        if self._is_turn_over() or not (is_new or self._reader.may_read(pid)):
            raise PutOffError
        with nullcontext() if is_new else self._reader.on_behalf_of(pid):
            return self._reader.maps(self._proc / str(pid))

    def _may_matter(self, raw: bytes) -> bool:
        return b"/libcuda" in raw or b"/libnccl" in raw or any(hint in raw for hint in self._given_hints)

    def _examine_mappings(self, pid: int, raw: bytes, found: _PartialScan) -> None:
        """Examines the mappings of a process that are new; forgets those that are gone."""
        # A library has several mappings, one per segment: the last stands for all.
        files = {
            (mapped.path, mapped.device, mapped.inode): mapped for mapped in mappings_named(raw, self._mapped_name)
        }
        wanted = wanted_libraries(raw)
        examinations = [(mapped, partial(self._uses, pid, mapped)) for mapped in files.values()]
        examinations += [
            (mapped, partial(self._linked_uses, pid, mapped, wanted)) for mapped in candidates(raw, wanted)
        ]
        places = {
            (mapped.range_name, mapped.device, mapped.inode): examine for mapped, examine in reversed(examinations)
        }
        found.places = {place: uses for place, uses in found.places.items() if place in places}
        for place, examine in reversed(places.items()):
            if place not in found.places:
                if self._is_turn_over():
                    raise PutOffError
                found.places[place] = tuple(examine())

    def _uses(self, pid: int, mapped: MappedRange) -> Iterator[_CopyUse | UnreadableLibrary]:
        """How a process reaches a mapped library; none if it is gone, or only named like one."""
        name = Path(mapped.path).name
        is_chance = not may_be_traced(name)  # a namesake of a given file may be anything
        try:
            path, reach, key = self._reader.reach(self._proc / str(pid), mapped)
            if is_chance and key not in self._numbers:
                return
            for number in self._numbers_of(key, path, mapped.path, reach):
                yield _CopyUse(number, mapped.path, path, reach)
        except PutOffError:
            raise
        except (FileNotFoundError, ProcessLookupError):
            return
        except (OSError, IngeroError) as error:
            if not is_chance:
                yield self._unreadable(pid, mapped, error, library_kind(name))

    def _linked_uses(
        self, pid: int, mapped: MappedRange, wanted: Collection[Library]
    ) -> Iterator[_CopyUse | UnreadableLibrary]:
        """Like `_uses`, for a file that may contain wanted libraries; none if it does not, or cannot be read."""
        name = Path(mapped.path).name
        try:
            path, reach, key = self._reader.reach(self._proc / str(pid), mapped)
            if key in self._numbers:  # a given file
                yield from (_CopyUse(number, mapped.path, path, reach) for number in self._numbers[key])
                return
            if key not in self._linked:
                self._linked[key] = self._reader.identify_linked(path, name)
        except NoAnswerError as error:
            yield UnreadableLibrary(pid=pid, mapped_path=mapped.path, reason=error.reason, hint=error.hint)
            return
        except PutOffError:
            raise
        except (OSError, IngeroError) as error:
            mount = kept_mount(pid, mapped.device, self._proc) if isinstance(error, PermissionError) else None
            if mount and is_likely_host(name):
                reason = f"{mount.reason}: whether {names_of(wanted)} is linked into it cannot be seen"
                library = next(one for one in (Library.NCCL, Library.CUDART) if one in wanted)
                yield UnreadableLibrary(
                    pid=pid, mapped_path=mapped.path, reason=reason, hint=mount.way_out, library=library
                )
            return
        for file in self._linked[key].files:
            if file.library in wanted:
                yield _CopyUse(self._number_of_file(file, mapped.path, reach), mapped.path, path, reach)
        for library in self._linked[key].stripped & set(wanted):
            reason, hint = stripped_reason(library, mapped.path), way_out(library)
            yield UnreadableLibrary(pid=pid, mapped_path=mapped.path, reason=reason, hint=hint, library=library)

    def _unreadable(
        self, pid: int, mapped: MappedRange, error: Exception, library: Library | None
    ) -> UnreadableLibrary:
        mount = kept_mount(pid, mapped.device, self._proc) if isinstance(error, PermissionError) else None
        reason, hint = (mount.reason, mount.way_out) if mount else (_reason(error), _hint(error))
        return UnreadableLibrary(pid=pid, mapped_path=mapped.path, reason=reason, hint=hint, library=library)

    def _try_numbers_at(self, path: Path, mapped_path: str, reach: Reach) -> UnreadableLibrary | None:
        try:
            self._numbers_at(path, mapped_path, reach)
        except (OSError, IngeroError) as error:
            return UnreadableLibrary(pid=0, mapped_path=mapped_path, reason=_reason(error), hint=_hint(error))
        return None

    def _numbers_at(self, path: Path, mapped_path: str, reach: Reach) -> tuple[int, ...]:
        return self._numbers_of(self._reader.key(path), path, mapped_path, reach)

    def _numbers_of(self, key: FileKey, path: Path, mapped_path: str, reach: Reach) -> tuple[int, ...]:
        if key not in self._numbers:
            files = self._reader.identify_all(path, Path(mapped_path).name)
            self._numbers[key] = tuple(self._number_of_file(file, mapped_path, reach) for file in files)
        return self._numbers[key]

    def _number_of_file(self, file: LibraryFile, mapped_path: str, reach: Reach) -> int:
        known = (copy.number for copy in self._copies.values() if copy.file.is_same_file(file))
        number = next(known, self._next_number)
        if number == self._next_number:
            self._next_number += 1
            self._copies[number] = LibraryCopy(number=number, file=file, mapped_path=mapped_path, reach=reach, pids=())
        return number

    def _collect_uses(self) -> None:
        """Assigns each copy its processes, and a path that does not go through an ended one."""
        users: dict[int, dict[int, _CopyUse]] = {number: {} for number in self._copies}
        for pid in sorted(self._scanned_processes):
            for use in self._scanned_processes[pid].uses:
                if use.number in users:
                    users[use.number].setdefault(pid, use)
        for number, uses in users.items():
            copy = replace(self._copies[number], pids=tuple(uses))
            best = min(uses.values(), key=lambda use: use.reach.value, default=None)
            if best is not None:
                copy = replace(
                    copy,
                    file=replace(copy.file, path=best.path),
                    mapped_path=best.mapped_path,
                    reach=best.reach,
                )
            self._copies[number] = copy


def _named(given_names: Sequence[str]) -> re.Pattern[bytes]:
    """Matches the end of a maps line that names a traced library, or a file with one of the given names."""
    if not given_names:
        return MAPPED_NAME
    names = b"|".join(re.escape(os.fsencode(name)) for name in given_names)
    known = MAPPED_NAME.pattern.removeprefix(b"/").removesuffix(b"$")
    return re.compile(rb"/(?:" + known + rb"|(?:" + names + rb")(?: \(deleted\))?)$", re.MULTILINE)


def _reach_of(path: Path) -> Reach:
    return Reach.PROCESS_ROOT if path.parts[1:2] == (PROC.name,) else Reach.PLAIN


def _address_space_pages(statm: str) -> bytes:
    # Read for every process every second: pathlib and a buffered file would cost three times as much.
    descriptor = os.open(statm, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 32).partition(b" ")[0]
    finally:
        os.close(descriptor)


@cache
def _or_confined() -> str:
    bound = confinement()
    return f"; or the {bound.text} forbids it" if bound else ""


def _hint(error: Exception) -> str:
    return error.hint if isinstance(error, IngeroError) else ""


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return "it has gone"
    if isinstance(error, PermissionError):
        return (
            "not permitted: CAP_SYS_PTRACE is missing, or, for a file deleted since it was loaded, "
            f"CAP_CHECKPOINT_RESTORE or (another user's process) CAP_DAC_READ_SEARCH{_or_confined()}"
        )
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
