"""What the live view costs: taking in busy seconds and drawing each into a pseudo-terminal, as `trace` does.

Needs no root and no GPU: the seconds are made up (bench/busy_second.py).

Run: python -m bench.live_view [--frames N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import threading
import time
import tty
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rich.console import Console

from bench.busy_second import Load, second, state, window
from ingero.cli.live.frame import frame
from ingero.cli.live.painting import Painter

SIZES = ((80, 24), (200, 60))
LOADS = (
    Load(processes=1, sites=40),
    Load(processes=8, sites=40),
    Load(processes=60, sites=10, culprits=60, gpus=8, drops=6),
)
_TAKEN_IN = 4  # different seconds, used in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Median CPU time of one second of a recording: taken in, made a state, drawn. core_percent: at 1 Hz."""

    processes: int
    cells: int
    columns: int
    rows: int
    take_in_ms: float
    draw_ms: float
    bytes_per_frame: int

    @property
    def core_percent(self) -> float:
        """Share of a core, one frame a second."""
        return (self.take_in_ms + self.draw_ms) / 10


def run(load: Load, columns: int, rows: int, frames: int) -> Result:
    """Takes in and draws `frames` seconds."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    reader = _Reader(master)
    seconds = [second(load, number) for number in range(_TAKEN_IN)]
    filled = window(load, 10)
    take_in, draw = [], []
    with open(slave, "w") as stream:  # noqa: PTH123  # a descriptor, not a path
        environ = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        console = Console(file=stream, force_terminal=True, width=columns, height=rows, _environ=environ)
        painter = Painter(console)

        def drawn() -> None:
            stream.write(painter.screen(frame(state(load, filled), columns, rows), columns, rows))
            stream.flush()

        for number in range(frames):
            one = seconds[number % _TAKEN_IN]
            take_in.append(_cpu_ms(lambda one=one: filled.add(one)))  # type: ignore[misc]  # bound per frame
            draw.append(_cpu_ms(drawn))
    reader.stop()
    return Result(
        processes=load.processes,
        cells=len(seconds[0].cells),
        columns=columns,
        rows=rows,
        take_in_ms=statistics.median(take_in),
        draw_ms=statistics.median(draw),
        bytes_per_frame=reader.bytes // frames,
    )


def _cpu_ms(function: Callable[[], object]) -> float:
    began = time.thread_time_ns()
    function()
    return (time.thread_time_ns() - began) / 1e6


class _Reader:
    """Takes what the terminal is sent, so that writing never blocks."""

    def __init__(self, fd: int) -> None:
        self._fd, self.bytes = fd, 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self.bytes += len(os.read(self._fd, 1 << 16))
            except OSError:  # the other end is closed
                return

    def stop(self) -> None:
        self._thread.join(1)
        os.close(self._fd)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of text")
    options = parser.parse_args(arguments)
    if not options.json:
        print("processes  cells     size  taken in    drawn  core at 1 Hz  bytes per frame")
    for load in LOADS:
        for columns, rows in SIZES:
            result = run(load, columns, rows, options.frames)
            if options.json:
                print(json.dumps({**asdict(result), "core_percent": result.core_percent}))
                continue
            print(
                f"{result.processes:9}{result.cells:7}{columns:6}x{rows:<3}{result.take_in_ms:7.2f} ms"
                f"{result.draw_ms:6.2f} ms{result.core_percent:11.2f} %{result.bytes_per_frame:17,}"
            )


if __name__ == "__main__":
    main()
