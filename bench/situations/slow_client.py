"""A server streams to two clients from its engine loop, and one of them reads slowly: everybody waits for it.

Frames of a picture, audio or hidden states: 128 KiB a step. Then one client takes 64 KiB in 20 ms. Its socket's buffers
fill, the engine blocks in sendall, and the GPU is idle. What ends each wait is the kernel's network code, as the slow
client opens its window.

Source: https://github.com/confluentinc/ksql/pull/5386 (the same in another server)
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_CHUNK = bytes(128 << 10)
_BUFFER_BYTES = 256 << 10


def client(folder: Path, port: str, kind: str) -> None:
    """Reads what the server streams."""
    naming.name_this_thread(f"{kind}-client")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        connection.connect(("127.0.0.1", int(port)))
        lifecycle.announce("ready")
        while connection.recv(64 << 10, socket.MSG_WAITALL):
            if kind == "slow" and has_begun(folder):
                time.sleep(0.020)


def stream_chunk(connection: socket.socket, chunk: bytes) -> None:
    """Sends what this step has made."""
    connection.sendall(chunk)


def server(folder: Path) -> None:
    """Makes a step, then sends its part to each client."""
    gpu = Gpu()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        lifecycle.announce("ready", listening.getsockname()[1])
        clients = [listening.accept()[0] for _ in range(2)]
        for _ in logged_steps(folder):
            gpu.step()
            for connection in clients:
                stream_chunk(connection, _CHUNK)


def make(situation: Situation) -> None:
    """Only the server is traced."""
    [port] = situation.start("server")
    situation.start("client", port, "fast", name="fast")
    situation.start("client", port, "slow", name="slow")
    situation.record("server")


EXPECTED = Fault(
    answer="""ipc-bound or a network cause: the server blocks in a send (stream_chunk) until a peer that reads slowly
    takes it: slow-client [<slow>], or its address. Wrong: unexplained; fast-client [<fast>]; network-retransmit
    (nothing was sent again); silence as "no work requested"; data-starvation.""",
    wanted=(at("stream_chunk"), r"<slow>|slow-client|127\.0\.0\.1:\d+"),
    never=(
        r"^(?:unexplained|network-retransmit|data-starvation|sleep-in-loop|gpu-slower):",
        r"<fast>|fast-client",
    ),
)

if __name__ == "__main__":
    play({"server": server, "client": client})
