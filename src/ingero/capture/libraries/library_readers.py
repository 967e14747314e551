"""Reads library files in processes of the sandbox, at the cost of whom they belong to."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ingero.capture.foreign.shares import NOBODY, Owner, Shares
from ingero.discover import library_tasks as told
from ingero.discover.driver_offsets import ask_driver
from ingero.discover.elf import UnreadableElfError
from ingero.discover.libraries import PutOffError
from ingero.discover.library_files import LibraryFile, NotATracedLibraryError, StubLibraryError
from ingero.discover.library_reader import FileKey, Held, LibraryReader, LibrarySites
from ingero.discover.linked_libraries import Linked
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
_MOST_HALVINGS = 3  # to sleep costs no CPU, and so nothing of a share
_KEYS_PAUSE_S = 60.0
_MOST_TRIES = 3  # of one file: a busy machine may be late, too
_MOST_FAILURES = 4096


class LibraryProcesses(LibraryReader):
    """opener, reader: processes of these kinds. memory: what processes map. lost: called with a counter's name.
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
        shares: Shares,
        lost: Callable[[str], None],
    ) -> None:
        self._opener, self._reader, self._memory, self._shares, self._lost = opener, reader, memory, shares, lost
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
        """As there; what is asked for inside is taken from the share of its user."""
        self._owner, self._begin_s = self._owner_of(pid), self._cost_s()
        try:
            yield
        finally:
            self._shares.spend(self._owner, self._cost_s() - self._begin_s)
            self._owner = None

    def may_read(self, pid: int) -> bool:
        """As there: whether its user has some of the share left, and it is not waited for."""
        return self._shares.has_some(self._owner_of(pid)) and not (pid and self._memory.is_paused(pid))

    def withholds(self, pid: int) -> bool:
        """As there."""
        return self._memory.launched_with(pid).is_withheld

    def _owner_of(self, pid: int) -> Owner:
        return self._shares.owner(pid) if pid else NOBODY

    def maps(self, process: Path) -> bytes:
        """As there."""
        return self._memory.maps(int(process.name))

    def reach(self, process: Path, mapped: Mapping) -> tuple[Path, Reach, FileKey]:
        """As there."""
        answer = self._open("reach", (mapped.device, mapped.inode), process=str(process), mapped=range_of(mapped))
        return Path(str(answer.content["path"])), Reach(answer.content["reach"]), _key(answer.content["key"])

    def key(self, path: Path) -> FileKey:
        """As there."""
        found = self._open("keys", path, paths=[str(path)]).content["keys"][0]
        if found is None:
            raise FileNotFoundError(path)
        return _key(found)

    def keys(self, paths: Iterable[Path]) -> Iterator[FileKey | None]:
        """As there; one that is not answered for lies nowhere. Of many it is what they were a minute ago, where one of
        them did not answer: a hundred may lie on a mount that does not.
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
        """As there."""
        file, key = self._file(path)
        files = told.taken_files(self._read("identify", file, key, path, name=name).content.get("files"), path)
        if not files:
            raise RefusedAnswerError("the reply is malformed")
        return files

    def identify_linked(self, path: Path, name: str) -> Linked:
        """As there."""
        file, key = self._file(path)
        return told.taken_linked(self._read("linked", file, key, path, name=name).content, path)

    def sites(self, file: LibraryFile) -> LibrarySites:
        """As there."""
        held, key = self._file(file.path)
        answer = self._read("sites", held, key, file.path, file=told.told_of_file(file))
        report, telling = told.taken_report(answer.content, file)
        failure = ""
        if file.library is Library.CUDA:
            try:
                report, failure = self._with_entry_points(held, key, file, report)
            except (OSError, NoAnswerError, RefusedAnswerError, UnreadableElfError) as error:
                failure = str(error)
        path = f"/proc/self/fd/{held.descriptor}"
        return LibrarySites(report=report, telling=telling, path=path, failure=failure, held=held)

    def _with_entry_points(
        self, held: Held, key: FileKey, file: LibraryFile, report: SiteReport
    ) -> tuple[SiteReport, str]:
        needed = self._read("needed", held, key, file.path).content["needed"]
        self._check_share()
        begin_s, used_s = time.monotonic(), _children_s()
        names, late = [str(one) for one in needed], self._late_drivers.get(self._owner, 0)
        timeout_s = _DRIVER_S / 2 ** min(late, _MOST_HALVINGS)
        addresses = ask_driver(held.descriptor, file, names, timeout_s=timeout_s, is_over=self.is_over)
        if isinstance(addresses, str):
            if time.monotonic() - begin_s >= timeout_s:
                if len(self._late_drivers) >= _MOST_FAILURES:
                    self._late_drivers.clear()
                self._late_drivers[self._owner] = late + 1
            return report, addresses
        self._waited_s += max(0.0, time.monotonic() - begin_s - (_children_s() - used_s))
        exported = told.told_of_sites(report.sites)
        answer = self._read(
            "entry_points", held, key, file.path, file=told.told_of_file(file), exported=exported, addresses=addresses
        )
        return told.taken_offsets(answer.content, file).added_to(report), ""

    def _file(self, path: Path) -> tuple[Held, FileKey]:
        answer = self._open("open", path, path=str(path))
        if len(answer.files) != 1:
            for one in answer.files:
                os.close(one)
            raise RefusedAnswerError("the reply is malformed")
        return Held(answer.files[0]), _key(answer.content["key"])

    def _open(self, task: str, what: object, **content: Any) -> Message:
        return self._ask(self._opener, task, what, content, [], cpu_s=_READ_CPU_S, wall_s=_OPEN_S)

    def _read(self, task: str, held: Held, key: FileKey, at: Path, **content: Any) -> Message:
        content["path"] = str(at)
        try:
            return self._ask(self._reader, task, key, content, [held.descriptor], cpu_s=_READ_CPU_S, wall_s=_READ_S)
        except RefusedAnswerError as error:
            _raise_as_there(error, at)

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
        """The time, without what this thread and those it waited for have spent waiting for a CPU."""
        return time.monotonic() - self._delay.seconds() - self._waited_s

    def _is_given_up(self, what: object) -> bool:
        return len(self._failures.get(what, ())) >= _MOST_TRIES

    def _note(self, what: object, reason: str) -> None:
        self._lost("library_files_given_up")
        if what is not None:
            if len(self._failures) >= _MOST_FAILURES:
                del self._failures[next(iter(self._failures))]
            self._failures.setdefault(what, []).append(reason)
        if not self._is_given_up(what):
            raise PutOffError


def _children_s() -> float:
    """CPU time of the processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _key(answer: Any) -> FileKey:
    try:
        device, inode, size, changed_ns = map(int, answer)
    except (TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None
    return device, inode, size, changed_ns


def _raise_as_there(error: RefusedAnswerError, path: Path) -> NoReturn:
    """What the functions raise that the reader has called."""
    if error.kind == NotATracedLibraryError.__name__:
        raise NotATracedLibraryError(path) from None
    if error.kind == StubLibraryError.__name__:
        raise StubLibraryError(path) from None
    raise UnreadableElfError(path, error.reason) from None
