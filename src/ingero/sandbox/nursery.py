"""The process that forks the others: itself forked early, before there is anything to inherit; a fork takes 2 ms."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingero.errors import IngeroError
from ingero.sandbox import rights
from ingero.sandbox.messages import ClosedError, Message, receive, send
from ingero.sandbox.run_delay import RunDelay

Task = Callable[[Message], Message]
"""Answers one question; what it raises is the answer, too. Files of the answer are closed once it has been sent,
those of the question as soon as there is one."""

WAITED_S = "waited_s"
"""In every answer: for how long the process waited for a CPU."""
_MIN_CPU_S = 3600  # of a process that only answers: it is replaced by then, in between
_NO_FILE = os.devnull
_MAX_PIDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessKind:
    """One kind of sandbox process: its tasks, capabilities and limits.

    name: as `ps` shows it, 15 bytes. tasks: made in the process itself, which may keep what it likes between questions.
    capabilities: kept, where there are any. memory_bytes: of addresses beside those that it begins with. file_bytes: of
    each file that it writes. is_nobody: gives up who it is as well; else its files stay within reach.
    """

    name: str
    tasks: Callable[[], Mapping[str, Task]]
    capabilities: frozenset[int] = frozenset()
    memory_bytes: int = 256 << 20
    file_bytes: int = 0
    open_files: int = 4096
    is_nobody: bool = True


class CannotForkError(IngeroError):
    """No process can be forked."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"cannot start the process that reads files for this one: {reason}",
            hint="check the limits of processes and memory: ulimit -u, free -m",
        )


class Nursery:
    """Use as a context manager, entered before threads are started and files are opened; leaving it ends them all.

    kinds: by their names, which `make` takes. prepare: done once in it, such as imports that take rights to find.
    pids: of itself and of what it has made, also of what has ended.
    """

    def __init__(self, kinds: Mapping[str, ProcessKind], prepare: Callable[[], object] = lambda: None) -> None:
        self._kinds, self._prepare = kinds, prepare
        self._control: socket.socket | None = None
        self._pid = 0
        self.pids: set[int] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Nursery:
        mine, its = socket.socketpair()
        gc.freeze()  # what is shared with those to come stays shared: the collector writes into all that it looks at
        with warnings.catch_warnings():  # of Python 3.12 and later, where threads run: what they hold is not used here
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            _end_after(lambda: _run(its, self._kinds, self._prepare))
        self.pids = {self._pid}
        its.close()
        self._control = mine
        return self

    def __exit__(self, *_: object) -> None:
        if self._control:
            self._control.close()
            self._control = None
            os.kill(self._pid, signal.SIGKILL)  # it is our child and not waited for: the pid is still its own
            os.waitpid(self._pid, 0)

    def make(self, kind: str) -> tuple[socket.socket, int]:
        """Forks a process of a kind; returns a connection to it, and its pidfd.

        Raises:
            CannotForkError: see there.
        """
        mine, its = socket.socketpair()
        try:
            with self._lock:
                if self._control is None:
                    raise ClosedError("all are to end")
                send(self._control, Message({"kind": kind}, files=[its.fileno()]))
                answer = receive(self._control)
        except ClosedError as error:
            mine.close()
            raise CannotForkError(str(error)) from None
        finally:
            its.close()
        if len(answer.files) != 1:
            mine.close()
            raise CannotForkError(str(answer.content.get("error", "")))
        self._note(answer.files[0])
        return mine, answer.files[0]

    def _note(self, handle: int) -> None:
        pid = pid_of(handle)
        if len(self.pids) >= _MAX_PIDS:
            self.pids = {self._pid}
        self.pids = self.pids | {pid}  # anew: others read it meanwhile


def pid_of(handle: int) -> int:
    """The pid of a pidfd; -1 if the process has ended.

    Raises:
        OSError, ValueError: it stands for none.
    """
    text = Path(f"/proc/self/fdinfo/{handle}").read_text()
    return int((text.partition("\nPid:")[2].split() or [""])[0])


def _end_after(work: Callable[[], None]) -> None:
    """Runs `work` in a forked process and exits without any cleanup of the parent's state."""
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def _run(control: socket.socket, kinds: Mapping[str, ProcessKind], prepare: Callable[[], object]) -> None:
    os.setsid()  # Ctrl-C is for the agent
    rights.end_with_parent("ingero-nursery")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    close_all_but(control)
    prepare()
    gc.freeze()
    while True:
        try:
            request = receive(control)
        except ClosedError:
            return
        _answer(control, kinds[request.content["kind"]], request.files[0])


def _answer(control: socket.socket, kind: ProcessKind, connection: int) -> None:
    try:
        pid = os.fork()
        if not pid:
            control.close()
            _end_after(lambda: _serve(socket.socket(fileno=connection), kind))
        handle = os.pidfd_open(pid)
    except OSError as error:
        send(control, Message({"error": str(error)}))
        return
    finally:
        os.close(connection)
    send(control, Message({}, files=[handle]))
    os.close(handle)


def _serve(connection: socket.socket, kind: ProcessKind) -> None:
    rights.end_with_parent(kind.name)
    tasks, delay = kind.tasks(), RunDelay()
    rights.limit_room(
        memory_bytes=kind.memory_bytes, file_bytes=kind.file_bytes, open_files=kind.open_files, cpu_s=_MIN_CPU_S
    )
    rights.keep(kind.capabilities, is_nobody=kind.is_nobody)
    rights.end_with_parent(kind.name)  # the kernel forgets it where a process becomes somebody else
    while True:
        try:
            question = receive(connection)
        except ClosedError:
            return
        rights.limit_cpu_to(float(question.content.pop("cpu_s")))
        before_s = delay.seconds()
        answer = _answer_to(tasks, question)
        answer.content[WAITED_S] = delay.seconds() - before_s
        send(connection, answer)
        for file in answer.files:
            os.close(file)


def _answer_to(tasks: Mapping[str, Task], question: Message) -> Message:
    try:
        return tasks[question.content.pop("task")](question)
    except IngeroError as error:
        reason_content = {
            "refused": str(getattr(error, "reason", "") or error),
            "error": type(error).__name__,
            "hint": error.hint,
        }
        return Message(reason_content)
    except MemoryError:
        return Message({"refused": "it needs more memory than it may use"})
    except OSError as error:
        return Message({"errno": error.errno, "refused": str(error.strerror or error)[:500]})
    except Exception as error:  # what a damaged file leads to; the text is bounded, and shown
        reason = str(getattr(error, "reason", "") or error)
        return Message({"refused": reason[:500] or type(error).__name__, "error": type(error).__name__})
    finally:
        for file in question.files:
            if file >= 0:
                os.close(file)


def close_all_but(connection: socket.socket) -> None:
    """Closes all files of this process but one; standard streams become /dev/null."""
    for descriptor in (0, 1, 2):
        nothing = os.open(_NO_FILE, os.O_RDWR)
        os.dup2(nothing, descriptor)
        os.close(nothing) if nothing > 2 else None
    kept = connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
