"""Training and inference loops on a real GPU, with PyTorch. It runs alone, in a Python that need not have ingero.

python loops.py LOOP --folder FOLDER. Prints `ready PID` on standard error when its first steps are done. It goes on
until FOLDER/stop exists, then writes the times at which its steps began to FOLDER/marks.json. While FOLDER/fault
exists, items of the data set take 0.3 s longer, a thread computes, or a neighbor multiplies matrices; once
FOLDER/profile exists, PyTorch's profiler records 12 steps into FOLDER/kineto.json.
"""

import argparse
import importlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 8192
PROFILED_STEPS = 12
WARM_UP_STEPS = 6  # torch.compile and CUDA graphs are ready after three
LOG_EVERY = 100  # steps
SLOW_ITEM_S = 0.3
TINY_LAUNCHES = 500
BURNT_NUMBERS = 1_000_000  # about 50 ms of Python
Step = Callable[[int], Any]


class Items:
    """A data set of random tokens, with a larger tensor beside them."""

    def __init__(self, torch: Any, *, batch: int, length: int, fault: Path) -> None:
        self.torch, self.batch, self.length, self.fault = torch, batch, length, fault

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.fault.exists():
            time.sleep(SLOW_ITEM_S)
        random = self.torch.Generator().manual_seed(index)
        tokens = self.torch.randint(0, VOCABULARY, (self.batch, self.length + 1), generator=random)
        return tokens, self.torch.randn(self.batch, 64, 1024, generator=random)


class Training:
    """A transformer that learns to predict tokens. width, layers: of the model; batch, length: of its input."""

    def __init__(self, torch: Any, *, width: int, layers: int, batch: int, length: int, compiled: str = "") -> None:
        self.torch, self.batch, self.length, self.is_large = torch, batch, length, width >= 1024
        nn = torch.nn
        heads = width // 64
        blocks = [
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        ]
        model = nn.Sequential(nn.Embedding(VOCABULARY, width), *blocks, nn.Linear(width, VOCABULARY)).cuda()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.model = torch.compile(model, mode=compiled) if compiled else model
        self.tokens = torch.randint(0, VOCABULARY, (batch, length + 1), device="cuda")

    def step(self, tokens: Any) -> Any:
        """One step; its loss, still on the GPU."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.autocast("cuda", dtype=self.torch.bfloat16, enabled=self.is_large):
            predicted = self.model(tokens[:, :-1])
            flat = predicted.float().reshape(-1, VOCABULARY)
            loss = self.torch.nn.functional.cross_entropy(flat, tokens[:, 1:].reshape(-1))
        loss.backward()
        self.optimizer.step()
        return loss


def trainer(torch: Any, *, compiled: str = "", is_small: bool = False) -> Training:
    """The model of most loops, or one so small that launching it takes longer than its kernels."""
    if is_small:
        return Training(torch, width=128, layers=4, batch=4, length=32)
    return Training(torch, width=1024, layers=8, batch=32, length=256, compiled=compiled)


def waiting(training: Training) -> Step:
    """Reads the loss after each step."""
    return lambda _: training.step(training.tokens).item()


def logging(training: Training) -> Step:
    """Reads the loss every hundredth step."""

    def step(number: int) -> None:
        loss = training.step(training.tokens)
        if number % LOG_EVERY == LOG_EVERY - 1:
            loss.item()

    return step


def never_waiting(training: Training) -> Step:
    """Reads no loss."""
    return lambda _: training.step(training.tokens)


def with_graphs(torch: Any) -> Step:
    """Replays CUDA graphs."""
    training = trainer(torch, compiled="reduce-overhead")

    def step(_: int) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        training.step(training.tokens).item()

    return step


def copying(torch: Any) -> Step:
    """Copies a batch from memory that is not pinned, and waits for nothing else."""
    training = trainer(torch)
    tokens, extra = training.tokens.cpu(), torch.randn(training.batch, 256, 1024)

    def step(_: int) -> None:
        there = tokens.to("cuda", non_blocking=True)
        extra.to("cuda")
        training.step(there)

    return step


def loading(torch: Any, fault: Path, *, is_pinned: bool) -> Step:
    """Is fed by four data workers."""
    training = trainer(torch)
    items = Items(torch, batch=training.batch, length=training.length, fault=fault)
    loader = iter(
        torch.utils.data.DataLoader(items, batch_size=None, num_workers=4, pin_memory=is_pinned, prefetch_factor=2)
    )

    def step(number: int) -> None:
        tokens, extra = (part.to("cuda", non_blocking=is_pinned) for part in next(loader))
        loss = training.step(tokens) + extra.mean() * 0
        if number % LOG_EVERY == LOG_EVERY - 1:
            loss.item()

    return step


def beside_a_thread(torch: Any, fault: Path) -> Step:
    """Has a Python thread that computes while the fault lasts."""

    def burn() -> None:
        while True:
            while not fault.exists():
                time.sleep(0.01)
            while fault.exists():  # a look lets go of the interpreter lock: most of the time it is to be held
                sum(number * number for number in range(BURNT_NUMBERS))

    threading.Thread(target=burn, daemon=True, name="metrics").start()
    return waiting(trainer(torch))


def tiny(torch: Any) -> Step:
    """Launches 500 kernels that take no time."""
    numbers = torch.zeros(64, device="cuda")

    def step(_: int) -> None:
        for _ in range(TINY_LAUNCHES):
            numbers.add_(1)
        torch.cuda.synchronize()

    return step


def generating(torch: Any) -> Step:
    """Generates 32 tokens for four prompts, with transformers."""
    transformers = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        vocab_size=VOCABULARY,
    )
    model = transformers.LlamaForCausalLM(config).cuda().to(torch.bfloat16).eval()

    def step(_: int) -> None:
        prompts = torch.randint(0, VOCABULARY, (4, 64), device="cuda")
        with torch.inference_mode():
            model.generate(prompts, max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0)

    return step


def neighbor(torch: Any, fault: Path) -> Step:
    """Multiplies matrices while the fault lasts."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def step(_: int) -> None:
        if not fault.exists():
            time.sleep(0.02)
            return
        for _ in range(5):
            matrix @ matrix
        torch.cuda.synchronize()

    return step


def loop_of(torch: Any, name: str, fault: Path) -> Step:
    """What one step of a loop does; its argument is the number of the step."""
    make: dict[str, Callable[[], Step]] = {
        "item": lambda: waiting(trainer(torch)),
        "nosync": lambda: logging(trainer(torch)),
        "host": lambda: logging(trainer(torch, is_small=True)),
        "compile": lambda: never_waiting(trainer(torch, compiled="default")),
        "graphs": lambda: with_graphs(torch),
        "copy": lambda: copying(torch),
        "loader-pinned": lambda: loading(torch, fault, is_pinned=True),
        "loader-pageable": lambda: loading(torch, fault, is_pinned=False),
        "busy-thread": lambda: beside_a_thread(torch, fault),
        "generate": lambda: generating(torch),
        "tiny": lambda: tiny(torch),
        "neighbor": lambda: neighbor(torch, fault),
    }
    return make[name]()


def profiled(torch: Any, step: Step, first: int, trace: Path) -> list[int]:
    """Runs steps under PyTorch's profiler; when each began, monotonic ns. The last ones are written to `trace`."""
    profiler = torch.profiler
    begins = []
    # without a handler, a cycle's events are gone by the time the profiler has been left
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA],
        schedule=profiler.schedule(wait=0, warmup=2, active=PROFILED_STEPS, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
    ) as running:
        for number in range(first, first + 2 + PROFILED_STEPS):
            begins.append(time.monotonic_ns())
            step(number)
            running.step()
    return begins


def main() -> None:
    """Run until FOLDER/stop exists."""
    parser = argparse.ArgumentParser()
    parser.add_argument("loop")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    folder: Path = options.folder
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    step = loop_of(torch, options.loop, folder / "fault")
    for number in range(WARM_UP_STEPS):
        step(number)
    torch.cuda.synchronize()
    print("ready", os.getpid(), file=sys.stderr, flush=True)
    marks: list[int] = []
    profiled_marks: list[int] = []
    for number in itertools.count(WARM_UP_STEPS):
        if (folder / "stop").exists():
            break
        if not profiled_marks and (folder / "profile").exists():
            profiled_marks = profiled(torch, step, number, folder / "kineto.json")
            marks += profiled_marks
        marks.append(time.monotonic_ns())
        step(number)
    torch.cuda.synchronize()
    marks.append(time.monotonic_ns())
    truth = {
        "pid": os.getpid(),
        "unix_minus_mono_ns": time.time_ns() - time.monotonic_ns(),
        "marks_ns": marks,
        "profiled_ns": profiled_marks,
    }
    (folder / "marks.json").write_text(json.dumps(truth), encoding="ascii")


if __name__ == "__main__":
    main()
