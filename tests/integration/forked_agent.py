"""Agents forked from a process that has imported the command: of the CPU time of a start, a third is imports.

What is imported is what an agent has imported when it forks its sandbox, so that the sandbox inherits no more than it
does otherwise; from `main()` on all is the same. A program is started where the dynamic linker or the interpreter is to
read variables, within another command, and by the tests and benches that start `ingero` themselves.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

MODULE = "ingero.cli.main"
_ROOT = Path(__file__).resolve().parents[2]
_MOST_REQUEST_BYTES = 1 << 17  # an environment and a command line
_NUMBER = struct.Struct("i")
_READ_BY_OTHERS = ("LD_", "PYTHON")  # variables that only a new program obeys
_SET_THERE, _SET_HERE = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}, ("-m", MODULE)


def can_be_forked(environment: Mapping[str, str], within: Sequence[str]) -> bool:
    """Whether a forked agent behaves like a started one. environment: added to that of this process."""
    if within or _control_groups() != _HOME:
        return False
    return not any(
        name.startswith(_READ_BY_OTHERS) and _SET_THERE.get(name) != value for name, value in environment.items()
    )


def _control_groups() -> str:
    return Path("/proc/self/cgroup").read_text()


_HOME = _control_groups()  # of the server, too, where a test moves this process for a while


class ForkedAgent:
    """The part of `subprocess.Popen` that tests use, for an agent that is a child of the server."""

    stdin = stderr = None

    def __init__(self, command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: object) -> None:
        """command: python -m ingero.cli.main ...; its output is text and a pipe, and its session its own."""
        program, *as_module = command[:3]
        assert (program, tuple(as_module)) == (sys.executable, _SET_HERE)
        self.args = command
        self.returncode: int | None = None
        request = {
            "arguments": command[3:],
            "env": dict(env),
            "cwd": str(Path.cwd()),
            "cpus": [*os.sched_getaffinity(0)],
        }
        output, its_output = os.pipe()
        self._status, its_status = os.pipe()
        try:
            files = [its_output, stderr.fileno(), its_status]
            socket.send_fds(_server(), [json.dumps(request).encode()], files)
        finally:
            os.close(its_output)
            os.close(its_status)
        self.stdout = os.fdopen(output)
        self.pid = self._number()

    def _number(self) -> int:
        data = os.read(self._status, _NUMBER.size)
        assert data, "the server of agents has ended"
        return int(_NUMBER.unpack(data)[0])

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; negative: the signal.

        Raises:
            subprocess.TimeoutExpired: it has not by then.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        """The exit code if the agent has ended, else None."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> ForkedAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.wait()


@cache
def _server() -> socket.socket:
    """The connection to this process's server, which ends with it."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(its.fileno())],
            pass_fds=[its.fileno()],
            cwd=_ROOT,
            env={**os.environ, **_SET_THERE},
            start_new_session=True,
        )

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


def _is_to_become_an_agent(connection: socket.socket) -> bool:
    """Serves; True in a process that is to be an agent from now on, False once nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries those that wait for the agents
    while True:
        data, files, _, _ = socket.recv_fds(connection, _MOST_REQUEST_BYTES, 3)
        if not data:
            return False
        if not os.fork():
            connection.close()
            return _is_forked(json.loads(data), files)
        for file in files:
            os.close(file)


def _is_forked(request: dict[str, Any], files: Sequence[int]) -> bool:
    """True in the agent; the process that waits for it says its number and how it ended, and ends itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output, errors, status = files
    pid = os.fork()
    if not pid:
        _begin(request, output, errors)
        return True
    with suppress(OSError):  # nobody may want to know any more
        os.close(output)
        os.close(errors)
        os.write(status, _NUMBER.pack(pid))
        _, code = os.waitpid(pid, 0)
        os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(code)))
    os._exit(0)


def _begin(request: dict[str, Any], output: int, errors: int) -> None:
    """As `python -m ingero.cli.main` begins in a session of its own."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cpus"])
    sys.argv = [sys.modules[MODULE].__file__ or "", *request["arguments"]]
    sys.orig_argv = [sys.executable, *_SET_HERE, *request["arguments"]]


if __name__ == "__main__":
    import ingero.cli.trace.command  # noqa: F401  # what the agent imports before it forks its sandbox
    from ingero.cli.main import main

    gc.freeze()  # what is shared stays shared
    if _is_to_become_an_agent(socket.socket(fileno=int(sys.argv[1]))):
        main()
