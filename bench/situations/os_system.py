"""A callback runs `nvidia-smi` in every other step, by os.system: no frame of subprocess is in its stack.

To log how much memory the GPU uses. A run takes 40 ms, in which the GPU has nothing to do. The shell that libc's
system() starts, and the program below it, are children that live for that long.

Source: https://github.com/Lightning-AI/pytorch-lightning/issues/189
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_PROGRAM = "nvidia-smi"
_TEXT = "#!/bin/sh\nsleep 0.04\necho '123 MiB'\n"


def query_gpu(program: Path, output: Path) -> None:
    """Asks how much memory is used."""
    os.system(f"{program} --query-gpu=memory.used > {output}")


def trainer(folder: Path) -> None:
    """Trains, and logs."""
    gpu = Gpu()
    lifecycle.announce("ready")
    for step in logged_steps(folder):
        gpu.step()
        if step % 2 == 0 and has_begun(folder):
            query_gpu(folder / _PROGRAM, folder / "used")


def make(situation: Situation) -> None:
    """One program, and what it runs."""
    program = situation.folder / _PROGRAM
    program.write_text(_TEXT)
    program.chmod(0o755)
    situation.start("trainer")
    situation.record("trainer")


EXPECTED = Fault(
    answer="""ipc-bound: the trainer waits at query_gpu for a program that it runs again and again (nvidia-smi, or the
    shell or sleep that stands for it); run it less often, or in a thread. Wrong: data-starvation ("input data", more
    DataLoader workers); an answer of a child that is to be asked earlier or profiled: each one has ended long ago;
    worker-restarts, sleep-in-loop, unexplained, periodic-spike.""",
    wanted=(at("query_gpu"), r"program that it ran|which it had started|run it less often"),
    never=(
        r"^(?:data-starvation|worker-restarts|sleep-in-loop|host-bound|periodic-spike|gpu-slower|unexplained):",
        r"DataLoader\(",
        r"input data",
        r"ask for the next answer",
        r"trace --pid",
    ),
)

if __name__ == "__main__":
    play({"trainer": trainer})
