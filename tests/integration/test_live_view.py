"""`ingero trace` on a terminal: true numbers, any size, and a terminal that is left as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ingero.capture.loop.single_agent import RUN_FOLDER_VARIABLE
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program
from ingero.ops import BY_NAME
from tests.integration.targets import rows, until

TAKE_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """A program on a pseudo-terminal; `text` is everything it has sent."""

    def __init__(self, command: list[str], *, columns: int, lines: int, variables: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.resize(columns, lines)
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True
        )
        self._sent: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # EIO: the other end is closed
            while data := os.read(self._master, 1 << 16):
                self._sent.append(data)

    @property
    def text(self) -> str:
        return b"".join(self._sent).decode(errors="replace")

    @property
    def frames(self) -> list[str]:
        """What it drew, one text per frame, without control sequences."""
        drawn = self.text.split(TAKE_SCREEN)[-1].split(LEAVE_SCREEN)[0].split("\x1b[H")[1:]
        return [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", frame).replace("\r", "") for frame in drawn]

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if hasattr(self, "process"):  # the terminal is not its controlling one, so nobody else tells it
            self.process.send_signal(signal.SIGWINCH)

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)


@contextmanager
def traced(
    folder: Path, *options: str, columns: int = 120, lines: int = 60, variables: dict[str, str] | None = None
) -> Iterator[Terminal]:
    """The live view of a trainer on the simulated GPU."""
    simulated = {**os.environ, **environment(build(), ctl=folder / "knobs", sched="block")}
    arguments = ("--seconds", 120, "--knob", folder / "host.knobs")
    with Program.module("train", *arguments, environment=simulated) as trainer:
        trainer.wait_for("ready")
        command = [sys.executable, "-m", "ingero.cli.main", "trace", "--pid", str(trainer.pid)]
        command += ["--db", str(folder / "recording.db"), *options]
        own = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "33", "LD_LIBRARY_PATH": str(build())}
        own[RUN_FOLDER_VARIABLE] = str(folder)  # the shared view runs on beside those of tests
        own |= variables or {}
        terminal = Terminal(command, columns=columns, lines=lines, variables=own)
        try:
            yield terminal
        finally:
            terminal.close()


def end(terminal: Terminal) -> None:
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(60) == 0, terminal.text[-2000:]
    until(lambda: "look at it with" in terminal.text, "the closing summary")


def test_the_view_shows_what_the_database_has(tmp_path: Path) -> None:
    with traced(tmp_path, "--duration", "6s") as terminal:
        assert terminal.process.wait(60) == 0, terminal.text[-2000:]
        until(lambda: "look at it with" in terminal.text, "the closing summary")
        *_, frame = terminal.frames
    parts = (
        "ingero trace 0:0",
        "TRACED  python",
        "CPU ",
        "GPU 0",
        "threads ",
        "in calls ",
        "ran instead",
        "RUNTIME API",
    )
    parts += ("DRIVER API", "HOST", "sched_switch", "DROPPED", "AGENT", "PROBES", "libcudart.so.12")
    for part in parts:
        assert part in frame, frame
    # less than ten seconds: the window is the whole recording, so the view's counts are sums of its first seconds
    shown = re.search(r"^cudaLaunchKernel +([\d,]+) +\S+ [µu]s", frame, re.MULTILINE)
    assert shown is not None, frame
    launch = BY_NAME["cudaLaunchKernel"]
    counts = rows(
        tmp_path / "recording.db",
        "SELECT sum(count) OVER (ORDER BY start_ns) FROM (SELECT start_ns, sum(count) AS count FROM raw_op_stats "
        "WHERE source = ? AND op = ? GROUP BY start_ns)",
        int(launch.source),
        launch.code,
    )
    assert int(shown[1].replace(",", "")) in [count for (count,) in counts]


def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with traced(tmp_path) as terminal:
        until(lambda: len(terminal.frames) >= 3, "three frames")
        end(terminal)
        text, modes = terminal.text, terminal.modes()
        assert modes == terminal.before
    assert (text.count(TAKE_SCREEN), text.count(LEAVE_SCREEN)) == (1, 1)
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
    assert text.rindex(LEAVE_SCREEN) < text.index("ending: detaching probes") < text.index(" calls, ")
    assert f" explain --db {tmp_path / 'recording.db'}" in text


def test_a_second_ctrl_c_finds_the_terminal_restored(tmp_path: Path) -> None:
    with traced(tmp_path) as terminal:
        until(lambda: len(terminal.frames) >= 2, "two frames")
        terminal.process.send_signal(signal.SIGINT)
        until(lambda: "ending: detaching probes" in terminal.text, "the first one is heard")
        terminal.process.send_signal(signal.SIGINT)
        terminal.process.wait(60)
        text = terminal.text
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)
    assert text.count(TAKE_SCREEN) == text.count(LEAVE_SCREEN)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Terminal, Path]]:
    """A view that several tests disturb, each of which leaves it running, and its recording."""
    folder = tmp_path_factory.mktemp("shared")
    with traced(folder, columns=200, lines=60) as terminal:
        until(lambda: len(terminal.frames) >= 2, "two frames")
        yield terminal, folder / "recording.db"
        end(terminal)
        assert terminal.text.count(TAKE_SCREEN) == terminal.text.count(LEAVE_SCREEN)


def test_a_terminal_that_changes_its_size_is_followed(shared: tuple[Terminal, Path]) -> None:
    terminal, _ = shared
    for columns, lines in ((80, 24), (1, 1), (0, 0), (100, 30)):
        terminal.resize(columns, lines)
        drawn = len(terminal.frames)
        until(lambda drawn=drawn: len(terminal.frames) > drawn + 1, "the next frames")  # type: ignore[misc]
    *_, frame = [frame for frame in terminal.frames if len(frame.splitlines()) == 30]
    assert {len(line) for line in frame.splitlines()} == {100}


def test_a_terminal_that_takes_nothing_does_not_stop_the_recording(shared: tuple[Terminal, Path]) -> None:
    terminal, database = shared
    termios.tcflow(terminal._slave, termios.TCOOFF)  # Ctrl-S, at any moment of a frame
    count = "SELECT count(DISTINCT start_ns) FROM raw_op_stats"
    ((before,),) = rows(database, count)
    until(lambda: rows(database, count)[0][0] > before + 2, "seconds are recorded meanwhile")
    termios.tcflow(terminal._slave, termios.TCOON)
    drawn = len(terminal.frames)
    until(lambda: len(terminal.frames) > drawn, "the next frame")


def test_a_suspended_view_gives_the_terminal_back_and_returns(shared: tuple[Terminal, Path]) -> None:
    terminal, _ = shared
    left = terminal.text.count(LEAVE_SCREEN)
    terminal.process.send_signal(signal.SIGTSTP)
    pid, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    until(lambda: terminal.text.count(LEAVE_SCREEN) == left + 1, "the normal screen is back")
    terminal.process.send_signal(signal.SIGCONT)
    until(lambda: terminal.text.count(TAKE_SCREEN) == left + 2, "the view is back")
    drawn = len(terminal.frames)
    until(lambda: len(terminal.frames) > drawn, "it draws again")
    assert pid == terminal.process.pid


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path: Path, term: str) -> None:
    with traced(tmp_path, variables={"TERM": term}) as terminal:
        until(lambda: terminal.text.count("calls/s") >= 2, "two lines")
        end(terminal)
        assert "\x1b" not in terminal.text
