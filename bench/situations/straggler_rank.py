"""Two ranks meet at a barrier of a TCP store (gloo, c10d) in each step, and one of them computes longer.

Rank 1's shard has longer items: 35 ms of augmentation in its main thread instead of 3. Rank 0 has an idle GPU and
sleeps in barrier(), until the store, a process of the launcher, lets it go on; the store waits for rank 1.

Source: https://github.com/pytorch/pytorch/pull/53773 (which rank was late at a barrier)
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, compute, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_WORLD = 2
_WORD = b"arrived!"


def store(_folder: Path) -> None:
    """Lets all ranks go on once the last one has arrived."""
    naming.name_this_thread("c10d-store")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        lifecycle.announce("ready", listening.getsockname()[1])
        ranks = [listening.accept()[0] for _ in range(_WORLD)]
        for connection in ranks:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while all(connection.recv(len(_WORD), socket.MSG_WAITALL) for connection in ranks):
            for connection in ranks:
                connection.sendall(_WORD)


def barrier(connection: socket.socket) -> None:
    """Returns when all ranks have called it."""
    connection.sendall(_WORD)
    if not connection.recv(len(_WORD), socket.MSG_WAITALL):
        raise ConnectionError("the store has ended")


def augment(seconds: float) -> None:
    """What a shard's items need on the CPU."""
    compute(seconds)


def rank(folder: Path, number: str, port: str) -> None:
    """Trains on its shard; all ranks step together."""
    mine = int(number)
    gpu = Gpu(mine)
    log_folder = folder / f"rank{mine}" if mine else folder
    log_folder.mkdir(exist_ok=True)
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lifecycle.announce("ready")
        for _ in logged_steps(log_folder):
            augment(0.035 if mine and has_begun(folder) else 0.003)
            gpu.step()
            barrier(connection)


def make(situation: Situation) -> None:
    """Both ranks are traced; the store is the launcher's."""
    situation.devices = _WORLD
    [port] = situation.start("store")
    for number in range(_WORLD):
        variables = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(_WORLD)}
        situation.start("rank", number, port, name=f"rank{number}", variables=variables)
    situation.record("rank0", "rank1")


EXPECTED = Fault(
    answer="""an incident of rank 1 [<rank1>]: it computes in augment (host-bound, or a straggler), and rank 0 [<rank0>]
    waits for it at barrier; that the store [<store>] passed that on, and that rank 0 computes 3 ms a step in its own
    augment, is true as well. Wrong: the store as a culprit, or as who answered late ("profile c10d-store");
    data-starvation, gpu-slower, cpu-contention, unexplained for rank 0.""",
    wanted=(r"<rank1>", at("augment", "compute")),
    never=(
        r"^(?:data-starvation|gpu-slower|cpu-contention|sleep-in-loop|network-retransmit|unexplained):",
        r"answer of c10d-store|\| Culprits .*(?:<store>|c10d-store)",  # named as who passed it on it is not blamed
    ),
    slower=1.5,
)

if __name__ == "__main__":
    play({"store": store, "rank": rank})
