"""An asyncio inference server whose handler makes a synchronous query: the event loop stands still meanwhile.

The handler asks a feature store by a blocking client written in C (psycopg2, a database driver): the user's own line is
all that its stack shows. Then a query takes 35 ms. Requests wait unread, the engine's queue is empty, and the GPU is
idle for half of the time, although four clients always want something.

Source: https://github.com/ogx-ai/ogx/issues/1457
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.engine import Engine, serve
from bench.situations.expected import Fault, at
from bench.situations.program import has_begun, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_CLIENTS = 4


def store(folder: Path) -> None:
    """The feature store: one connection, one query after the other."""
    naming.name_this_thread("feature-store")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        lifecycle.announce("ready", listening.getsockname()[1])
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(64):
            time.sleep(0.035 if has_begun(folder) else 0.001)
            connection.sendall(b"features")


def query(connection: socket.socket) -> bytes:
    """A synchronous query, as of a driver in C: nothing below this line is Python."""
    connection.sendall(b"SELECT")
    return connection.recv(64)


def server(folder: Path, store_port: str) -> None:
    """The inference server: answers each line with a line, once the features are looked up and the tokens are made."""
    features = socket.create_connection(("127.0.0.1", int(store_port)))
    features.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def handle(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            query(features)  # blocks the event loop
            await engine.answer()
            writer.write(b"done\n")
            await writer.drain()

    serve(folder, handle)


def load(_folder: Path, port: str) -> None:
    """Clients that each send the next request as soon as the last one is answered."""
    naming.name_this_thread("load")

    def client() -> None:
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            while True:
                connection.sendall(b"prompt\n")
                if not connection.recv(64):
                    return

    for _ in range(_CLIENTS):
        threading.Thread(target=client, daemon=True).start()
    lifecycle.announce("ready")
    threading.Event().wait()


def make(situation: Situation) -> None:
    """Only the server is traced."""
    [store_port] = situation.start("store")
    [port] = situation.start("server", store_port)
    situation.start("load", port)
    situation.record("server")


EXPECTED = Fault(
    answer="""an incident of the server: its event loop waits at query for the answer of feature-store [<store>], and
    the engine with its GPU waits for the event loop (ipc-bound or the like, with that line). Wrong: silence ("no work
    requested"): four clients wait all the time; the client load [<load>] as culprit; data-starvation with
    DataLoader(num_workers=N) for a server; lock-contention, gpu-slower.""",
    wanted=(r"<store>|feature-store", at("query")),
    never=(
        r"^(?:lock-contention|gil|gpu-slower|host-bound|sleep-in-loop|unexplained):",
        r"<load>",
        r"DataLoader\(",
    ),
    slower=1.2,
)

if __name__ == "__main__":
    play({"store": store, "server": server, "load": load})
