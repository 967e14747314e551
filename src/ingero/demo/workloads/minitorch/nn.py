"""Layers of a transformer: what each launches forward and backward, and how long the device takes for it."""

from collections.abc import Callable

from ingero.demo.workloads.minitorch.kernels import Gemm, Kernel
from ingero.demo.workloads.minitorch.tensor import Node, Tensor

ACTIVATION_BYTES = 256 << 10
NORM_US = 5.0
BIAS_US = 3.0
LOSS_US = 4.0


class Module:
    """A layer: calling it runs `forward`."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """Launch the layer's kernels; return its output."""
        raise NotImplementedError


class Linear(Module):
    """A matrix product and a bias: two launches forward, three backward."""

    def __init__(self, gemm_us: float, tile: str) -> None:
        self.gemm = Gemm(f"ampere_sgemm_{tile}_tn", duration_us=gemm_us)
        self.bias = Kernel("vectorized_elementwise_kernel", duration_us=BIAS_US)

    def forward(self, x: Tensor) -> Tensor:
        y = Tensor(ACTIVATION_BYTES)
        self.gemm.launch()
        self.bias.launch()
        return y.follows(x, self.backward)

    def backward(self) -> None:
        """Launch the gradients of input, weight and bias."""
        self.gemm.launch()
        self.gemm.launch()
        self.bias.launch()


class LayerNorm(Module):
    """A normalization: one launch each way."""

    def __init__(self) -> None:
        self.norm = Kernel("vectorized_layer_norm_kernel", duration_us=NORM_US)

    def forward(self, x: Tensor) -> Tensor:
        y = Tensor(ACTIVATION_BYTES)
        self.norm.launch()
        return y.follows(x, self.backward)

    def backward(self) -> None:
        """Launch the gradient."""
        self.norm.launch()


class Block(Module):
    """One transformer layer: 7 launches forward, 10 backward, 12 times `gemm_us` of matrix products in all."""

    def __init__(self, gemm_us: float, tile: str) -> None:
        self.norm = LayerNorm()
        self.attention = Linear(gemm_us, tile)
        self.projection = Linear(gemm_us, tile)
        self.feed_forward = Linear(2 * gemm_us, tile)
        self.on_gradient: Callable[[], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.on_gradient is not None:
            # Recorded before the block's own operations, hence run after all their gradients.
            x.grad_fn = Node(self.on_gradient, x.grad_fn)
        x = self.norm(x)
        x = self.attention(x)
        x = self.projection(x)
        return self.feed_forward(x)


class Transformer(Module):
    """`layers` blocks, and optionally `extra_launches` tiny kernels to raise the rate of calls.

    tile: of the matrix library's kernel, which it chooses by the shape of what is multiplied.
    """

    def __init__(self, layers: int, gemm_us: float, extra_launches: int = 0, tile: str = "128x64") -> None:
        self.blocks = [Block(gemm_us, tile) for _ in range(layers)]
        self.dropout = Kernel("fused_dropout_kernel_vec", duration_us=1.0)
        self.extra_launches = extra_launches

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        for _ in range(self.extra_launches):
            self.dropout.launch()
        return x


class CrossEntropyLoss(Module):
    """The loss: one launch."""

    def __init__(self) -> None:
        self.reduce = Kernel("nll_loss_forward_reduce_cuda_kernel_2d", duration_us=LOSS_US)

    def forward(self, x: Tensor) -> Tensor:
        loss = Tensor(512)
        self.reduce.launch()
        loss.grad_fn = x.grad_fn
        return loss
