"""The live view of `trace` on a terminal: the alternate screen, one frame per second."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO, cast

from rich.console import Console

from ingero.attach.kernel_side import KernelSide
from ingero.capture.loop.recorder import Recorder
from ingero.capture.loop.second import SecondOfCounts
from ingero.cli.change_line import change_line
from ingero.cli.live.frame import frame
from ingero.cli.live.gpu_watch import GpuWatch
from ingero.cli.live.lines import ASCII, UNICODE
from ingero.cli.live.painting import Painter
from ingero.cli.live.snapshot import Snapshots
from ingero.cli.live.state import LiveState
from ingero.cli.live.terminal_output import TerminalOutput
from ingero.cli.live.window import Window
from ingero.cli.trace.summary import Summary
from ingero.diagnose.incidents.incident_changes import Change
from ingero.foreign_text import visible

_FRAME_S = 0.9  # a crowded table of processes is read 20 times a second; nobody reads a screen that often
_MIN_COLUMNS, _MIN_ROWS = 20, 4  # below it nothing can be read; some terminals say 0 by 0
_ENDING = (signal.SIGINT, signal.SIGTERM)


class LiveView:
    """Shows a recording until it stops; then restores the terminal and prints the summary.

    Enter it after the signal handlers are installed: at the first Ctrl-C the normal screen comes back before they run,
    so that a second Ctrl-C, which ends the program at once, leaves no terminal without a cursor.
    database: None if nothing is kept.
    """

    def __init__(self, summary: Summary, database: Path | None, stream: TextIO | None = None) -> None:
        self._summary, self._database, self._stream = summary, database, stream or sys.stdout
        self._output = TerminalOutput(self._stream)
        self._encoding = self._output.encoding
        self._glyphs = UNICODE if self._encoding in ("utf-8", "utf8") else ASCII
        # Rich believes COLUMNS and LINES, which a shell may have exported before the window changed its size
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._console = Console(
            file=cast("TextIO", self._output), force_terminal=True, highlight=False, _environ=environ
        )
        self._window, self._gpus, self._log = Window(), GpuWatch(), _LastWarnings()
        self._painter = Painter(self._console, self._encoding)
        self._has_screen = False
        self._snapshots: Snapshots | None = None
        self._state = LiveState()
        self._is_drawing = self._is_over = self._is_to_stop = False
        self._drawn_s = 0.0
        self._findings: list[str] = []
        self._handlers: dict[int, Any] = {}

    def started(self, recorder: Recorder, kernel: KernelSide) -> None:
        """Takes the screen once the probes are attached."""
        self._snapshots = Snapshots(recorder, kernel, self._database)
        self._gpus.start()
        self._take_screen()
        self._show()

    def second(self, second: SecondOfCounts) -> None:
        """Draws the last seconds, at most once a second."""
        self._summary.add(second)
        self._window.add(second)
        if time.monotonic() - self._drawn_s >= _FRAME_S:
            self._show()

    def finding(self, change: Change) -> None:
        """Notes a change of an incident: the newest is shown below the tables, all of them in the closing summary."""
        self._findings.append(change_line(change, time.time_ns()))

    def finished(self, recorder: Recorder, path: Path | None) -> None:
        """Prints the closing summary on the normal screen."""
        self._leave_screen()
        for line in self._findings:
            self._summary.echo(line)
        self._summary.write(recorder, path)

    def _show(self) -> None:
        if self._snapshots is None or self._is_over:
            return
        self._state = self._snapshots.state(self._window, self._gpus.latest(), [*self._log.texts, *self._findings[-1:]])
        self._draw()

    def _draw(self) -> None:
        """Draws the state, unless the terminal has not taken the last frame (Ctrl-S): the recording must go on."""
        if not self._has_screen or self._is_drawing:
            return
        self._is_drawing = True
        try:
            if not self._output.is_behind:
                columns, rows = self._size()
                lines = frame(self._state, columns, rows, self._glyphs)
                self._output.write(self._painter.screen(lines, columns, rows))
                self._output.flush()
                self._drawn_s = time.monotonic()
        except OSError:  # the terminal has gone; the recording goes on without it
            self._is_over, self._has_screen = True, False
            return
        finally:
            self._is_drawing = False
        if self._is_over:
            self._say_ending()
        elif self._is_to_stop:
            self._stop_here()

    def _size(self) -> tuple[int, int]:
        columns, rows = os.get_terminal_size(self._stream.fileno())
        return (max(columns, _MIN_COLUMNS), max(rows, _MIN_ROWS)) if columns and rows else (80, 24)

    def _take_screen(self) -> None:
        """Takes the alternate screen. The next frame covers other output; warnings have their own line in it."""
        if self._is_over:
            return
        self._has_screen = True
        with suppress(OSError):
            self._console.set_alt_screen(True)
            self._console.show_cursor(False)

    def _leave_screen(self) -> None:
        had_screen, self._has_screen = self._has_screen, False
        if had_screen:
            with suppress(OSError):
                self._console.show_cursor(True)
                self._console.set_alt_screen(False)
                self._output.settle()

    def _on_end(self, number: int, at: FrameType | None) -> None:
        """Handles Ctrl-C and SIGTERM."""
        is_first, self._is_over = not self._is_over, True
        if is_first and not self._is_drawing:
            self._say_ending()
        before = self._handlers[number]
        if callable(before):
            before(number, at)

    def _say_ending(self) -> None:
        """Restores the terminal and says what the program does until its end, which takes a second or more."""
        self._leave_screen()
        with suppress(OSError):
            print("ending: detaching probes, storing what is left", file=sys.stderr, flush=True)

    def _on_resize(self, _number: int, _at: FrameType | None) -> None:
        self._draw()

    def _on_suspend(self, _number: int, _at: FrameType | None) -> None:
        """Handles Ctrl-Z."""
        if self._is_drawing:
            self._is_to_stop = True
        else:
            self._stop_here()

    def _stop_here(self) -> None:
        """Stops the process with the normal screen back; when it goes on, so does the view."""
        self._is_to_stop = False
        self._leave_screen()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take_screen()
        self._draw()

    def __enter__(self) -> LiveView:
        self._log.start()
        handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(_ENDING, self._on_end)
        handlers |= {signal.SIGWINCH: self._on_resize, signal.SIGTSTP: self._on_suspend}
        self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._leave_screen()
        for number, handler in self._handlers.items():
            # a handler that was replaced since (the first Ctrl-C does that) is no longer ours
            if signal.getsignal(number) in (self._on_end, self._on_resize, self._on_suspend):
                signal.signal(number, handler)
        self._output.close()
        self._gpus.stop()
        self._log.stop()


class _LastWarnings(logging.Handler):
    """Keeps warnings off a screen that would cover them: shown in the view, and on standard error afterwards."""

    _KEPT = 20

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message."""
        self.texts = [*self.texts, record.getMessage()][-self._KEPT :]

    def start(self) -> None:
        """Starts to collect the warnings of this package."""
        logging.getLogger("ingero").addHandler(self)

    def stop(self) -> None:
        """Stops, and prints the kept warnings on standard error."""
        logging.getLogger("ingero").removeHandler(self)
        for text in self.texts:
            print(f"warning: {visible(text)}", file=sys.stderr)
