"""Inference as people write it: requests of any length one after the other, or tokens from a graph."""

import argparse
import os
import random
import sys
from argparse import Namespace
from contextlib import ExitStack

from ingero.demo.workloads import lifecycle, loss_reading, train_options
from ingero.demo.workloads.dataset import ImageDataset
from ingero.demo.workloads.loop import HostSide, Log, start_threads, step_numbers
from ingero.demo.workloads.minitorch import Tensor, cuda, nn, no_grad, runtime
from ingero.demo.workloads.minitorch.data.arena import Arena
from ingero.demo.workloads.minitorch.graphs import Graph
from ingero.demo.workloads.minitorch.kernels import Gemm, Kernel

MOST_TILES = 6  # of one request
MOST_TOKENS = 400  # of one prompt
REQUEST, PREFILL, TOKEN = "request", "prefill", "token"
PATTERNS = ("requests", "tokens")


class Requests:
    """One request at a time: fetch it, run each of its tiles, copy the result to ordinary memory. No period."""

    def __init__(self, options: Namespace) -> None:
        self._draw = random.Random(options.seed)
        self._dataset = ImageDataset(options.nbytes, cpu_ms=options.cpu_ms)
        self._model = nn.Transformer(options.layers, options.us)
        self._head = Gemm("detection_head_gemm", duration_us=options.us)
        self._images = Tensor(options.nbytes)
        self._result = Tensor(512)
        self._source = Arena(1, options.nbytes)

    def step(self, step: int) -> tuple[str, Tensor]:
        """Serve one request; return its kind and its result."""
        self._source.write(0, self._dataset[step])
        self._images.copy_from_host(self._source.address(0), self._images.nbytes)
        for _ in range(self._draw.randint(1, MOST_TILES)):
            self._model(self._images)
            self._head.launch()
        self._result.copy_to_ordinary_host()
        return REQUEST, self._result


class Tokens:
    """Prompts and their tokens: a prompt launch by launch, a token as one graph, each looked at after the next."""

    def __init__(self, options: Namespace) -> None:
        self._draw = random.Random(options.seed)
        self._prompt_model = nn.Transformer(options.layers, 2 * options.us)
        self._token_model = nn.Transformer(options.layers, options.us)
        self._embedding = Kernel("embedding_kernel", duration_us=2.0)
        self._sampler = Kernel("sample_top_p_kernel", duration_us=3.0)
        self._hidden = Tensor(nn.ACTIVATION_BYTES)
        self._text = Tensor(4096)
        self._token_model(self._hidden)  # the allocator must have what the graph needs
        self._graph = Graph(lambda: self._token_model(self._hidden))
        self._read = loss_reading.reader("behind")
        self._left = 0

    def step(self, step: int) -> tuple[str, Tensor]:
        """Make one token; return its kind and the text so far."""
        del step
        if not self._left:
            self._left = self._draw.randint(1, MOST_TOKENS)
            self._embedding.launch()
            self._prompt_model(self._hidden)
            self._sampler.launch()
            return PREFILL, self._text
        self._left -= 1
        self._embedding.launch()
        self._graph.replay()
        self._sampler.launch()
        self._read(self._text)
        return TOKEN, self._text


def serve(options: Namespace, log: Log) -> None:
    """Infer until the limits of the options are reached; write one line for each step."""
    made = Requests(options) if options.pattern == "requests" else Tokens(options)
    host = HostSide(options)
    for step in step_numbers(options):
        log.begin()
        host.before_step(step)
        kind, result = made.step(step)
        host.after_step(step, result)
        log.end(step=step, kind=kind)


def parse(arguments: list[str] | None) -> Namespace:
    """Read the command line."""
    root = argparse.ArgumentParser(prog="infer", description=__doc__)
    train_options.add_length(root.add_argument_group("how long"))
    work = root.add_argument_group("work")
    work.add_argument("--pattern", choices=PATTERNS, default="requests")
    work.add_argument("--layers", type=int, default=8, help="transformer layers, 7 launches each")
    work.add_argument("--us", type=float, default=40, help="device time of one matrix product in us")
    work.add_argument("--nbytes", type=int, default=1 << 20, help="bytes of one request")
    work.add_argument("--cpu-ms", type=float, default=1.0, help="CPU time to decode one request")
    work.add_argument("--bystanders", type=int, default=0, help="threads with a stream each that work by themselves")
    work.add_argument("--seed", type=int, default=1)
    train_options.add_host(root.add_argument_group("the host's side"))
    return root.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the loop; print `ready PID` on stderr when the device is set up."""
    options = parse(arguments)
    if options.runtime:
        os.environ["GPUSIM_RUNTIME"] = options.runtime
    with ExitStack() as stack:
        runtime.library()
        stack.enter_context(lifecycle.until_stopped())
        out = stack.enter_context(options.out.open("w", buffering=1)) if options.out else sys.stdout
        lifecycle.announce("loaded")
        lifecycle.wait_for(options.gate)
        cuda.init()
        start_threads(options)
        stack.enter_context(cuda.stream(cuda.Stream()))  # the default stream cannot be captured
        stack.enter_context(no_grad())
        lifecycle.announce("ready")
        serve(options, Log(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
