"""What processes were started with, what they map and where they sleep, read by the opener of the sandbox, which can be
ended.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ingero.capture.foreign.shares import WITHHOLDING, Owner, UserShares
from ingero.discover.memory_files import LaunchedWith, MemoryFiles, Position
from ingero.discover.processes import PROC, real_uid
from ingero.sandbox.messages import Message
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess, SpareProcess

logger = logging.getLogger(__name__)

_WALL_S, _CPU_S = 0.5, 0.5  # the loop waits for it; an answer takes 0.2 ms
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # doubled each time: a file system may answer again
_MAX_KNOWN = 4096
_GIVEN_UP = "memory_files_given_up"


@dataclass(slots=True)
class _OwnerPause:
    """How long a process that did not answer is left alone. sign: identifies this very process."""

    sign: int
    seconds: float
    until_s: float


class SandboxedMemoryFiles(MemoryFiles):
    """Files of /proc/PID that need the memory of the process, read through the sandbox. May be used by any thread.

    opener: a process of that kind. shares: of the loop's time; what did not come in time is taken from that of the
    process's user. They ask `pid_namespace` for the owner. count_drop: called with a counter's name
    for each missing answer.
    """

    def __init__(
        self, opener: SandboxedProcess | SpareProcess, shares: UserShares, count_drop: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._opener, self._shares, self._count_drop = opener, shares, count_drop
        self._pauses: dict[int, _OwnerPause] = {}  # by pid
        self._namespaces: dict[int, tuple[int, int]] = {}  # by pid: sign and number
        self._lock = threading.Lock()

    def is_paused(self, pid: int) -> bool:
        """See `MemoryFiles.is_paused`."""
        pause = self._pause_of(pid)
        return pause is not None and time.monotonic() < pause.until_s

    def launched_with(self, pid: int) -> LaunchedWith:
        """See `MemoryFiles.launched_with`."""
        try:
            answer = self.ask(pid, "launched_with")
            sizes = answer.content["sizes"]
            environ = None if sizes[0] is None else answer.data[: int(sizes[0])]
            command_line = None if sizes[1] is None else answer.data[len(environ or b"") :][: int(sizes[1])]
        except (TimeoutError, BlockingIOError):
            return LaunchedWith(None, None, is_withheld=True)
        except (OSError, LookupError, TypeError, ValueError):
            return LaunchedWith(None, None)
        return LaunchedWith(environ, command_line)

    def maps(self, pid: int) -> bytes:
        """See `MemoryFiles.maps`."""
        return self.ask(pid, "maps").data

    def program(self, pid: int) -> str:
        """See `MemoryFiles.program`."""
        return str(self.ask(pid, "program").content.get("program", ""))

    def positions(self, pid: int, tids: Sequence[int]) -> list[Position | None]:
        """See `MemoryFiles.positions`."""
        found = self.ask(pid, "positions", tids=list(tids)).content.get("positions")
        try:
            positions = [None if one is None else Position(str(one[0]), int(one[1])) for one in found or ()]
        except (LookupError, TypeError, ValueError):
            positions = []
        if len(positions) != len(tids):
            raise OSError(errno.EBADMSG, "the reply is malformed")
        return positions

    def mapped(self, pid: int, address: int, size: int) -> bytes:
        """See `MemoryFiles.mapped`."""
        return self.ask(pid, "mapped", address=address, size=size).data[:size]

    def memory(self, pid: int) -> int:
        """See `MemoryFiles.memory`."""
        files = self.ask(pid, "memory").files
        if len(files) == 1:
            return files[0]
        for descriptor in files:
            os.close(descriptor)
        raise OSError(errno.EBADMSG, "the reply is malformed")

    def withholding(self) -> list[int]:
        """The pids that did not answer when they were asked last."""
        with self._lock:
            return sorted(self._pauses)

    def has_withheld(self) -> bool:
        """Whether a process did not answer lately, and may hold the lock of its memory."""
        now_s = time.monotonic()
        with self._lock:
            return any(now_s < pause.until_s + _LONGEST_PAUSE_S for pause in self._pauses.values())

    def stat(self, pid: int) -> bytes | None:
        """See `MemoryFiles.stat`."""
        try:
            return self.ask(pid, "stat").data or None
        except OSError:
            return None

    def pid_namespace(self, pid: int) -> int:
        """See `MemoryFiles.pid_namespace`; asked once of each process. -1: it, or others before it, did not answer."""
        sign = sign_of(pid)
        known_sign, number = self._namespaces.get(pid, (0, 0))
        if known_sign == sign:
            return number
        if self.is_paused(pid) or not self._shares.has_some(WITHHOLDING):
            return WITHHOLDING[1]
        try:
            number = int(
                self._opener.ask("pid_namespace", {"pid": pid}, cpu_s=_CPU_S, wall_s=_WALL_S, is_patient=True).content[
                    "number"
                ]
            )
        except NoAnswerError as error:
            self._note(pid, WITHHOLDING, error)
            return WITHHOLDING[1]
        except (RefusedAnswerError, LookupError, TypeError, ValueError):
            return 0
        with self._lock:
            if len(self._namespaces) >= _MAX_KNOWN:
                del self._namespaces[next(iter(self._namespaces))]
            self._namespaces[pid] = sign, number
        return number

    def ask_of_many(self, task: str, **content: Any) -> Message | None:
        """Asks about many processes at once; None: one of them does not answer, and which one is not known."""
        try:
            return self._opener.ask(task, content, cpu_s=_CPU_S, wall_s=_WALL_S, is_patient=True)
        except (NoAnswerError, RefusedAnswerError):
            return None

    def ask(self, pid: int, task: str, **content: Any) -> Message:
        """Asks the opener to do a task with one process.

        Raises:
            OSError: it cannot; of these TimeoutError and BlockingIOError: there was no answer, or none was waited for.
        """
        # on most hosts no process withholds anything: then owners are not looked up, which would cost as much again
        has_some = not self._pauses or self._shares.has_some(self._shares.owner(pid))
        if self.is_paused(pid) or not has_some:
            self._count_drop(_GIVEN_UP)
            raise BlockingIOError(errno.EAGAIN, "it, or others of its user, did not answer before")
        try:
            answer = self._opener.ask(task, {"pid": pid, **content}, cpu_s=_CPU_S, wall_s=_WALL_S, is_patient=True)
        except NoAnswerError as error:
            self._note(pid, self._owner_at_hand(pid), error)
            raise TimeoutError(errno.ETIMEDOUT, error.reason) from None
        except RefusedAnswerError as error:
            raise OSError(error.errno or errno.EIO, error.reason) from None
        if self._pauses:
            with self._lock:
                self._pauses.pop(pid, None)
        return answer

    def _owner_at_hand(self, pid: int) -> Owner:
        """Whose a process is that must not be asked again."""
        uid = real_uid(pid)
        if uid:
            return uid, 0
        known_sign, number = self._namespaces.get(pid, (0, 0))
        return (0, number) if known_sign == sign_of(pid) else WITHHOLDING

    def _pause_of(self, pid: int) -> _OwnerPause | None:
        with self._lock:
            pause = self._pauses.get(pid)
        return pause if pause and pause.sign == sign_of(pid) else None

    def note_wait(self, pid: int, error: NoAnswerError) -> None:
        """Notes that another reader has waited for the memory of a process."""
        self._note(pid, self._owner_at_hand(pid), error)

    def _note(self, pid: int, owner: Owner, error: NoAnswerError) -> None:
        self._count_drop(_GIVEN_UP)
        self._shares.spend(owner, _WALL_S)
        self._shares.hold(owner, error.killed)
        before = self._pause_of(pid)
        seconds = min(2 * before.seconds, _LONGEST_PAUSE_S) if before else _FIRST_PAUSE_S
        with self._lock:
            if len(self._pauses) >= _MAX_KNOWN:
                del self._pauses[next(iter(self._pauses))]
            self._pauses[pid] = _OwnerPause(sign_of(pid), seconds, time.monotonic() + seconds)
        if not before:
            logger.warning(
                "the memory of process %d is withheld: its command line, environment, mappings and stacks are not "
                "known (%s); it waits for a file system, or was made to wait: ps hangs at it, too",
                pid,
                error.reason,
            )


def sign_of(pid: int) -> int:
    """Identifies this very process by the inode of its /proc folder; a later process with the same pid has another."""
    try:
        return os.stat(PROC / str(pid)).st_ino  # noqa: PTH116  # for every process of the host
    except OSError:
        return 0
