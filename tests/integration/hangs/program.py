"""A trainer that makes steps until a file is there, then does what its first argument says: hangs, or pauses.

usage: program.py WHAT GATE [MORE]: what is done is one of the functions below; the line that waits ends in `# here`.
"""

import fcntl
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue

from ingero.demo.workloads import train_options
from ingero.demo.workloads.minitorch import cuda, runtime
from ingero.demo.workloads.minitorch.data import DataLoader
from ingero.demo.workloads.train import Trainer, dataset

_PAUSE_S = 9.0
_READY = 60  # steps of 50 ms, before it says so
_FORK = multiprocessing.get_context("fork")
Step = Callable[[], None]


def trainer() -> Step:
    """A step of a small training loop, 50 ms on the GPU."""
    texts = ["--layers", "1", "--us", "3000", "--workers", "0", "--cpu-ms", "0.2"]
    options = train_options.parser().parse_args(texts)
    runtime.library()
    batches = iter(DataLoader(dataset(options), num_workers=0))
    cuda.init(0)
    made = Trainer(options)
    return lambda: made.read_loss(made.train_step(next(batches)))


# Hangs


def full_pipe(_step: Step) -> None:
    while True:
        os.write(1, b"x" * 4096)  # here


def stopped_terminal(_step: Step) -> None:
    terminal = os.open(sys.argv[3], os.O_WRONLY | os.O_NOCTTY)
    while True:
        os.write(terminal, b"x" * 4096)  # here


def forked_lock(_step: Step) -> None:
    lock = threading.Lock()
    results = _FORK.Queue()

    def deliver() -> None:
        with lock:  # here
            results.put(1)

    with lock:  # as another thread would have it
        _FORK.Process(target=deliver, daemon=True).start()
    results.get()


def lock_file(_step: Step) -> None:
    while Path(sys.argv[3]).exists():
        time.sleep(0.1)  # here


def flocked(_step: Step) -> None:
    fcntl.flock(os.open(sys.argv[3], os.O_RDWR), fcntl.LOCK_EX)  # here


def record_locked(_step: Step) -> None:
    fcntl.lockf(os.open(sys.argv[3], os.O_RDWR), fcntl.LOCK_EX)  # here


def _worker(does: Callable[[], None]) -> "multiprocessing.Queue[int]":
    results = _FORK.Queue()

    def work() -> None:
        does()
        results.put(1)

    _FORK.Process(target=work, daemon=True).start()
    return results


def dead_worker(_step: Step) -> None:
    _worker(lambda: os._exit(3)).get()  # here


def killed_worker(_step: Step) -> None:
    """As PyTorch's loader, it looks now and then."""
    results = _worker(lambda: os.kill(os.getpid(), signal.SIGBUS))
    while True:
        try:
            results.get(timeout=1.5)  # here
        except Empty:
            continue


def stopped_worker(_step: Step) -> None:
    _worker(lambda: os.kill(os.getpid(), signal.SIGSTOP)).get()  # here


def silent_peer(_step: Step) -> None:
    socket.create_connection(("127.0.0.1", int(sys.argv[3]))).recv(1)  # here


def deadlock(_step: Step) -> None:
    first, second = threading.Lock(), threading.Lock()

    def other() -> None:
        with second:
            time.sleep(0.3)
            with first:
                pass

    with first:
        threading.Thread(target=other, daemon=True).start()
        time.sleep(0.1)
        with second:  # here
            pass


def stopped_child(_step: Step) -> None:
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, 0)  # here


# Pauses: no fault


def evaluation(_step: Step) -> None:
    """On the CPU, of which it takes a fifth."""
    until = time.monotonic() + _PAUSE_S
    while time.monotonic() < until:
        begin = time.thread_time()
        while time.thread_time() - begin < 0.004:
            sum(range(1000))
        time.sleep(0.016)


def checkpoint(_step: Step) -> None:
    """Written by a thread that the loop waits for."""

    def write() -> None:
        until = time.monotonic() + _PAUSE_S
        with Path(sys.argv[3]).open("wb", buffering=0) as file:
            while time.monotonic() < until:
                file.seek(0)
                file.write(b"x" * (1 << 20))
                os.fsync(file.fileno())
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join()


def slow_worker(_step: Step) -> None:
    """It delivers, in the end."""
    _worker(lambda: time.sleep(_PAUSE_S)).get()


def debugged(_step: Step) -> None:
    """Whoever runs this holds it as a debugger does, and lets it go on."""


def between_phases(_step: Step) -> None:
    time.sleep(_PAUSE_S)


def ends(_step: Step) -> None:
    sys.exit(0)


def idle_server(step: Step) -> None:
    """Requests come over a socket to a thread, which hands them to this one; then none come."""
    asked: Queue[bytes] = Queue()
    listening = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        connection, _ = listening.accept()
        waiting = select.epoll()
        waiting.register(connection, select.EPOLLIN)
        while True:
            waiting.poll()
            if not (question := connection.recv(1)):
                return
            asked.put(question)

    threading.Thread(target=listen, daemon=True).start()
    Path(sys.argv[3]).write_text(str(listening.getsockname()[1]))
    while True:
        asked.get()
        step()


def main() -> None:
    what, gate = globals()[sys.argv[1]], Path(sys.argv[2])
    step = trainer()
    for number in range(10**9):
        step()
        if number == _READY:
            (gate.parent / f"ready.{sys.argv[1]}").touch()
        if gate.exists() or (what is idle_server and number == _READY):
            break
    what(step)
    for _ in range(50):
        step()


if __name__ == "__main__":
    main()
