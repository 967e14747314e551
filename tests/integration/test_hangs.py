"""Programs that hang outside GPU calls are named while they hang, by one recording of many; pauses are no hangs."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.incidents.ambient import MAX_OTHERS, Usage, favored
from ingero.demo.faults import cgroups
from tests.integration.targets import Simulation, rows, simulation, until
from tests.integration.tracing import Tracer, tracing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU"),
]

_PROGRAM = Path(__file__).parent / "hangs" / "program.py"
_STEPS_S = 4.0  # with steps that are recorded, before they hang
_PAUSE_S = 9.0  # of those that go on
NAMED_WITHIN_S = 10.0
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17  # of ptrace

# What the summary must say of each; the line is the one that is marked in the program.
HANGS = {
    "full_pipe": "waits for room in a pipe that {tester} should read (write, S)",
    "stopped_terminal": "waits in write for its terminal {terminal}, which takes no output",
    "forked_lock": "waits for a lock in its own memory that no thread is left to release: it was held when",
    "lock_file": "polls for {folder}/lock_file, sleeping in between (clock_nanosleep, S)",
    "flocked": "waits for the lock of {folder}/flocked that {tester} holds (flock, S)",
    "record_locked": "waits for the lock of {folder}/record_locked that {tester} holds (fcntl, S)",
    "dead_worker": "ended with code 3",
    "killed_worker": "was ended by signal 7",
    "stopped_worker": "should fill, which is stopped (read, S)",
    "silent_peer": "waits for data from tcp 127.0.0.1:{port} (recvfrom, S)",
    "deadlock": "waits for a lock in its own memory that no thread will release: all 2 threads of it wait for locks",
    "stopped_child": "to end, which is stopped (wait4, S)",
}
PAUSES = ("evaluation", "checkpoint", "slow_worker", "between_phases", "debugged", "ends", "idle_server")


@dataclass
class Hung:
    """What was told of each program. named: (unix ns, incident) by program, as it was opened."""

    database: Path
    folder: Path
    pids: dict[str, int]
    port: int
    terminal: str
    began_ns: int = 0
    others: float = 0.0  # of the CPUs, used by others meanwhile
    named: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    stopped: list[dict[str, Any]] = field(default_factory=list)

    def read(self, tracer: Tracer) -> None:
        """Takes what the tracer says, until it has ended."""
        of_pid = {str(pid): name for name, pid in self.pids.items()}
        assert tracer.process.stdout is not None
        for line in tracer.process.stdout:
            message = json.loads(line)
            incident = message.get("incident", {})
            name = of_pid.get(incident.get("root", ""))
            if name and message["type"] == "incident_opened" and incident["cause"] == "host-hang":
                self.named.setdefault(name, (time.time_ns(), incident))

    def lacks(self, name: str) -> list[str]:
        """What should have been said of a program that was named: state and object, severity, the line that waits."""
        incident = self.named[name][1]
        tester = f"{Path('/proc/self/comm').read_text().strip()} [{os.getpid()}]"
        wanted = [
            HANGS[name].format(tester=tester, folder=self.folder, port=self.port, terminal=self.terminal),
            f"/program.py:{_line(name)}",
        ]
        problems = [f"{one!r} in {incident['headline']!r}" for one in wanted if one not in incident["headline"]]
        return problems + ([] if incident["severity"] == "CRITICAL" else [f"CRITICAL, is {incident['severity']}"])

    def took_s(self, name: str) -> float:
        """Until it was named."""
        return (self.named[name][0] - self.began_ns) / 1e9

    def reported(self, cause: str) -> dict[str, str]:
        """The stored summaries of a cause, by program."""
        of_pid = {str(pid): name for name, pid in self.pids.items()}
        sql = f"SELECT root, summary FROM raw_incidents WHERE cause = '{cause}'"
        return {of_pid[root]: summary for root, summary in rows(self.database, sql) if root in of_pid}


@contextmanager
def _program(simulated: Simulation, name: str, *more: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, _PROGRAM, name, simulated.folder / "gate", *more]
    output = subprocess.PIPE if name == "full_pipe" else subprocess.DEVNULL
    process = subprocess.Popen(
        [str(word) for word in command], env=simulated.environment, stdout=output, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with its workers, which wait, too
        process.wait()
        if process.stdout:
            process.stdout.close()


def _locked(path: Path, *, is_record: bool = False) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    (fcntl.lockf if is_record else fcntl.flock)(descriptor, fcntl.LOCK_EX)
    return descriptor


def _stopped_terminal(stack: ExitStack) -> str:
    """The path of a terminal whose output was stopped, as by Ctrl-S."""
    master, slave = os.openpty()
    stack.callback(os.close, master)
    stack.callback(os.close, slave)
    termios.tcflow(slave, termios.TCOOFF)
    return os.ttyname(slave)


def _ask(port_file: Path, gate: Path, stack: ExitStack) -> None:
    """Asks the server again and again until the gate opens; the connection stays for as long as the stack."""
    until(lambda: port_file.exists() and bool(port_file.read_text()), "the server listens")
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", int(port_file.read_text()))))
    while not gate.exists():
        connection.send(b"?")
        time.sleep(0.06)


def _debug(pid: int, gate: Path) -> None:
    """Holds a process as a debugger does; the thread that began must end it."""
    libc = ctypes.CDLL(None, use_errno=True)
    until(gate.exists, "the programs hang")
    assert libc.ptrace(_SEIZE, pid, None, None) == 0
    assert libc.ptrace(_INTERRUPT, pid, None, None) == 0
    os.waitpid(pid, 0x40000000)  # __WALL
    time.sleep(_PAUSE_S)
    assert libc.ptrace(_DETACH, pid, None, None) == 0


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Hung:
    """What was told of all of them."""
    return hang_side_by_side(tmp_path_factory.mktemp("hangs"))


def hang_side_by_side(folder: Path, options: Sequence[str] = ()) -> Hung:
    """All of them at once: some seconds of steps, then each does its own for twelve. options: of the tracer."""
    simulated = simulation(folder)
    gate = folder / "gate"
    (folder / "lock_file").touch()
    before = Usage.now()
    with nullcontext() if cgroups.missing("cpu") else favored(), ExitStack() as stack:
        for name in ("flocked", "record_locked"):
            stack.callback(os.close, _locked(folder / name, is_record=name == "record_locked"))
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = int(listening.getsockname()[1])
        terminal = _stopped_terminal(stack)
        more: dict[str, object] = {
            name: folder / name for name in ("lock_file", "flocked", "record_locked", "checkpoint", "idle_server")
        }
        more |= {"silent_peer": port, "stopped_terminal": terminal}
        programs = {
            name: stack.enter_context(_program(simulated, name, more.get(name, ""))) for name in (*HANGS, *PAUSES)
        }
        pids = {name: process.pid for name, process in programs.items()}
        with tracing(folder, pids=list(pids.values()), options=options) as tracer:
            found = Hung(tracer.database, folder, pids, port, terminal)
            threads = [
                threading.Thread(target=found.read, args=(tracer,), daemon=True),
                threading.Thread(target=_ask, args=(folder / "idle_server", gate, stack), daemon=True),
                threading.Thread(target=_debug, args=(pids["debugged"], gate), daemon=True),
            ]
            for thread in threads:
                thread.start()
            until(lambda: len(list(folder.glob("ready.*"))) == len(programs), "every program has made steps")
            time.sleep(_STEPS_S)
            found.began_ns = time.time_ns()
            gate.touch()
            for thread in threads[1:]:
                thread.join()
            time.sleep(3)  # the last of the pauses is over, and looked at
            tracer.process.send_signal(signal.SIGINT)
            threads[0].join()
            assert tracer.process.wait() == 0
    found.others = Usage.now().others_since(before)
    return found


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_named_within_ten_seconds(hung: Hung, name: str) -> None:
    assert name in hung.named, f"told of {sorted(hung.named)}"
    assert hung.lacks(name) == []
    took_s = hung.took_s(name)
    if took_s > NAMED_WITHIN_S and hung.others > MAX_OTHERS:
        pytest.skip(f"other load on this machine took {hung.others:.0%} of the CPUs meanwhile")
    assert took_s <= NAMED_WITHIN_S


def _line(name: str) -> int:
    """The marked line of a function, or of one in it."""
    lines = _PROGRAM.read_text().splitlines()
    begin = lines.index(next(line for line in lines if line.startswith(f"def {name}(")))
    return next(number for number, line in enumerate(lines[begin:], begin + 1) if line.endswith("# here"))


def test_pauses_are_no_hangs(hung: Hung) -> None:
    assert set(hung.reported("host-hang")) == set(HANGS)


def test_who_holds_a_program_as_a_debugger_is_said(hung: Hung) -> None:
    assert f"[{os.getpid()}]" in hung.reported("stopped")["debugged"]
