"""A process that runs one command repeatedly, unprivileged, within limits, with data on its standard input.

It is forked before there is anything to inherit. It ends a command, and all that the command started, when the time is
over, when the command has ended, and when the process that asked for it is gone.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ingero.errors import IngeroError
from ingero.program import command
from ingero.sandbox import rights
from ingero.sandbox.messages import ClosedError, Message, receive, send
from ingero.sandbox.nursery import close_all_but

PATH = "/usr/local/bin:/usr/bin:/bin"
_NAME = "ingero-command"
_START_S = 30.0  # as the node's server
_PATIENCE_S = 5.0  # beyond a command's time: for what it started to end
_SWEEP_S = 1.0
_CPU_S = 10
_DATA_BYTES = 512 << 20  # what is written to; runtimes reserve far more addresses
_FILE_BYTES = 16 << 20
_OPEN_FILES = 256
_NICE = 10  # the workload goes first
_OUTPUT_BYTES = 2048  # the last of what it printed; that says why it failed


class CommandError(IngeroError):
    """The command cannot be run as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user to run a command as. home: its HOME; the current folder is /."""

    uid: int
    gid: int
    home: str


NOBODY = User(uid=rights.NOBODY, gid=rights.NOBODY, home="/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How one run ended. exit_code: minus the signal where one ended it; None: it was killed, or never began.

    output: the last of what it printed, at most 2 KiB. error: why it could not be started, else "".
    """

    exit_code: int | None
    is_timed_out: bool = False
    output: str = ""
    error: str = ""


class CommandRunner:
    """A context manager, entered before threads are started and files are opened.

    arguments: the program and its arguments; no shell is involved. user: the user it becomes, if it is
    root. wall_s: what a run may take.
    """

    def __init__(self, arguments: Sequence[str], user: User, wall_s: float) -> None:
        self._arguments, self._user, self._wall_s = tuple(arguments), user, wall_s
        self._connection: socket.socket | None = None
        self._pid = 0

    def __enter__(self) -> CommandRunner:
        self._connection, its = socket.socketpair()
        with warnings.catch_warnings():  # of Python 3.12 and later, where threads run: what they hold is not used here
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                _serve(its, self._arguments, self._user, self._wall_s)
                status = 0
            finally:
                os._exit(status)  # nothing of what its parent does at its end is for this process
        its.close()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the runner and its running command."""
        if self._connection is None:
            return
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # which it sees, and the waiting thread, too
        self._connection.close()
        self._connection = None
        until_s = time.monotonic() + _PATIENCE_S
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > until_s:
                os.kill(self._pid, signal.SIGKILL)  # our child and not waited for: the pid is still its own
                os.waitpid(self._pid, 0)
                return
            time.sleep(0.01)

    def start(self) -> str:
        """Waits until the runner has dropped its privileges; returns the path of the program.

        Raises:
            CommandError: there is no such program for that user, or root's rights cannot be given up.
        """
        assert self._connection
        try:
            answer = receive(self._connection, until_s=time.monotonic() + _START_S).content
        except (ClosedError, TimeoutError):
            raise CommandError("the process that runs commands did not start", hint="ulimit -u, free -m") from None
        if "error" in answer:
            raise CommandError(answer["error"], hint=answer["hint"])
        return str(answer["program"])

    def run(self, data: bytes) -> CommandResult:
        """Runs the command once, and waits for it. data: its standard input."""
        if self._connection is None:
            return CommandResult(exit_code=None, error="the process that runs commands has ended")
        until_s = time.monotonic() + self._wall_s + _PATIENCE_S
        try:
            send(self._connection, Message({}, data), until_s=until_s)
            return CommandResult(**receive(self._connection, until_s=until_s).content)
        except (ClosedError, TimeoutError) as error:
            return CommandResult(exit_code=None, error=f"the process that runs commands does not answer: {error}")


def _serve(connection: socket.socket, arguments: Sequence[str], user: User, wall_s: float) -> None:
    os.setsid()  # Ctrl-C is for the agent
    rights.be_named(_NAME)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    close_all_but(connection)
    os.chdir("/")
    os.umask(0o077)
    rights.adopt_orphans()
    try:
        program = _prepare(arguments[0], user)
    except CommandError as error:
        send(connection, Message({"error": str(error), "hint": error.hint}))
        return
    send(connection, Message({"program": program}))
    environment = {"PATH": PATH, "HOME": user.home, "LANG": "C.UTF-8"}
    while True:
        try:
            question = receive(connection)
            ended = _run(connection, [program, *arguments[1:]], environment, question.data, wall_s)
            send(connection, Message(asdict(ended)))
        except ClosedError:
            return


def _prepare(name: str, user: User) -> str:
    """Drops all privileges; returns the path of the program as the remaining user finds it."""
    if os.geteuid() == 0:
        try:
            rights.become(user.uid, user.gid)
        except OSError as error:
            raise CommandError(
                f"root's rights cannot be given up for --on-incident: {error.strerror}",
                hint="add CAP_SETUID and CAP_SETGID, or record as a user with capabilities: "
                f"{command('service', 'install')}",
            ) from error
    rights.keep((), is_nobody=False)
    with suppress(OSError):  # a seccomp filter may forbid it
        os.nice(_NICE)
    program = shutil.which(name, path=PATH)
    if program is None:
        where = "it is not a program" if "/" in name else f"it is not in {PATH}"
        raise CommandError(
            f"--on-incident: user {os.getuid()} cannot run {name!r}: {where}",
            hint="name a program by its whole path, which that user may run; for a shell write: sh -c '...'",
        )
    return program


def _run(
    connection: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], data: bytes, wall_s: float
) -> CommandResult:
    until_s = time.monotonic() + wall_s
    output, printed = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(printed, True)  # of the command; the other end is ours
    try:
        with os.fdopen(os.memfd_create("incident"), "w+b") as given:  # a command that does not read it blocks nothing
            given.write(data)
            given.seek(0)
            process = subprocess.Popen(
                arguments, stdin=given, stdout=printed, stderr=printed, env=environment, start_new_session=True,
                preexec_fn=_limit,  # noqa: PLW1509  # this process has one thread
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        os.close(output)
        return CommandResult(exit_code=None, error=str(error)[:500])
    finally:
        os.close(printed)
    try:
        text, is_timed_out = _wait(connection, process.pid, output, until_s)
    finally:
        os.close(output)
        _end_all(process)
    shown = text.decode("utf-8", "replace")
    return CommandResult(
        exit_code=None if is_timed_out else process.returncode, is_timed_out=is_timed_out, output=shown
    )


def _limit() -> None:
    """Sets limits in the command's process, before exec."""
    rights.end_with_parent(_NAME)
    for limit, value in (
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_DATA, _DATA_BYTES),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))


def _wait(connection: socket.socket, pid: int, output: int, until_s: float) -> tuple[bytes, bool]:
    """The end of the command's output, and whether it timed out.

    Raises:
        ClosedError: the asking side is gone.
    """
    handle = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (handle, output, connection.fileno()):
        poll.register(descriptor, select.POLLIN)
    text = b""
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(1000 * left_s)}
            if handle in ready:
                return (text + _read(output))[-_OUTPUT_BYTES:], False
            if output in ready:
                piece = _read(output)
                text = (text + piece)[-_OUTPUT_BYTES:]
                if not piece:  # it has closed them, and goes on
                    poll.unregister(output)
            if connection.fileno() in ready:  # nothing is asked before there is an answer: it was closed
                raise ClosedError("the process that asked has ended")
        return text, True
    finally:
        os.close(handle)


def _read(output: int) -> bytes:
    """Reads what a pipe holds."""
    try:
        return os.read(output, 1 << 16)
    except BlockingIOError:
        return b""


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Kills the command and all its descendants, also those that left its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet: the number is still its own
    process.wait()
    until_s = time.monotonic() + _SWEEP_S
    while (orphans := _children()) and time.monotonic() < until_s:
        for pid in orphans:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)  # our children, not waited for
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _children() -> list[int]:
    """The pids of all children; also empty if the kernel does not list them (CONFIG_PROC_CHILDREN)."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []
