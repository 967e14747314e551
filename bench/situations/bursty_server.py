"""All clients of an inference server pause once, for 6 s, while its engine looks for work each 20 ms.

Health checks go on. The batcher takes requests by queue.get(timeout=0.02), as many do to see whether they should stop.
Four clients ask without a pause until then, and again after it. The recording has a single such pause: the engine's own
timer ends its sleeps, and before it requests ended short sleeps only.

Source: https://github.com/sgl-project/sglang/issues/9863 (what an idle engine does)
"""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Healthy
from bench.situations.program import has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import cuda, naming, no_grad, runtime
from ingero.demo.workloads.serve_inference import LanguageModel

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_TOKENS, _CLIENTS, _BATCH = 8, 4, 8
_LOOK_S = 0.02
_PAUSE = 0.4  # of the time with it


@dataclass
class Request:
    """A request that is being served. tokens: how many it still needs."""

    done: asyncio.Future[None]
    tokens: int = _TOKENS


class Engine:
    """Owns the model: makes one token for each running request, with one sync per token."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waiting: queue.Queue[Request] = queue.Queue()
        self._loop = loop
        self._running: list[Request] = []

    def serve(self, folder: Path) -> None:
        """Makes tokens while there is something to do."""
        naming.name_this_thread("engine")
        cuda.enter()
        model = LanguageModel(1, 500, 500)  # 2.5 ms a token
        with no_grad():
            for _ in logged_steps(folder):
                while not self._running:
                    self.next_batch(_LOOK_S)
                self.next_batch(0.0)
                model.decode()
                self._finish()

    def next_batch(self, timeout_s: float) -> None:
        """Takes what there is; waits for so long at most if there is nothing."""
        while len(self._running) < _BATCH:
            try:
                self._running.append(self.waiting.get(block=timeout_s > 0 and not self._running, timeout=timeout_s))
            except queue.Empty:
                return

    def _finish(self) -> None:
        for request in self._running:
            request.tokens -= 1
        for request in [one for one in self._running if not one.tokens]:
            self._running.remove(request)
            self._loop.call_soon_threadsafe(request.done.set_result, None)


async def serve(folder: Path) -> None:
    """Answers each line with a line; a health check at once."""
    loop = asyncio.get_running_loop()
    engine = Engine(loop)
    threading.Thread(target=engine.serve, args=(folder,), name="engine", daemon=True).start()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line != b"health\n":
                request = Request(loop.create_future())
                engine.waiting.put(request)
                await request.done
            writer.write(b"done\n")
            await writer.drain()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    lifecycle.announce("ready", server.sockets[0].getsockname()[1])
    await server.serve_forever()


def server(folder: Path) -> None:
    """The inference server."""
    naming.name_this_thread("api-server")
    runtime.library()
    cuda.init(0)
    asyncio.run(serve(folder))


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
