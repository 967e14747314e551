"""A bounded load for the inference server: so many clients, at most so many requests in so much time."""

import argparse
import json
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from ingero.demo.workloads.inference_protocol import Request, receive_frame


class Budget:
    """How many requests all clients together may still send, and at what times."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.left = options.requests
        self.interval_s = 1 / options.rate if options.rate else 0.0
        self.end = time.monotonic() + options.seconds
        self._next = time.monotonic()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Wait for the next request's turn; return False when there is none left."""
        with self._lock:
            turn = max(self._next, time.monotonic())
            if self.left <= 0 or turn >= self.end:
                return False
            self.left -= 1
            self._next = turn + self.interval_s
        time.sleep(max(0.0, turn - time.monotonic()))
        return True


def run_client(options: argparse.Namespace, number: int, budget: Budget, out: TextIO) -> None:
    """Send one request after the other over one connection; write a line for each answer."""
    lengths = random.Random(number)
    received = bytearray()
    with socket.create_connection((options.host, options.port)) as connection:
        while budget.take():
            new_tokens = lengths.randint(1, 2 * options.new_tokens - 1)
            sent_ns = time.monotonic_ns()
            connection.sendall(Request(options.prompt_tokens, new_tokens).pack())
            receive_frame(connection, received)
            now_ns = time.monotonic_ns()
            out.write(json.dumps({"t_ns": now_ns, "latency_ns": now_ns - sent_ns, "tokens": new_tokens}) + "\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="serve_load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=100, help="in all")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second in all; 0: as fast as answers come")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=16, help="mean; each request draws from 1 to twice that")
    parser.add_argument("--out", type=Path, help="one JSON line an answer: t_ns latency_ns tokens (default stdout)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the clients until requests or time are used up; 1 if one of them lost its connection."""
    options = parse(arguments)
    budget = Budget(options)
    failures: list[BaseException] = []
    out = options.out.open("w", buffering=1) if options.out else sys.stdout

    def client(number: int) -> None:
        try:
            run_client(options, number, budget, out)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if options.out:
        out.close()
    for failure in failures:
        print(f"serve_load: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
