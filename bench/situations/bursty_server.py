"""All clients of an inference server pause once, for 6 s, while its engine looks for work each 20 ms.

Health checks go on. The batcher takes requests by queue.get(timeout=0.02), as many do to see whether they should stop.
Four clients ask without a pause until then, and again after it. The recording has a single such pause: the engine's own
timer ends its sleeps, and before it requests ended short sleeps only.

Source: https://github.com/sgl-project/sglang/issues/9863 (what an idle engine does)
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.engine import Engine, serve
from bench.situations.expected import Healthy
from bench.situations.program import has_begun, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_CLIENTS = 4
_LOOK_S = 0.02
_PAUSE = 0.4  # of the time with it


async def handle(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each line with a line; a health check at once."""
    while line := await reader.readline():
        if line != b"health\n":
            await engine.answer()
        writer.write(b"done\n")
        await writer.drain()


def server(folder: Path) -> None:
    """The inference server."""
    serve(folder, handle, _LOOK_S)


def load(folder: Path, port: str, with_s: str) -> None:
    """Clients that ask without a pause but for one, and a kubelet that checks the health."""
    naming.name_this_thread("load")

    def ask(line: bytes, every_s: float) -> None:
        is_paused = False
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            while True:
                connection.sendall(line)
                if not connection.recv(64):
                    return
                time.sleep(every_s)
                if not every_s and not is_paused and has_begun(folder):
                    is_paused = True
                    time.sleep(_PAUSE * float(with_s))

    for line, every_s in ((b"health\n", 0.5), *((b"prompt\n", 0.0) for _ in range(_CLIENTS))):
        threading.Thread(target=ask, args=(line, every_s), daemon=True).start()
    lifecycle.announce("ready")
    threading.Event().wait()


def make(situation: Situation) -> None:
    """Only the server is traced."""
    [port] = situation.start("server")
    situation.start("load", port, situation.times.with_s)
    situation.record("server")


EXPECTED = Healthy(
    answer="""no incident: for 6 s nobody requested anything, and the engine looked for work by a timer. Wrong: lost
    time of that pause (unexplained, sleep-in-loop, data-starvation), host-hang ("polls for something"), the client
    load [<load>] as a culprit.""",
    steady=None,
)

if __name__ == "__main__":
    play({"server": server, "load": load})
