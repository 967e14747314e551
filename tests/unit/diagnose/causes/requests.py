"""Requests for GPU memory as the recorder writes them, for scenes."""

from __future__ import annotations

from ingero.demo.scene import Actor, Scene

LINE = ("/srv/train.py", 42, "step")
GIB = 1 << 30


def refused(scene: Scene, actor: Actor, at_s: float, size_bytes: int, *, stack: int = 0) -> None:
    """A request that fails for want of memory: its record and its exact count."""
    scene.call(actor, "cudaMalloc", at_s, 0.1, arg0=size_bytes, ret_code=2, stack_hash=stack)
    scene.memory(actor, "cudaMalloc", int(at_s), 0, size_bytes, failures=1, stack=stack)


def retried(scene: Scene, actor: Actor, at_s: float, size_bytes: int, *, frees: int = 4, stack: int = 0) -> float:
    """A request that fails, frees of cached blocks of 2 ms each, and the request again; answers its length in ms."""
    refused(scene, actor, at_s, size_bytes, stack=stack)
    for index in range(frees):
        scene.call(actor, "cudaFree", at_s + (0.2 + 2 * index) / 1e3, 2)
    scene.call(actor, "cudaMalloc", at_s + (0.2 + 2 * frees) / 1e3, 0.8, arg0=size_bytes, stack_hash=stack)
    return 1.0 + 2 * frees


def sampled(scene: Scene, seconds: float, used_bytes: int, *others: tuple[int, int]) -> None:
    """A GPU of 16 GiB with so much in use, of which process 100 has what the others do not."""
    mine = used_bytes - sum(size for _, size in others)
    for second in range(int(seconds)):
        scene.gpu(second + 0.5, used_bytes=used_bytes, total_bytes=16 * GIB, processes=[(100, mine), *others])
