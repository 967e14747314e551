"""A training loop as people write it: load, forward, backward, step, and now and then read the loss."""

import os
import random
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ingero.demo.workloads import lifecycle, loss_reading, minitorch, steps, train_options
from ingero.demo.workloads.dataset import ImageDataset
from ingero.demo.workloads.host_knobs import HostKnobs
from ingero.demo.workloads.lengths import Lengths
from ingero.demo.workloads.loop import HostSide, Log, start_threads, step_numbers
from ingero.demo.workloads.minitorch import Tensor, cuda, naming, nn, optim, runtime
from ingero.demo.workloads.minitorch.data import Batch, DataLoader
from ingero.demo.workloads.minitorch.distributed import DistributedDataParallel, ProcessGroup
from ingero.demo.workloads.minitorch.graphs import Graph
from ingero.demo.workloads.minitorch.kernels import Kernel

CHURN_BYTES = 32 << 20
NORM_US = 4.0  # on the GPU
GRAPH_WARM_UP = 3  # steps before the capture: the allocator must have what it needs
TILES = ("128x64", "64x64", "128x128")  # what the matrix library chooses for each shape, the usual one first
SHAPE_US = (1.0, 0.5, 1.5)  # times --us
SHAPE_LAUNCHES = 4  # more for each further shape


class Trainer:
    """Model, optimizer and streams of one training process; made after the workers were forked."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.models = [shaped_model(options, shape) for shape in range(options.shapes)]
        self.model = self.models[0]
        self.shapes = random.Random(options.seed)
        self.shape = 0
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = optim.AdamW()
        self.engine = minitorch.autograd.Engine(threaded=options.autograd_thread)
        self.images = Tensor(options.nbytes)
        self.norms = [Kernel("vector_norm", duration_us=NORM_US)] * options.norms
        self.lengths = Lengths(options)
        self.copy_stream = cuda.Stream() if options.streams != "none" else cuda.Stream.default()
        self.copied = cuda.Event()
        self.read_loss = loss_reading.reader(options.sync, options.behind)
        self.drain = self.read_loss  # its earlier name, in programs that lie beside the checkout (bench/live_cases.py)
        self.graph: Graph | None = None
        self.steps = 0

    def train_step(self, batch: Batch) -> Tensor:
        """Launch one step; return its loss, which nobody has waited for at the end of it."""
        self.load(batch)
        self.shape = self.shapes.randrange(len(self.models))
        self.model = self.models[self.shape]
        self.steps += 1
        if self.options.graph and self.steps > GRAPH_WARM_UP:
            return self.replay()
        return self.compute()

    def compute(self) -> Tensor:
        """Forward, backward, and the optimizer when enough steps have accumulated."""
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(self.images))
        if self.options.item_mid:
            loss.item()
        self.engine.backward(loss)
        self.log_norms()
        if self.steps % self.options.accumulate == 0:
            self.optimizer.step()
        self.images.grad_fn = None
        return loss

    def log_norms(self) -> None:
        """Copy the norm of one gradient after the other, and wait for each if they are read as people read them."""
        for norm in self.norms:
            norm.launch()
            if self.options.read_norms:
                self.images.item()
            else:
                self.images.copy_to_host()

    def replay(self) -> Tensor:
        """Run `compute` as a CUDA graph, captured when it is first needed."""
        if self.graph is None:
            self.graph = Graph(self.compute)
        self.graph.replay()
        return self.images

    def load(self, batch: Batch) -> None:
        """Copy the batch to the device, on the copy stream if there is one."""
        if self.options.streams == "synced":
            self.images = Tensor(self.options.nbytes)
            self.images.record_stream()
        with cuda.stream(self.copy_stream):
            nbytes = self.lengths.set_for(self.steps, batch.nbytes)
            batch.copy_to(self.images, nbytes, non_blocking=not self.options.blocking_copies)
        if self.options.streams == "synced":
            self.copy_stream.synchronize()
        if self.options.streams in {"ordered", "synced"}:
            self.copied.record(self.copy_stream.handle)
            cuda.Stream.default().wait_event(self.copied)

    def evaluate(self) -> list[int]:
        """Forward passes without gradients, and a look at the result; return when each began."""
        began_ns = []
        with minitorch.no_grad():
            for _ in range(self.options.eval_batches):
                began_ns.append(time.monotonic_ns())
                predictions = self.model(self.images)
            predictions.item()
        return began_ns

    def churn(self) -> None:
        """Allocate past the cache, as a model with ever new shapes does."""
        scratch = Tensor(CHURN_BYTES)
        del scratch
        cuda.empty_cache()

    def kind(self) -> str:
        """The kind of the last step: part of a step whose gradients accumulate, or a step of one shape."""
        if self.steps % self.options.accumulate != 1 % self.options.accumulate:
            return steps.MICRO
        return f"shape {self.shape}" if self.options.shapes > 1 else steps.TRAIN


def shaped_model(options: Namespace, shape: int) -> nn.Transformer:
    """Make the model that steps of one shape run: other kernels, and a few more of them."""
    launches = options.launches + shape * SHAPE_LAUNCHES
    return nn.Transformer(options.layers, options.us * SHAPE_US[shape], launches, TILES[shape])


def training_loop(trainer: Trainer, loader: DataLoader, log: Log) -> None:
    """Train until the limits of the options are reached; write one line for each step."""
    options = trainer.options
    host = HostSide(options)
    batches = iter(loader)
    for step in step_numbers(options):
        log.begin()
        batch = next(batches)
        data_ns = time.monotonic_ns() - log.began_ns
        host.before_step(step)
        if options.churn:
            trainer.churn()
        trainer.lengths.factor = host.state.sequence
        loss = trainer.train_step(batch)
        host.after_step(step, loss)
        if (step + 1) % options.sync_every == 0:
            trainer.read_loss(loss)
        is_evaluated = options.eval_every and (step + 1) % options.eval_every == 0
        evaluated_ns = trainer.evaluate() if is_evaluated else []
        log.end(step=step, data_ns=data_ns, kind=trainer.kind(), evaluated_ns=evaluated_ns)


@contextmanager
def process_group(options: Namespace, models: list[nn.Transformer]) -> Iterator[None]:
    """Join the other ranks, if there are any."""
    if options.world == 1:
        yield
        return
    group = ProcessGroup(options.rank, options.world, options.uid, watched=options.watchdog)
    for model in models:
        DistributedDataParallel(model, group)
    yield
    group.close()


def dataset(options: Namespace) -> ImageDataset:
    """Return the data that the options describe."""
    host, _, port = (options.tcp or "").rpartition(":")
    return ImageDataset(
        options.nbytes,
        cpu_ms=options.cpu_ms,
        path=options.data,
        buffered=options.buffered,
        address=(host, int(port)) if options.tcp else None,
        knobs=HostKnobs(options.knob) if options.knob else None,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the trainer; print `ready PID` on stderr when the device is set up."""
    options = train_options.parse(arguments)
    if options.runtime:
        os.environ["GPUSIM_RUNTIME"] = options.runtime
    if options.world > 1:
        naming.die_with_parent()  # a rank whose launcher was killed could wait for the others for ever
    runtime.library()
    loader = DataLoader(
        dataset(options), num_workers=options.workers, prefetch_factor=options.prefetch, pin_memory=options.pin_memory
    )
    with ExitStack() as stack:
        stack.enter_context(loader)
        stack.enter_context(lifecycle.until_stopped())
        out = stack.enter_context(options.out.open("w", buffering=1)) if options.out else sys.stdout
        lifecycle.announce("loaded")
        lifecycle.wait_for(options.gate)
        cuda.init(options.rank)
        if not options.pageable and not options.blocking_copies:
            loader.register_memory()
        trainer = Trainer(options)
        stack.enter_context(process_group(options, trainer.models))
        start_threads(options)
        if options.graph:
            stack.enter_context(cuda.stream(cuda.Stream()))  # the default stream cannot be captured
        lifecycle.announce("ready")
        training_loop(trainer, loader, Log(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
