"""Real PyTorch training loops that never wait for the GPU once a step, each with its own marks of where steps begin.

Writes one JSON line per step to --out, in the format of ingero.demo.workloads.steps.
"""

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

import torch
from torch import nn

FEATURES = 512
CLASSES = 10
BATCH = 256  # rows of 2 KB: more than a copy takes along at once
SMOOTHINGS = 200

Batch = tuple[torch.Tensor, torch.Tensor]


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """Random rows, as many as anybody asks for."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(FEATURES), index % CLASSES


class Block(nn.Module):
    """A layer of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.up, self.down = nn.Linear(FEATURES, 2 * FEATURES), nn.Linear(2 * FEATURES, FEATURES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Adds to its input."""
        added: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norm(rows))))
        return rows + nn.functional.dropout(added, 0.1)


def on_gpu(_: int) -> Iterator[Batch]:
    """Batches that are made on the GPU: nothing is copied."""
    while True:
        rows = torch.randn(BATCH, FEATURES, device="cuda")
        yield rows, torch.randint(CLASSES, (BATCH,), device="cuda")


def pinned(workers: int) -> Iterable[Batch]:
    """Batches of a DataLoader in pinned memory."""
    return DataLoader(Rows(), batch_size=BATCH, num_workers=workers, pin_memory=True)


def pageable(workers: int) -> Iterable[Batch]:
    """Batches of a DataLoader in memory that is not."""
    return DataLoader(Rows(), batch_size=BATCH, num_workers=workers)


def smooth(values: torch.Tensor) -> torch.Tensor:
    """Some milliseconds of work on the CPU, at lines of PyTorch's own Python code."""
    for _ in range(SMOOTHINGS):
        values = nn.functional.normalize(values)
    return values


LOOPS = {"plain": on_gpu, "compiled": on_gpu, "pinned": pinned, "pageable": pageable}


class Trainer:
    """One loop. step() does all that its user wrote for one batch."""

    def __init__(self, loop: str) -> None:
        self._is_pinned = loop == "pinned"
        blocks = [Block() for _ in range(6)]
        self.model = nn.Sequential(*blocks, nn.Linear(FEATURES, CLASSES)).to("cuda")
        self._run = torch.compile(self.model) if loop == "compiled" else self.model
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, batch: Batch) -> torch.Tensor:
        """One step of training; the loss, which nobody waits for."""
        rows, labels = (one.to("cuda", non_blocking=self._is_pinned) for one in batch)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._run(rows), labels)
        loss.backward()
        self._optimizer.step()
        return loss


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=LOOPS, default="plain")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log-every", type=int, default=100, help="steps from one look at the loss to the next")
    parser.add_argument("--slow-after", type=float, default=1.0, help="share of the time from which on steps do more")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(arguments.loop)
    batches = iter(LOOPS[arguments.loop](arguments.workers))
    values = torch.rand(64, 64)
    slow_ns, end_ns, step = 0, 0, 0
    with ExitStack() as stack:
        out = stack.enter_context(arguments.out.open("w", buffering=1))
        begin_ns = time.monotonic_ns()
        while not end_ns or begin_ns < end_ns:
            loss = trainer.step(next(batches))
            if end_ns and begin_ns >= slow_ns:
                values = smooth(values)
            if step % arguments.log_every == 0:
                print(step, loss.item(), flush=True)
            now_ns = time.monotonic_ns()
            out.write(json.dumps({"step": step, "t_ns": now_ns, "step_ns": now_ns - begin_ns}) + "\n")
            if not end_ns:  # the first step compiles
                end_ns = now_ns + int(arguments.seconds * 1e9)
                slow_ns = now_ns + int(arguments.seconds * arguments.slow_after * 1e9)
            begin_ns, step = now_ns, step + 1
    print(json.dumps({"torch": torch.__version__, "steps": step}))


if __name__ == "__main__":
    main()
