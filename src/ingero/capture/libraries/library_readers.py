"""Reads library files through the sandbox, at the cost of the user they belong to."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ingero.capture.foreign.shares import NOBODY, Owner, UserShares
from ingero.discover import library_tasks
from ingero.discover.driver_offsets import ask_driver
from ingero.discover.elf import UnreadableElfError
from ingero.discover.libraries import PutOffError
from ingero.discover.library_files import LibraryFile, NotATracedLibraryError, StubLibraryError
from ingero.discover.library_reader import FileKey, HeldFile, LibraryReader, LibrarySites
from ingero.discover.linked_libraries import LinkedLibraries
from ingero.discover.mapped_paths import Reach
from ingero.discover.mappings import Mapping
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.opener_tasks import range_of
from ingero.discover.sites import SiteReport
from ingero.ops import Library
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import WAITED_S
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess, SpareProcess
from ingero.sandbox.run_delay import RunDelay

# The loop waits for these. A library of 3 GB takes 50 ms to look at; where the machine is busy, many times that.
_OPEN_S, _READ_S, _READ_CPU_S = 0.5, 2.0, 0.5
_DRIVER_S = 1.5  # 0.1 s where nothing else runs; of a user half as long each time that one does not answer:
_MAX_HALVINGS = 3  # to sleep costs no CPU, and so nothing of a share
_KEYS_PAUSE_S = 60.0
_MAX_TRIES = 3  # of one file: a busy machine may be late, too
_MAX_FAILURES = 4096


class SandboxedLibraryReader(LibraryReader):
    """Reads library files through the sandbox. opener, reader: its processes. memory: reads maps.

    count_drop: called with counter names.
    is_over: whether the recording is to end: no driver is waited for then.

    Raises:
        NoAnswerError: the file costs more than it may.
        PutOffError: its user has used up the share.
    """

    def __init__(
        self,
        opener: SandboxedProcess | SpareProcess,
        reader: SandboxedProcess | SpareProcess,
        memory: MemoryFiles,
        shares: UserShares,
        count_drop: Callable[[str], None],
    ) -> None:
        self._opener, self._reader, self._memory, self._shares, self._count_drop = (
            opener,
            reader,
            memory,
            shares,
            count_drop,
        )
        self._owner: Owner | None = None
        self._begin_s = self._waited_s = 0.0
        self._delay = RunDelay()
        self.is_over: Callable[[], bool] = lambda: False
        self._late_drivers: dict[Owner | None, int] = {}
        self._keys: dict[Path, FileKey | None] = {}  # of those that were asked for last
        self._keys_after_s = 0.0
        self._failures: dict[object, list[str]] = {}  # by file or path: why there was no answer, each time

    @contextmanager
    def on_behalf_of(self, pid: int) -> Iterator[None]:
        """See `LibraryReader.on_behalf_of`; what is asked for inside is taken from the share of its user."""
        self._owner, self._begin_s = self._owner_of(pid), self._cost_s()
        try:
            yield
        finally:
            self._shares.spend(self._owner, self._cost_s() - self._begin_s)
            self._owner = None

    def may_read(self, pid: int) -> bool:
        """See `LibraryReader.may_read`: whether its user has some of the share left, and it is not waited for."""
        return self._shares.has_some(self._owner_of(pid)) and not (pid and self._memory.is_paused(pid))

    def withholds(self, pid: int) -> bool:
        """See `LibraryReader.withholds`."""
        return self._memory.launched_with(pid).is_withheld

    def _owner_of(self, pid: int) -> Owner:
        return self._shares.owner(pid) if pid else NOBODY

    def maps(self, process: Path) -> bytes:
        """See `LibraryReader.maps`."""
        return self._memory.maps(int(process.name))

    def reach(self, process: Path, mapped: Mapping) -> tuple[Path, Reach, FileKey]:
        """See `LibraryReader.reach`."""
        answer = self._open("reach", (mapped.device, mapped.inode), process=str(process), mapped=range_of(mapped))
        return Path(str(answer.content["path"])), Reach(answer.content["reach"]), _key(answer.content["key"])

    def key(self, path: Path) -> FileKey:
        """See `LibraryReader.key`."""
        found = self._open("keys", path, paths=[str(path)]).content["keys"][0]
        if found is None:
            raise FileNotFoundError(path)
        return _key(found)

    def keys(self, paths: Iterable[Path]) -> Iterator[FileKey | None]:
        """See `LibraryReader.keys`; None without an answer. Where one of many does not answer, all keys are those of
        a minute ago: a hundred may lie on a mount that does not answer.
        """
        wanted = list(paths)
        if len(wanted) == 1 or time.monotonic() >= self._keys_after_s:
            self._keys |= self._asked_keys([path for path in wanted if not self._is_given_up(path)])
        if len(wanted) > 1:
            self._keys = {path: self._keys.get(path) for path in wanted}
        return iter([None if self._is_given_up(path) else self._keys.get(path) for path in wanted])

    def _asked_keys(self, paths: Sequence[Path]) -> dict[Path, FileKey | None]:
        if not paths:
            return {}
        try:
            answers = self._open("keys", None, paths=list(map(str, paths))).content["keys"]
            return {path: _key(one) if one else None for path, one in zip(paths, answers, strict=True)}
        except (NoAnswerError, PutOffError):  # one of them: which?
            self._keys_after_s = time.monotonic() + _KEYS_PAUSE_S
        found: dict[Path, FileKey | None] = {}
        for path in paths:
            try:
                found[path] = self.key(path)
            except OSError:
                found[path] = None
            except (NoAnswerError, PutOffError):
                break  # the others are asked after the pause
        return found

    def identify_all(self, path: Path, name: str) -> tuple[LibraryFile, ...]:
        """See `LibraryReader.identify_all`."""
        file, key = self._file(path)
        files = library_tasks.files_from(self._read("identify", file, key, path, name=name).content.get("files"), path)
        if not files:
            raise RefusedAnswerError("the reply is malformed")
        return files

    def identify_linked(self, path: Path, name: str) -> LinkedLibraries:
        """See `LibraryReader.identify_linked`."""
        file, key = self._file(path)
        return library_tasks.linked_from(self._read("linked", file, key, path, name=name).content, path)

    def sites(self, file: LibraryFile) -> LibrarySites:
        """See `LibraryReader.sites`."""
        held, key = self._file(file.path)
        answer = self._read("sites", held, key, file.path, file=library_tasks.file_content(file))
        report, naming = library_tasks.report_from(answer.content, file)
        failure = ""
        if file.library is Library.CUDA:
            try:
                report, failure = self._with_entry_points(held, key, file, report)
            except (OSError, NoAnswerError, RefusedAnswerError, UnreadableElfError) as error:
                failure = str(error)
        path = f"/proc/self/fd/{held.descriptor}"
        return LibrarySites(report=report, naming=naming, path=path, failure=failure, held=held)

    def _with_entry_points(
        self, held: HeldFile, key: FileKey, file: LibraryFile, report: SiteReport
    ) -> tuple[SiteReport, str]:
        needed = self._read("needed", held, key, file.path).content["needed"]
        self._check_share()
        begin_s, used_s = time.monotonic(), _children_cpu_s()
        names, late = [str(one) for one in needed], self._late_drivers.get(self._owner, 0)
        timeout_s = _DRIVER_S / 2 ** min(late, _MAX_HALVINGS)
        addresses = ask_driver(held.descriptor, file, names, timeout_s=timeout_s, is_over=self.is_over)
        if isinstance(addresses, str):
            if time.monotonic() - begin_s >= timeout_s:
                if len(self._late_drivers) >= _MAX_FAILURES:
                    self._late_drivers.clear()
                self._late_drivers[self._owner] = late + 1
            return report, addresses
        self._waited_s += max(0.0, time.monotonic() - begin_s - (_children_cpu_s() - used_s))
        exported = library_tasks.sites_content(report.sites)
        answer = self._read(
            "entry_points",
            held,
            key,
            file.path,
            file=library_tasks.file_content(file),
            exported=exported,
            addresses=addresses,
        )
        return library_tasks.offsets_from(answer.content, file).added_to(report), ""

    def _file(self, path: Path) -> tuple[HeldFile, FileKey]:
        answer = self._open("open", path, path=str(path))
        if len(answer.files) != 1:
            for descriptor in answer.files:
                os.close(descriptor)
            raise RefusedAnswerError("the reply is malformed")
        return HeldFile(answer.files[0]), _key(answer.content["key"])

    def _open(self, task: str, what: object, **content: Any) -> Message:
        return self._ask(self._opener, task, what, content, [], cpu_s=_READ_CPU_S, wall_s=_OPEN_S)

    def _read(self, task: str, held: HeldFile, key: FileKey, at: Path, **content: Any) -> Message:
        content["path"] = str(at)
        try:
            return self._ask(self._reader, task, key, content, [held.descriptor], cpu_s=_READ_CPU_S, wall_s=_READ_S)
        except RefusedAnswerError as error:
            _reraise(error, at)

    def _ask(
        self,
        process: SandboxedProcess | SpareProcess,
        task: str,
        what: object,
        content: dict[str, Any],
        files: list[int],
        *,
        cpu_s: float,
        wall_s: float,
    ) -> Message:
        if self._is_given_up(what):
            raise NoAnswerError(self._failures[what][-1])
        self._check_share()
        begin_s = time.monotonic()
        try:
            answer = process.ask(task, content, files=files, cpu_s=cpu_s, wall_s=wall_s)
            waited_s = answer.content.get(WAITED_S)
            if isinstance(waited_s, float):
                self._waited_s += min(max(waited_s, 0.0), time.monotonic() - begin_s)
            return answer
        except NoAnswerError as error:
            if self._owner:
                self._shares.hold(self._owner, error.killed)
            self._note(what, error.reason)
            raise
        except RefusedAnswerError as error:
            if error.errno:
                raise OSError(error.errno, os.strerror(error.errno)) from None
            raise

    def _check_share(self) -> None:
        if self._owner and not self._shares.has_some(self._owner, self._cost_s() - self._begin_s):
            raise PutOffError

    def _cost_s(self) -> float:
        """Time in seconds without the run-queue wait of this thread and of those it waited for."""
        return time.monotonic() - self._delay.seconds() - self._waited_s

    def _is_given_up(self, what: object) -> bool:
        return len(self._failures.get(what, ())) >= _MAX_TRIES

    def _note(self, what: object, reason: str) -> None:
        self._count_drop("library_files_given_up")
        if what is not None:
            if len(self._failures) >= _MAX_FAILURES:
                del self._failures[next(iter(self._failures))]
            self._failures.setdefault(what, []).append(reason)
        if not self._is_given_up(what):
            raise PutOffError


def _children_cpu_s() -> float:
    """CPU time of the processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _key(answer: Any) -> FileKey:
    try:
        device, inode, size, changed_ns = map(int, answer)
    except (TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None
    return device, inode, size, changed_ns


def _reraise(error: RefusedAnswerError, path: Path) -> NoReturn:
    """Raises here what the reader's functions raised there."""
    if error.kind == NotATracedLibraryError.__name__:
        raise NotATracedLibraryError(path) from None
    if error.kind == StubLibraryError.__name__:
        raise StubLibraryError(path) from None
    raise UnreadableElfError(path, error.reason) from None
