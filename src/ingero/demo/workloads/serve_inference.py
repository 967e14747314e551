"""An inference server: a front that sleeps in epoll without traffic, and an engine that batches what arrived."""

import argparse
import contextlib
import json
import queue
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.inference_protocol import Request, frame, take_frame
from ingero.demo.workloads.minitorch import Tensor, cuda, naming, nn, no_grad, runtime
from ingero.demo.workloads.minitorch.kernels import Gemm, Kernel

TOKEN_BYTES = 4


class Sequence:
    """A request being served: where its reply goes, and how many tokens it still needs."""

    def __init__(self, client: "Client", request: Request) -> None:
        self.client = client
        self.request = request
        self.tokens = bytearray()
        self.arrived_ns = time.monotonic_ns()

    @property
    def is_finished(self) -> bool:
        """Whether all its tokens are made."""
        return len(self.tokens) >= self.request.new_tokens * TOKEN_BYTES


@dataclass
class Client:
    """One connection, and what came through it so far."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)

    def reply(self, content: bytes) -> None:
        """Send a frame; a client that left is no error of the server."""
        with contextlib.suppress(OSError):
            self.connection.sendall(frame(content))


class LanguageModel:
    """A transformer with two shapes of work: prefill (large products) and decode (many small launches)."""

    def __init__(self, layers: int, prefill_us: float, decode_us: float) -> None:
        self.prefill_model = nn.Transformer(layers, prefill_us)
        self.decode_model = nn.Transformer(layers, decode_us)
        self.embedding = Kernel("embedding_kernel", duration_us=2.0)
        self.head = Gemm("lm_head_gemm", duration_us=decode_us)
        self.sampler = Kernel("sample_top_p_kernel", duration_us=3.0)
        self.hidden = Tensor(nn.ACTIVATION_BYTES)
        self.tokens = Tensor(4096)

    def prefill(self, prompts: int) -> None:
        """Run all the prompts of new sequences, one after the other."""
        for _ in range(prompts):
            self.embedding.launch()
            self.prefill_model(self.hidden)

    def decode(self) -> None:
        """Make one token for each sequence of the batch; return when they are on the host."""
        self.embedding.launch()
        self.decode_model(self.hidden)
        self.head.launch()
        self.sampler.launch()
        self.tokens.item()


class InferenceEngine:
    """The thread that owns the model: takes waiting sequences into the running batch before each token."""

    def __init__(self, model: LanguageModel, max_batch: int, log: TextIO | None) -> None:
        self.model = model
        self.max_batch = max_batch
        self.waiting: queue.SimpleQueue[Sequence] = queue.SimpleQueue()
        self.running: list[Sequence] = []
        self.log = log

    def serve_forever(self) -> None:
        """Make tokens while there is something to do, sleep in the queue when there is not."""
        naming.name_this_thread("engine")
        cuda.enter()
        with no_grad():
            while True:
                self.admit()
                self.step()

    def admit(self) -> None:
        """Fill the batch; wait for the first sequence if it is empty."""
        new: list[Sequence] = []
        with contextlib.suppress(queue.Empty):
            while len(self.running) + len(new) < self.max_batch:
                new.append(self.waiting.get(block=not self.running and not new))
        if new:
            self.model.prefill(len(new))
            self.running.extend(new)

    def step(self) -> None:
        """Make one token for each sequence of the batch; reply to those that are finished."""
        self.model.decode()
        for sequence in self.running:
            sequence.tokens += bytes(TOKEN_BYTES)
        for sequence in [s for s in self.running if s.is_finished]:
            self.running.remove(sequence)
            self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Send the tokens and note how long they took."""
        sequence.client.reply(bytes(sequence.tokens))
        if self.log is not None:
            now_ns = time.monotonic_ns()
            row = {"t_ns": now_ns, "latency_ns": now_ns - sequence.arrived_ns, "tokens": sequence.request.new_tokens}
            self.log.write(json.dumps(row) + "\n")


class Front:
    """The event loop: accepts connections and turns frames into sequences."""

    def __init__(self, listener: socket.socket, engine: InferenceEngine) -> None:
        self.listener = listener
        self.engine = engine
        self.selector = selectors.EpollSelector()
        self.selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Accept connections and requests forever, asleep while there are none."""
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    self.accept()
                else:
                    self.read(key.data)

    def accept(self) -> None:
        """Take a new connection."""
        connection, _ = self.listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(connection, selectors.EVENT_READ, Client(connection))

    def read(self, client: Client) -> None:
        """Hand every complete request to the engine; drop a client that left or does not speak the protocol."""
        try:
            chunk = client.connection.recv(64 << 10)
            client.received += chunk
            while (content := take_frame(client.received)) is not None:
                self.engine.waiting.put(Sequence(client, Request.unpack(content)))
        except (OSError, ValueError):
            chunk = b""
        if not chunk:
            self.selector.unregister(client.connection)
            client.connection.close()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="serve_inference", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prefill-us", type=float, default=120, help="device time of one product of a prompt")
    parser.add_argument("--decode-us", type=float, default=8, help="device time of one product of a token")
    parser.add_argument("--max-batch", type=int, default=8, help="sequences that get a token together")
    parser.add_argument("--out", type=Path, help="one JSON line a request: t_ns latency_ns tokens")
    parser.add_argument("--gate", type=Path, help="wait for this file before the first CUDA call")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM; print `ready PID PORT` on stderr when connections are accepted."""
    options = parse(arguments)
    with contextlib.ExitStack() as stack:
        runtime.library()
        stack.enter_context(lifecycle.until_stopped())
        log = stack.enter_context(options.out.open("w", buffering=1)) if options.out else None
        lifecycle.announce("loaded")
        lifecycle.wait_for(options.gate)
        cuda.init()
        model = LanguageModel(options.layers, options.prefill_us, options.decode_us)
        engine = InferenceEngine(model, options.max_batch, log)
        threading.Thread(target=engine.serve_forever, name="engine", daemon=True).start()
        listener = stack.enter_context(socket.create_server((options.host, options.port)))
        lifecycle.announce("ready", listener.getsockname()[1])
        Front(listener, engine).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
