"""A small real PyTorch training loop: DataLoader workers, pinned memory, autograd, AdamW, and a loss read every step.

Prints one JSON line per step with its times in ms, then one with the version and the number of steps.
"""

import argparse
import json
import time

from torch.utils.data import DataLoader, Dataset

import torch
from torch import nn

FEATURES = 256
CLASSES = 10


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """Random rows, as many as anybody asks for."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(FEATURES), index % CLASSES


def make_model() -> nn.Module:
    hidden = [layer for _ in range(6) for layer in (nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.LayerNorm(FEATURES))]
    return nn.Sequential(*hidden, nn.Linear(FEATURES, CLASSES))


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, labels: torch.Tensor, pause_s: float = 0.0
) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(rows), labels)
    if pause_s:
        loss.register_hook(lambda _: time.sleep(pause_s))
    loss.backward()
    optimizer.step()
    return float(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pause-s", type=float, default=0.0, help="at the begin of each backward pass")
    arguments = parser.parse_args()
    device = torch.device("cuda")
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batches = iter(DataLoader(Rows(), batch_size=64, num_workers=arguments.workers, pin_memory=True))
    for step in range(arguments.steps):
        begin = time.perf_counter()
        rows, labels = next(batches)
        loaded = time.perf_counter()
        rows, labels = rows.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        train_step(model, optimizer, rows, labels, arguments.pause_s)
        end = time.perf_counter()
        times = {"step_ms": round((end - begin) * 1e3, 2), "data_ms": round((loaded - begin) * 1e3, 2)}
        print(json.dumps({"step": step, **times}), flush=True)
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "steps": arguments.steps}))


if __name__ == "__main__":
    main()
