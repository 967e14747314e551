"""A notebook kernel has trained in its cells, and now nobody runs one: its event loop wakes by its own timers.

As ipykernel: cells run in the thread of an asyncio loop, a thread answers heartbeats, another one saves the history
once a second. A timer of 20 ms in the same loop polls a GUI and shows usage (ipykernel polls each 10 ms). Then the
person reads, runs one more cell of 40 steps, and reads again. Nothing is lost: nobody asked for anything.

Source: https://github.com/ipython/ipykernel/issues/912 (a periodic measurement in an idle kernel)
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Healthy
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_CELL_STEPS = 40
_PERIOD_S = 0.02
_READS = 0.4  # of the time without cells, until the one cell


def run_cell(gpu: Gpu, numbers: Iterator[int], steps: int) -> None:
    """What the person wrote into the cell: for batch in loader: train."""
    for _ in range(steps):
        next(numbers)
        gpu.step()


def answer_heartbeats(listening: socket.socket) -> None:
    """The heartbeat channel: an echo."""
    naming.name_this_thread("Heartbeat")
    connection, _ = listening.accept()
    while content := connection.recv(16):
        connection.sendall(content)


def save_history() -> None:
    """The history is written once a second, if there is any."""
    naming.name_this_thread("IPythonHistory")
    waits = threading.Condition()
    with waits:
        while True:
            waits.wait(1.0)


async def serve(folder: Path) -> None:
    """The kernel's event loop."""
    loop = asyncio.get_running_loop()
    gpu, numbers = Gpu(), logged_steps(folder)

    def measure_usage() -> None:
        Path("/proc/self/statm").read_text()
        loop.call_later(_PERIOD_S, measure_usage)

    async def shell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            run_cell(gpu, numbers, int(line))
            writer.write(b"idle\n")
            await writer.drain()

    heartbeat = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=answer_heartbeats, args=(heartbeat,), daemon=True).start()
    threading.Thread(target=save_history, daemon=True).start()
    server = await asyncio.start_server(shell, "127.0.0.1", 0)
    measure_usage()
    lifecycle.announce("ready", server.sockets[0].getsockname()[1], heartbeat.getsockname()[1])
    await server.serve_forever()


def kernel(folder: Path) -> None:
    """The kernel."""
    asyncio.run(serve(folder))


def browser(folder: Path, shell_port: str, heartbeat_port: str, with_s: str) -> None:
    """The notebook server with the person behind it."""
    naming.name_this_thread("jupyter-lab")

    def beat() -> None:
        with socket.create_connection(("127.0.0.1", int(heartbeat_port))) as connection:
            while True:
                time.sleep(1.0)
                connection.sendall(b"ping")
                connection.recv(16)

    threading.Thread(target=beat, daemon=True).start()
    with socket.create_connection(("127.0.0.1", int(shell_port))) as connection:

        def execute() -> None:
            connection.sendall(b"%d\n" % _CELL_STEPS)
            connection.recv(16)

        lifecycle.announce("ready")
        while not has_begun(folder):
            execute()
        time.sleep(_READS * float(with_s))
        execute()
        threading.Event().wait()


def make(situation: Situation) -> None:
    """Only the kernel is traced."""
    ports = situation.start("kernel")
    situation.start("browser", *ports, situation.times.with_s)
    situation.record("kernel")


EXPECTED = Healthy(
    answer="""no incident: the kernel trained when it was asked to, and waits for its next cell in its event loop, also
    where its own timers (20 ms) end most of these sleeps. Wrong: any lost time of the 6 s between two cells
    (unexplained, sleep-in-loop, ipc-bound of jupyter-lab [<browser>]), and host-hang while nobody asks.""",
    steady=None,
)

if __name__ == "__main__":
    play({"kernel": kernel, "browser": browser})
