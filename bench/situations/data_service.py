"""Batches come from a process that is no child of the trainer: Ray Data, a tf.data service, a preprocessing daemon.

The trainer asks for the next batch over a Unix socket while its GPU works, as such clients do. Then the service needs
40 ms of CPU for one (a heavier augmentation), and the GPU is idle for two thirds of the time.

Source: https://github.com/ray-project/ray/issues/26630
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import BATCH_BYTES, Gpu, compute, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_SOCKET = "data.sock"


def service(folder: Path) -> None:
    """Makes one batch for each request."""
    naming.name_this_thread("data-service")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / _SOCKET))
        listening.listen()
        lifecycle.announce("ready")
        connection, _ = listening.accept()
        content = bytes(BATCH_BYTES)
        while connection.recv(8):
            compute(0.040 if has_begun(folder) else 0.003)
            connection.sendall(content)


def next_batch(connection: socket.socket, buffer: bytearray) -> None:
    """Waits for the batch that was asked for."""
    view = memoryview(buffer)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise ConnectionError("the service has ended")
        view = view[received:]


def trainer(folder: Path) -> None:
    """Trains on what the service makes, one batch ahead."""
    gpu, buffer = Gpu(), bytearray(BATCH_BYTES)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / _SOCKET))
    connection.sendall(b"batch 00")
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        next_batch(connection, buffer)
        connection.sendall(b"batch ++")
        gpu.step(bytes(buffer))


def make(situation: Situation) -> None:
    """Only the trainer is traced, as its user would."""
    situation.start("service")
    situation.start("trainer")
    situation.record("trainer")


EXPECTED = Fault(
    answer="""data-starvation or ipc-bound that names data-service [<service>] as what the trainer waited for, at
    next_batch: the trainer asked first, and the answer is late. Wrong: silence, because a wait that a process outside
    its tree ends is taken for "no work requested"; host-bound, gpu-slower or cpu-contention.""",
    wanted=(r"^(?:data-starvation|ipc-bound):", r"<service>", at("next_batch", "compute")),
    never=(r"^(?:host-bound|gpu-slower|cpu-contention|sleep-in-loop|network-retransmit|unexplained):",),
)

if __name__ == "__main__":
    play({"service": service, "trainer": trainer})
