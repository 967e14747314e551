"""A training hangs because somebody pressed Ctrl-S in its terminal (or marked text in it): print blocks.

The program prints a progress line in each step. Then its terminal gets the character XOFF, as tmux, ssh and every
terminal emulator pass it on. The next print does not return; "it goes on when I press a key".

Source: https://unix.stackexchange.com/questions/610925/effect-of-ctrl-s-xoff-on-process
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_XOFF = b"\x13"
_READ_BYTES = 1 << 16


def terminal(folder: Path) -> None:
    """A terminal emulator: takes whatever comes, until somebody presses Ctrl-S."""
    naming.name_this_thread("terminal")
    master, slave = os.openpty()
    lifecycle.announce("ready", os.ttyname(slave))
    while not has_begun(folder):
        os.read(master, _READ_BYTES)
    os.write(master, _XOFF)
    while True:
        os.read(master, _READ_BYTES)


def print_progress(step: int) -> None:
    """A progress bar of the user's own."""
    sys.stdout.write(f"\rstep {step} lr 0.1234 {'#' * (step % 40)}")
    sys.stdout.flush()


def trainer(folder: Path, output: str) -> None:
    """Trains, and prints how far it is."""
    os.dup2(os.open(output, os.O_WRONLY | os.O_NOCTTY), sys.stdout.fileno())
    gpu = Gpu()
    lifecycle.announce("ready")
    for step in logged_steps(folder):
        gpu.step()
        print_progress(step)


def make(situation: Situation) -> None:
    """The program's output is the terminal."""
    [output] = situation.start("terminal")
    situation.start("trainer", output)
    situation.record("trainer")


EXPECTED = Fault(
    answer="""host-hang, CRITICAL while it lasts: the program has made no step since Ctrl-S; it waits in write() for its
    terminal (/dev/pts/N, output stopped or not read), at print_progress. Wrong: no incident at all, or "no lost time";
    "polls for something"; hung-call; a pipe or a lock.""",
    wanted=(r"^host-hang:", at("print_progress"), r"/dev/pts/\d+|terminal|\btty\b"),
    never=(
        r"^(?:hung-call|host-bound|gpu-slower|sleep-in-loop):",
        r"polls for",
        r"lock in its own memory",
    ),
)

if __name__ == "__main__":
    play({"terminal": terminal, "trainer": trainer})
