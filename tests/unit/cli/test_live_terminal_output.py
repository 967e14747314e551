"""Writing to a terminal that takes nothing right now: nothing waits, nothing is lost, nothing is out of order."""

from __future__ import annotations

import os
import pty
import select
import termios
import tty
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ingero.cli.live.terminal_output import TerminalOutput


@dataclass(frozen=True)
class Terminal:
    """Its two ends, and what is written to."""

    screen: int
    keyboard: int
    output: TerminalOutput

    def stop(self) -> None:
        termios.tcflow(self.keyboard, termios.TCOOFF)

    def go_on(self) -> None:
        termios.tcflow(self.keyboard, termios.TCOON)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    screen, keyboard = pty.openpty()
    tty.setraw(keyboard)
    with open(keyboard, "w", encoding="utf-8") as stream:  # noqa: PTH123  # a descriptor, not a path
        output = TerminalOutput(stream)
        yield Terminal(screen, keyboard, output)
        output.close()
    os.close(screen)


def test_a_stopped_terminal_is_not_waited_for_and_gets_all_in_order_later(terminal: Terminal) -> None:
    terminal.output.write("before ")
    assert not terminal.output.is_behind
    terminal.stop()
    terminal.output.write("while ")
    assert terminal.output.is_behind
    terminal.output.write("it was stopped")
    terminal.go_on()
    assert not terminal.output.is_behind
    wanted = b"before while it was stopped"
    seen = b""
    while len(seen) < len(wanted):  # the terminal hands it over piece by piece
        seen += os.read(terminal.screen, 100)
    assert seen == wanted


def test_more_than_the_terminal_takes_at_once_is_kept(terminal: Terminal) -> None:
    text = "".join(map(str, range(100_000)))
    terminal.output.write(text)
    assert terminal.output.is_behind
    seen = b""
    while terminal.output.is_behind or select.select([terminal.screen], [], [], 0.1)[0]:
        seen += os.read(terminal.screen, 1 << 16)
    assert seen.decode() == text


def test_the_descriptor_that_is_shared_with_the_shell_is_left_as_it_was(terminal: Terminal) -> None:
    assert os.get_blocking(terminal.keyboard)


def test_a_text_that_the_terminal_cannot_show_is_replaced() -> None:
    screen, keyboard = pty.openpty()
    with open(keyboard, "w", encoding="ascii") as stream:  # noqa: PTH123
        output = TerminalOutput(stream)
        output.write("caf\u00e9")
        output.settle()
        assert os.read(screen, 100) == b"caf?"
        output.close()
    os.close(screen)
