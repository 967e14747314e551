"""A small training framework in plain Python, shaped like PyTorch, on the real names of the CUDA runtime."""

from ingero.demo.workloads.minitorch import autograd, cuda, data, distributed, nn, optim
from ingero.demo.workloads.minitorch.tensor import Tensor, no_grad

__all__ = ["Tensor", "autograd", "cuda", "data", "distributed", "nn", "no_grad", "optim"]
