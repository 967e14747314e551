"""Work of a training loop beside training: metrics, logging, checkpoints, memory; each switched by a host knob."""

import gc
import os
import threading
import time
from argparse import Namespace

from ingero.demo.workloads.background import compute_metrics
from ingero.demo.workloads.host_knobs import HostState
from ingero.demo.workloads.minitorch import Tensor

CHECKPOINT_BYTES = 64 << 20


class Callbacks:
    """The callbacks of one trainer; `lock` guards the metrics, which the --lock-hog thread writes out."""

    def __init__(self, options: Namespace, lock: threading.Lock) -> None:
        self.path = options.checkpoint
        self.lock = lock
        self.heap = [[number] for number in range(options.heap)]  # what a collection has to walk
        self.kept: list[Tensor] = []

    def before_step(self, state: HostState, step: int) -> None:
        """Everything that comes before the launches of a step."""
        stall(state, step)
        if state.metrics_ms:
            compute_metrics(state.metrics_ms / 1000)
        if state.lock_ms:
            self.update_metrics()
        if is_turn(step, state.collect_every):
            collect_garbage()
        if is_turn(step, state.checkpoint_every):
            self.save_checkpoint()
        if state.leak_bytes:
            self.keep_activation(int(state.leak_bytes))
        if state.reshape_bytes:
            reshape(int(state.reshape_bytes), step)

    def after_step(self, state: HostState, step: int, loss: Tensor) -> None:
        """Everything that comes after the launches of a step."""
        if is_turn(step, state.item_every):
            log_loss(loss)

    def update_metrics(self) -> None:
        """Wait for the lock of the metrics, as code that counts something does."""
        with self.lock:
            pass

    def keep_activation(self, nbytes: int) -> None:
        """Keep a tensor for ever, as a list of losses that still hang on their graph does."""
        self.kept.append(Tensor(nbytes))

    def save_checkpoint(self) -> None:
        """Write the model to disk and wait until it lies there."""
        if self.path is None:
            return
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, bytes(CHECKPOINT_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_turn(step: int, every: float) -> bool:
    """Whether work that is done in each `every`-th step (0: never) is done in this one."""
    return bool(every) and step % every == every // 2


def stall(state: HostState, step: int) -> None:
    """Sleep in the training thread if the knobs say so, as a slow callback would."""
    if state.stall_ms and is_turn(step, state.stall_every):
        time.sleep(state.stall_ms / 1000)


def collect_garbage() -> None:
    """Collect all generations, as code does that has heard it saves memory."""
    gc.collect()


def log_loss(loss: Tensor) -> None:
    """Look at the loss, for which the host must wait."""
    loss.item()


def reshape(nbytes: int, step: int) -> None:
    """Allocate in ever other sizes, so that what the cache holds never fits."""
    scratch = Tensor(nbytes * (1 + step % 2))
    del scratch
