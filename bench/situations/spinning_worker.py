"""vLLM's layout: a scheduler process, and a GPU worker that spins on shared memory (sched_yield) until it gets work.

There are always requests. Then the scheduler needs 30 ms of Python per step (detokenizing, logging, grammar), and the
worker, with an idle GPU, yields in acquire_read meanwhile. The bottleneck is the scheduler's CPU.

Source: https://github.com/vllm-project/vllm/issues/6854
"""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.message_queue import MessageQueue
from bench.situations.program import Gpu, compute, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation


def worker(messages: MessageQueue, done: int, folder: Path) -> None:
    """The process with the GPU: one step for each message."""
    naming.die_with_parent()
    naming.name_this_thread("VllmWorker")
    gpu = Gpu()
    os.write(done, b"r")
    for step in logged_steps(folder):
        messages.acquire_read(step + 1)
        gpu.step()
        os.write(done, b"d")


def update_from_output(seconds: float) -> None:
    """What the scheduler does with the tokens of a step, before it can schedule the next one."""
    compute(seconds)


def engine(folder: Path) -> None:
    """The scheduler: the worker's parent, without a GPU."""
    naming.name_this_thread("EngineCore")
    messages = MessageQueue()
    outputs, done = os.pipe()
    multiprocessing.get_context("fork").Process(target=worker, args=(messages, done, folder), daemon=True).start()
    os.read(outputs, 1)
    lifecycle.announce("ready")
    number = 0
    while True:
        number += 1
        messages.publish(number)
        os.read(outputs, 1)
        update_from_output(0.030 if has_begun(folder) else 0.001)


def make(situation: Situation) -> None:
    """The engine is traced, with its worker."""
    situation.start("engine")
    situation.name_child("engine", "worker")
    situation.record("engine")


EXPECTED = Fault(
    answer="""an incident of VllmWorker [<worker>]: its GPU is idle while it spins in acquire_read for EngineCore
    [<engine>], which computes in update_from_output (a CPU bottleneck in serving). Wrong: silence ("no work
    requested"): there are requests all the time; host-bound at acquire_read with DataLoader(num_workers=N);
    cpu-contention or self-oversubscription as the main cause.""",
    wanted=(r"<engine>|EngineCore", at("update_from_output", "compute", "acquire_read")),
    never=(
        r"^(?:cpu-contention|self-oversubscription|sleep-in-loop|gpu-slower|unexplained):",
        r"^host-bound: .*\bacquire_read\b",
        r"DataLoader\(",
    ),
)

if __name__ == "__main__":
    play({"engine": engine})
