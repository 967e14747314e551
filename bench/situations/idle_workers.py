"""An idle inference server whose two GPU workers spin in sched_yield (vLLM, tensor parallel), engine asleep.

A client asks for 20 tokens now and then: every half second, then every three. Between two requests the engine sleeps in
its socket, and the workers take all of both CPUs without having anything to do. That is how vLLM waits.

Source: https://github.com/vllm-project/vllm/issues/19036
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Healthy
from bench.situations.message_queue import MessageQueue
from bench.situations.program import has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import cuda, naming, no_grad, runtime
from ingero.demo.workloads.serve_inference import LanguageModel

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_TOKENS, _RANKS = 20, 2


def worker(rank: int, messages: MessageQueue, done: int, folder: Path) -> None:
    """A process with a GPU: one token for each message."""
    naming.die_with_parent()
    naming.name_this_thread(f"VllmWorker-{rank}")
    runtime.library()
    cuda.init(rank)
    model = LanguageModel(1, 500, 500)  # 2.5 ms a token
    os.write(done, b"r")
    with no_grad():
        for step in logged_steps(_log_folder(folder, rank)):
            messages.acquire_read(step + 1)
            model.decode()
            os.write(done, b"d")


def _log_folder(folder: Path, rank: int) -> Path:
    """The steps of rank 0 are counted; the other one's log lies beside."""
    own = folder / f"rank{rank}" if rank else folder
    own.mkdir(exist_ok=True)
    return own


def engine(folder: Path) -> None:
    """The scheduler: the workers' parent, without a GPU."""
    naming.name_this_thread("EngineCore")
    messages = MessageQueue()
    outputs, done = os.pipe()
    for rank in range(_RANKS):
        multiprocessing.get_context("fork").Process(
            target=worker, args=(rank, messages, done, folder), daemon=True
        ).start()
    for _ in range(_RANKS):
        os.read(outputs, 1)
    number = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:
        lifecycle.announce("ready", listening.getsockname()[1])
        connection, _ = listening.accept()
        while connection.recv(64):
            for _ in range(_TOKENS):
                number += 1
                messages.publish(number)
                for _ in range(_RANKS):
                    os.read(outputs, 1)
            connection.sendall(b"text")


def client(folder: Path, port: str) -> None:
    """Asks now and then."""
    naming.name_this_thread("chat-client")
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        lifecycle.announce("ready")
        while True:
            connection.sendall(b"prompt")
            connection.recv(64)
            time.sleep(3.0 if has_begun(folder) else 0.5)


def make(situation: Situation) -> None:
    """The engine is traced, with its workers."""
    situation.devices = _RANKS
    [port] = situation.start("engine")
    for rank in range(_RANKS):
        situation.name_child("engine", f"worker{rank}", rank + 1)
    situation.start("client", port)
    situation.record("engine")


EXPECTED = Healthy(
    answer="""no incident: between requests the workers poll in acquire_read because nothing was requested. Wrong:
    host-bound at acquire_read, ipc-bound ("polling without a sleep for what EngineCore gives it"), cpu-contention,
    unexplained, nccl-straggler. True though harmless: self-oversubscription (two spinning workers, the engine and two
    CPUs) while a request is served.""",
    allowed=(r"^self-oversubscription:",),
    never=(r"^self-oversubscription: .*<client>",),
    steady=None,
)

if __name__ == "__main__":
    play({"engine": engine, "client": client})
