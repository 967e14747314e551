"""The length of the sequences in each step: constant, or drawn from a seed."""

import random
from argparse import Namespace

from ingero.demo.workloads.minitorch.kernels import set_waves

LONGEST = 4  # times the usual one; the buffer of a batch is that large


class Lengths:
    """--sequence waves of work in each launch, as many bytes of the batch; `factor` makes all of them longer."""

    def __init__(self, options: Namespace) -> None:
        self.usual: int = options.sequence
        self.varies: bool = options.vary
        self.seed: int = options.seed
        self.factor = 1.0

    def set_for(self, step: int, nbytes: int) -> int:
        """Set the work of this step's launches; return how many bytes of its batch there are to copy."""
        if not self.usual:
            return nbytes
        low, high = (max(1, self.usual // 2), 2 * self.usual - self.usual // 2) if self.varies else (self.usual,) * 2
        drawn = random.Random(self.seed << 32 | step).randint(low, high)
        waves = min(LONGEST * self.usual, max(1, round(drawn * self.factor)))
        set_waves(waves)
        return nbytes * waves // (LONGEST * self.usual)
