"""The next item is loaded in a pool of two threads that uploads of the same program fill (a default executor).

Each step submits its next item one step ahead: 2 ms of native work. Every fourth step also submits two uploads to the
same ThreadPoolExecutor. Then an upload waits 70 ms for the object store, so that both threads are taken, and the item
waits in the pool's queue behind them. More loading threads or workers do not help where uploads take them, too.

Source: https://github.com/hatchet-dev/hatchet/issues/4803
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_THREADS, _EVERY = 2, 4
_connection = threading.local()


def store(folder: Path) -> None:
    """The object store: a thread for each connection."""
    naming.name_this_thread("object-store")

    def serve(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            time.sleep(0.070 if has_begun(folder) else 0.001)
            connection.sendall(b"stored")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        lifecycle.announce("ready", listening.getsockname()[1])
        while True:
            threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


def begin_thread(port: int) -> None:
    """A connection for each thread of the pool."""
    naming.name_this_thread("pool-thread")
    _connection.socket = socket.create_connection(("127.0.0.1", port))


def upload() -> None:
    """Sends a shard of the checkpoint, and waits until it is stored."""
    _connection.socket.sendall(bytes(1024))
    _connection.socket.recv(64)


def load_item() -> bytes:
    """Decodes in native code."""
    return hashlib.pbkdf2_hmac("sha256", b"image", b"salt", 8000)


def wait_for_item(item: Future[bytes]) -> None:
    """The loop takes what was submitted one step before."""
    item.result()


def trainer(folder: Path, port: str) -> None:
    """Trains, loads and uploads."""
    gpu = Gpu()
    pool = ThreadPoolExecutor(_THREADS, initializer=begin_thread, initargs=(int(port),))
    item = pool.submit(load_item)
    lifecycle.announce("ready")
    for step in logged_steps(folder):
        wait_for_item(item)
        if step % _EVERY == 0:
            for _ in range(_THREADS):
                pool.submit(upload)
        item = pool.submit(load_item)
        gpu.step()


def make(situation: Situation) -> None:
    """The store is another service."""
    [port] = situation.start("store")
    situation.start("trainer", port)
    situation.record("trainer")


EXPECTED = Fault(
    answer="""the loop waits at wait_for_item for its own pool, whose threads are taken by upload, which waits for
    object-store [<store>] (ipc-bound, or data-starvation with that line). Wrong: more DataLoader workers; a lock held
    by the pool's thread; load_item as the slow part (it takes 2 ms as ever); gil; unexplained; silence.""",
    wanted=(rf"{at('upload')}|<store>|object-store",),
    never=(
        r"^(?:gil|lock-contention|sleep-in-loop|host-bound|gpu-slower|cpu-contention|unexplained):",
        at("load_item"),
        r"DataLoader\(",
    ),
)

if __name__ == "__main__":
    play({"store": store, "trainer": trainer})
