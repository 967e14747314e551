"""A callback raises the number of micro-batches per optimizer step from one to four, as its schedule says.

GradientAccumulationScheduler of Lightning, batch size warm-up of Megatron. The optimizer is a heavy one (16 ms, as Muon
or Shampoo), so that steps become rarer by half, and each launch of the first part is longer on average than of the
second one. The dataset is on the GPU (speed runs on CIFAR, simulators for reinforcement learning), so that no bytes are
copied but for the loss. The GPU has work all the time; samples a second go up.

Source: https://github.com/Lightning-AI/pytorch-lightning/issues/149
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Healthy
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch.kernels import Kernel

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_SCHEDULE = {False: 1, True: 4}
_UPDATE_US = 1000.0


class HeavyOptimizer(Gpu):
    """Its optimizer takes longer than forward and backward pass, and its data are on the GPU from the start."""

    def __init__(self) -> None:
        super().__init__()
        self._trainer.optimizer.update = Kernel("multi_tensor_apply_kernel", duration_us=_UPDATE_US)

    def accumulate(self, micro_batches: int) -> None:
        """Adds up the gradients of these batches, takes one optimizer step, and reads the loss."""
        trainer = self._trainer
        if micro_batches != trainer.options.accumulate:
            trainer.options.accumulate, trainer.steps = micro_batches, 0
        for _ in range(micro_batches):
            trainer.steps += 1
            loss = trainer.compute()
        trainer.read_loss(loss)


def trainer(folder: Path) -> None:
    """Trains."""
    gpu = HeavyOptimizer()
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        gpu.accumulate(_SCHEDULE[has_begun(folder)])


def make(situation: Situation) -> None:
    """One program."""
    situation.start("trainer")
    situation.record("trainer")


EXPECTED = Healthy(
    answer="""no incident: the loop does four times the forward and backward work per optimizer step, because it is told
    to. Wrong: gpu-slower, gpu-throttled, gpu-contention, memcpy-bound (steps are longer because there is more in
    them); unexpected-sync in the first part (it syncs once per optimizer step in both parts); unexplained.""",
    steady=None,
)

if __name__ == "__main__":
    play({"trainer": trainer})
