"""A torch.compile'd model runs, and compiles nothing; its wrapper checks inputs on the CPU in each step.

The checks are torch/_inductor/compile_fx.py: copy_misaligned_inputs in PyTorch 2.2 and 2.3 (cudagraph_trees.py imports
it from there), called through torch/_dynamo/eval_frame.py: 8 ms a step for very many small parameters, from the first
step to the last. All launches come through frames of the compiler's packages, too.

Source: https://github.com/pytorch/pytorch/pull/179039 (the price of these checks)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Healthy
from bench.situations.program import Gpu, logged_steps, play
from ingero.demo.workloads import lifecycle

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_INPUTS, _CHECKS_S = 500, 0.008
_FILES = {
    "_dynamo/eval_frame.py": """
def optimize(compiled):
    def _fn(*args):
        return compiled(*args)
    return _fn
""",
    "_inductor/compile_fx.py": """
import time

ALIGNMENT = 16


class Input:
    __slots__ = ("address",)

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def copy_misaligned_inputs(new_inputs, check_inputs_idxs, seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for i in check_inputs_idxs:
            if new_inputs[i].data_ptr() % ALIGNMENT:
                raise ValueError(i)


def align_inputs_from_check_idxs(model, inputs_to_check, seconds):
    def run(new_inputs):
        copy_misaligned_inputs(new_inputs, inputs_to_check, seconds)
        return model(new_inputs)
    return run
""",
}


def install(folder: Path) -> None:
    """Puts the package where packages are installed."""
    packages = folder / "site-packages"
    for name, text in _FILES.items():
        file = packages / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for one in (file.parent, file.parent.parent):
            (one / "__init__.py").touch()
    sys.path.insert(0, str(packages))


def forward_backward(model: Callable[[object], object], inputs: object) -> None:
    """The user's line: calls the compiled model."""
    model(inputs)


def trainer(folder: Path) -> None:
    """Trains."""
    install(folder)
    dynamo = importlib.import_module("torch._dynamo.eval_frame")
    inductor = importlib.import_module("torch._inductor.compile_fx")
    gpu = Gpu()
    inputs = [inductor.Input(16 * number) for number in range(_INPUTS)]
    model = dynamo.optimize(
        inductor.align_inputs_from_check_idxs(lambda _: gpu.step(), list(range(_INPUTS)), _CHECKS_S)
    )
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        forward_backward(model, inputs)


def make(situation: Situation) -> None:
    """One program, which does the same all the time."""
    situation.start("trainer")
    situation.record("trainer")


EXPECTED = Healthy(
    answer="""no incident; true though harmless is host-bound or launch-bound at forward_backward as the pace of this
    loop (8 of 20 ms of a step, from the start on). Wrong: recompilation or cold-start in any words: the frames are of
    the compiler's packages, and they run what was compiled; unexplained; data-starvation.""",
    allowed=(r"^(?:host-bound|launch-bound|cuda-graph-unused):",),
    never=(r"compiling|recompil|compiled GPU code|TORCH_LOGS|dynamic=True",),
)

if __name__ == "__main__":
    play({"trainer": trainer})
