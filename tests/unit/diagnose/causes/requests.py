"""Writes requests for GPU memory into scripted recordings, as the recorder would."""

from __future__ import annotations

from ingero.demo.scene import Actor, ScriptedRun

LINE = ("/srv/train.py", 42, "step")
GIB = 1 << 30


def refused(run: ScriptedRun, actor: Actor, at_s: float, size_bytes: int, *, stack: int = 0) -> None:
    """A request that fails for want of memory: its record and its exact count."""
    run.call(actor, "cudaMalloc", at_s, 0.1, arg0=size_bytes, ret_code=2, stack_hash=stack)
    run.memory(actor, "cudaMalloc", int(at_s), 0, size_bytes, failures=1, stack=stack)


def retried(run: ScriptedRun, actor: Actor, at_s: float, size_bytes: int, *, frees: int = 4, stack: int = 0) -> float:
    """Writes a request that fails, frees of cached blocks (2 ms each) and a retry; returns their length in ms."""
    refused(run, actor, at_s, size_bytes, stack=stack)
    for index in range(frees):
        run.call(actor, "cudaFree", at_s + (0.2 + 2 * index) / 1e3, 2)
    run.call(actor, "cudaMalloc", at_s + (0.2 + 2 * frees) / 1e3, 0.8, arg0=size_bytes, stack_hash=stack)
    return 1.0 + 2 * frees


def sampled(run: ScriptedRun, seconds: float, used_bytes: int, *others: tuple[int, int]) -> None:
    """Writes samples of a GPU of 16 GiB with used_bytes in use, by process 100 and others."""
    mine = used_bytes - sum(size for _, size in others)
    for second in range(int(seconds)):
        run.gpu(second + 0.5, used_bytes=used_bytes, total_bytes=16 * GIB, processes=[(100, mine), *others])
