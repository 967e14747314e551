"""A program that makes no GPU call: what each of its threads and its worker do is known by line."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time


def busy(until: float) -> None:
    number = 0
    while time.monotonic() < until:
        for _ in range(1000):  # busy loop begins
            number = (number * 31 + 7) % 1_000_003  # busy loop ends


def collecting(until: float) -> None:
    kept = [[number] for number in range(200_000)]
    while time.monotonic() < until:
        gc.collect()  # collecting
    assert kept


def napping() -> None:
    while True:
        time.sleep(0.4)  # napping


def getting(jobs: queue.Queue[int]) -> None:
    jobs.get()  # getting


def main() -> None:
    seconds = float(sys.argv[1])
    gc.disable()
    for target, arguments in ((napping, ()), (getting, (queue.Queue(),))):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    sys.stdin.readline()  # traced from here on
    until = time.monotonic() + seconds
    worker = os.fork()
    if not worker:
        busy(until)
        os._exit(0)
    collecting(until)
    os.waitpid(worker, 0)


if __name__ == "__main__":
    main()
