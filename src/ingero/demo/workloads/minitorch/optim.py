"""The optimizer: one fused kernel for each bucket of parameters."""

from ingero.demo.workloads.minitorch.kernels import Kernel

BUCKET_US = 20.0


class AdamW:
    """Adam with decoupled weight decay over `buckets` groups of parameters, 20 us of device time each."""

    def __init__(self, buckets: int = 16) -> None:
        self.update = Kernel("multi_tensor_apply_kernel", duration_us=BUCKET_US)
        self.buckets = buckets

    def step(self) -> None:
        """Launch the update of every bucket."""
        for _ in range(self.buckets):
            self.update.launch()

    def zero_grad(self) -> None:
        """Drop the gradients; nothing is launched, as with set_to_none."""
