"""An inference server's engine: a thread that owns the model and takes requests from a queue, beside an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bench.situations.program import logged_steps
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import cuda, naming, no_grad, runtime
from ingero.demo.workloads.serve_inference import LanguageModel

_TOKENS, _BATCH = 8, 8

Handler: TypeAlias = Callable[["Engine", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    """A request that is being served. tokens: how many it still needs."""

    done: asyncio.Future[None]
    tokens: int = _TOKENS


class Engine:
    """Makes one token for each running request, with one sync per token.

    look_s: how often it looks for a request while it has none; None: it sleeps in the queue until there is one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, look_s: float | None = None) -> None:
        self._waiting: queue.Queue[Request] = queue.Queue()
        self._loop, self._look_s = loop, look_s
        self._running: list[Request] = []

    async def answer(self) -> None:
        """Has one request served."""
        request = Request(self._loop.create_future())
        self._waiting.put(request)
        await request.done

    def serve(self, folder: Path) -> None:
        """Makes tokens while there is something to do."""
        naming.name_this_thread("engine")
        cuda.enter()
        model = LanguageModel(1, 500, 500)  # 2.5 ms a token
        with no_grad():
            for _ in logged_steps(folder):
                while not self._running:
                    self._admit()
                self._admit()
                model.decode()
                self._finish()

    def _admit(self) -> None:
        """Takes what there is; waits where there is nothing to do."""
        while len(self._running) < _BATCH:
            try:
                self._running.append(self._waiting.get(block=not self._running, timeout=self._look_s))
            except queue.Empty:
                return

    def _finish(self) -> None:
        for request in self._running:
            request.tokens -= 1
        for request in [one for one in self._running if not one.tokens]:
            self._running.remove(request)
            self._loop.call_soon_threadsafe(request.done.set_result, None)


def serve(folder: Path, handle: Handler, look_s: float | None = None) -> None:
    """An inference server on a free port, which it announces; each connection is handled by `handle`."""
    naming.name_this_thread("api-server")
    runtime.library()
    cuda.init(0)
    asyncio.run(_serve(folder, handle, look_s))


async def _serve(folder: Path, handle: Handler, look_s: float | None) -> None:
    engine = Engine(asyncio.get_running_loop(), look_s)
    threading.Thread(target=engine.serve, args=(folder,), name="engine", daemon=True).start()
    server = await asyncio.start_server(lambda reader, writer: handle(engine, reader, writer), "127.0.0.1", 0)
    lifecycle.announce("ready", server.sockets[0].getsockname()[1])
    await server.serve_forever()
