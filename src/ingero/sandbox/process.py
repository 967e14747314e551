"""A sandbox process as seen from the agent: asked, awaited up to a deadline, else killed and replaced."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ingero.errors import IngeroError
from ingero.sandbox.messages import ClosedError, Message, receive, send
from ingero.sandbox.nursery import CannotForkError, Nursery, pid_of

_MAX_REASON = 4096
_PATIENCE = 3  # times as long
_MAX_BUSY_S = 0.02  # for a shared process, before the loop has one forked for it: most answers take less
_LAST_S, _LOOK_S = 0.2, 0.1  # where it is over; how often that is asked
_MAX_KILLED = 32  # of one kind that are there still, 2 MB each: then no other is made before one of them has ended


class KilledProcess:
    """A process that was killed and may still exist: it is blocked in a file system that does not answer."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        if self._handle >= 0:
            looks = select.poll()
            looks.register(self._handle, select.POLLIN)
            if looks.poll(0):
                os.close(self._handle)
                self._handle = -1
        return self._handle < 0


class NoAnswerError(IngeroError):
    """The process was killed, or has ended: the task exceeded its limits. killed: if it was killed."""

    def __init__(self, reason: str, killed: KilledProcess | None = None) -> None:
        super().__init__(
            f"it was given up: {reason}",
            hint="it takes longer to read than a regular file or process; check where it comes from",
        )
        self.reason, self.killed = reason, killed


class RefusedAnswerError(IngeroError):
    """The process cannot answer. kind: class name of the exception raised there. errno: of an OSError, else 0.

    hint_given: of the exception raised there, if it is an IngeroError.
    """

    def __init__(self, reason: str, kind: str = "", errno: int = 0, hint_given: str = "") -> None:
        super().__init__(reason, hint="the file or process is damaged, or has ended")
        self.reason, self.kind, self.errno, self.hint_given = reason, kind, errno, hint_given


class SandboxedProcess:
    """A process of one kind, forked at the first question and whenever it has ended. Usable by any thread.

    generation: counts them; what one knew, the next does not. ended: how many were killed or ended by themselves.
    """

    def __init__(self, nursery: Nursery, kind: str) -> None:
        self._nursery, self._kind = nursery, kind
        self._connection: socket.socket | None = None
        self._handle = -1
        self._asked_s = 0.0
        self._killed: list[KilledProcess] = []
        self._lock = threading.RLock()
        self.generation = self.ended = 0

    @property
    def lock(self) -> threading.RLock:
        """Lock to hold while a question refers to earlier ones to the same generation."""
        return self._lock

    @property
    def is_running(self) -> bool:
        """Whether the next question needs no new process."""
        return self._connection is not None

    def ready(self) -> int:
        """The generation that the next question goes to.

        Raises:
            NoAnswerError: there is none.
        """
        with self._lock:
            if self._connection is None:
                self._killed = [one for one in self._killed if not one.is_gone]
                if len(self._killed) >= _MAX_KILLED:
                    raise NoAnswerError(f"{_MAX_KILLED} that were asked before wait for what does not answer")
                try:
                    self._connection, self._handle = self._nursery.make(self._kind)
                except CannotForkError as error:
                    raise NoAnswerError(str(error)) from None
                self.generation += 1
            return self.generation

    def ask(
        self,
        task: str,
        content: dict[str, Any] | None = None,
        *,
        data: bytes = b"",
        files: Sequence[int] = (),
        cpu_s: float,
        wall_s: float,
        is_patient: bool = False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Message:
        """Asks, and returns the answer. cpu_s: enforced by the kernel, whole seconds, rounded up. wall_s: by the agent.

        is_patient: some times as long where it waits for nothing but a CPU then, of which it is not the cause.
        is_over: whether the asking thread should end: then it waits only briefly.

        Raises:
            NoAnswerError: there is none in time.
            RefusedAnswerError: it cannot be answered.
        """
        with self._lock:
            self.ready()
            assert self._connection
            self._asked_s = time.monotonic()
            until_s = self._asked_s + wall_s
            question = Message({**(content or {}), "task": task, "cpu_s": cpu_s}, data, files)
            try:
                send(self._connection, question, until_s=until_s)
                until_s = self._waited_until(until_s, is_over)
                if is_patient and time.monotonic() >= until_s and self._is_runnable():
                    until_s = self._waited_until(until_s + _PATIENCE * wall_s, is_over)
                answer = receive(self._connection, until_s=until_s)
            except TimeoutError:
                raise NoAnswerError(f"no answer within {wall_s:g} s", self._kill()) from None
            except ClosedError:
                reason = f"it needs more than {cpu_s:g} s of CPU time, or more memory than it may use"
                raise NoAnswerError(reason, self._kill()) from None
        return _check(answer)

    def _waited_until(self, until_s: float, is_over: Callable[[], bool]) -> float:
        """Waits for an answer; returns its deadline, which is earlier once `is_over` is true."""
        assert self._connection
        looks = select.poll()
        looks.register(self._connection, select.POLLIN)
        has_ended = False
        while (left_s := until_s - time.monotonic()) > 0:
            if not has_ended and is_over():
                has_ended, until_s = True, min(until_s, time.monotonic() + _LAST_S)
            elif looks.poll(min(left_s, _LOOK_S) * 1e3):
                break
        return until_s

    def _is_runnable(self) -> bool:
        """Whether the process is runnable, not blocked on a lock or a file."""
        try:
            pid = pid_of(self._handle)
            return "\nState:\tR" in Path(f"/proc/{pid}/status").read_text()
        except (OSError, ValueError):
            return False

    def close_if_idle(self, seconds: float) -> None:
        """Ends the process if it was idle for so long, to free its memory."""
        if self._lock.acquire(blocking=False):
            try:
                if time.monotonic() - self._asked_s > seconds:
                    self.close()
            finally:
                self._lock.release()

    def _kill(self) -> KilledProcess:
        self.ended += 1
        killed = KilledProcess(self._end())
        self._killed.append(killed)
        return killed

    def close(self) -> None:
        """Ends the process; the next question forks a new one."""
        with self._lock:
            if self._connection is not None:
                os.close(self._end())

    def _end(self) -> int:
        """The descriptor that stands for it."""
        assert self._connection
        self._connection.close()
        self._connection = None
        with suppress(OSError):  # it has ended; or it is not ours to end, and ends as its connection has
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        return self._handle


class SpareProcess:
    """Asks a shared process while it is free, else one of its own, forked when needed.

    Two take memory only while both are busy. Its own is for the thread that makes this, which so waits for 20 ms at
    most, and not at all while its own is there; other threads wait for theirs. For tasks that do not depend on earlier
    ones. is_over: see SandboxedProcess.ask; of that thread.
    """

    def __init__(self, others: SandboxedProcess, own: SandboxedProcess) -> None:
        self._others, self._own = others, own
        self._thread = threading.get_ident()
        self.is_over: Callable[[], bool] = lambda: False

    def ask(
        self,
        task: str,
        content: dict[str, Any] | None = None,
        *,
        files: Sequence[int] = (),
        cpu_s: float,
        wall_s: float,
        is_patient: bool = False,
    ) -> Message:
        """See `SandboxedProcess.ask`."""
        is_mine = threading.get_ident() == self._thread
        patience_s = -1.0 if not is_mine else 0.0 if self._own.is_running else _MAX_BUSY_S
        is_free = self._others.lock.acquire(timeout=patience_s)
        asked = self._others if is_free else self._own
        try:
            return asked.ask(
                task,
                content,
                files=files,
                cpu_s=cpu_s,
                wall_s=wall_s,
                is_patient=is_patient,
                is_over=self.is_over if is_mine else lambda: False,
            )
        finally:
            if is_free:
                self._others.lock.release()


def _check(answer: Message) -> Message:
    if "refused" not in answer.content:
        return answer
    for file in answer.files:
        os.close(file)
    kind, number = answer.content.get("error"), answer.content.get("errno")
    raise RefusedAnswerError(
        str(answer.content["refused"])[:_MAX_REASON],
        str(kind or ""),
        number if isinstance(number, int) else 0,
        str(answer.content.get("hint", ""))[:_MAX_REASON],
    )
