"""Metrics are posted over HTTP with a timeout, and the endpoint no longer answers: ClearML, MLflow, a push gateway.

Then the gateway still accepts connections and never answers. Each post waits for its timeout of 250 ms: the program
sleeps in poll() on a socket until a timer ends it. Nobody called sleep.

Source: https://github.com/clearml/clearml/issues/43
"""

from __future__ import annotations

import http.client
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_EVERY = 16  # steps, 200 ms
_TIMEOUT_S = 0.25
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def gateway(folder: Path) -> None:
    """Answers at once; then never again."""
    naming.name_this_thread("metrics-gw")
    held = []
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        lifecycle.announce("ready", listening.getsockname()[1])
        while True:
            connection, _ = listening.accept()
            if has_begun(folder):
                held.append(connection)
                continue
            connection.recv(1 << 16)
            connection.sendall(_ANSWER)
            connection.close()


def push_metrics(port: int) -> None:
    """Posts a metric; a monitoring system that is down must not end a training, so errors are dropped."""
    with (
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)) as connection,
        suppress(OSError, http.client.HTTPException),
    ):
        connection.request("POST", "/metrics?lr=0.1", headers={"Content-Length": "0"})
        connection.getresponse().read()


def trainer(folder: Path, port: str) -> None:
    """Trains, and posts now and then."""
    gpu = Gpu()
    lifecycle.announce("ready")
    for step in logged_steps(folder):
        gpu.step()
        if step % _EVERY == 0:
            push_metrics(int(port))


def make(situation: Situation) -> None:
    """The gateway is another service of the host."""
    [port] = situation.start("gateway")
    situation.start("trainer", port)
    situation.record("trainer")


EXPECTED = Fault(
    answer="""the trainer waits at push_metrics for the answer of a peer (127.0.0.1:PORT, metrics-gw [<gateway>]) that
    does not come until its timeout: a wait for the network or another process. Wrong: sleep-in-loop ("sleeping on a
    timer, remove the sleep"), because only a timer ended the poll(): there is no sleep to remove; periodic-spike
    without what it waits for; silence.""",
    wanted=(at("push_metrics"), r"<gateway>|metrics-gw|127\.0\.0\.1|answer|response|network|socket"),
    never=(
        r"^(?:sleep-in-loop|periodic-spike|host-bound|gpu-slower|unexplained):",
        r"remove the sleep",
    ),
)

if __name__ == "__main__":
    play({"gateway": gateway, "trainer": trainer})
