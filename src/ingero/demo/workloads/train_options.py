"""The trainer's command line."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ingero.demo.workloads.loss_reading import WAYS
from ingero.demo.workloads.patterns import PATTERNS

COPY_STREAMS = ("none", "ordered", "unordered", "synced")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; every default together is the baseline of about 6.5 ms a step."""
    root = argparse.ArgumentParser(prog="train", description="Train a transformer on the simulated GPU.")
    add_length(root.add_argument_group("how long"))
    _add_waits(root.add_argument_group("waits for the GPU"))
    _add_device(root.add_argument_group("work for the GPU"))
    _add_data(root.add_argument_group("data"))
    add_host(root.add_argument_group("the host's side"))
    return root


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; what it says goes before what --pattern stands for."""
    root = parser()
    root.set_defaults(**PATTERNS.get(root.parse_args(arguments).pattern, {}))
    options = root.parse_args(arguments)
    if options.world > 1 and options.uid is None:
        root.error("--world needs --uid")
    return options


def add_length(group: "argparse._ArgumentGroup") -> None:
    """Add the options of how long a loop runs and where it logs."""
    group.add_argument("--steps", type=int, help="stop after this many (default 100 if --seconds is not given)")
    group.add_argument("--seconds", type=float, help="stop after this long")
    group.add_argument("--out", type=Path, help="one JSON line a step: step t_ns step_ns data_ns (default stdout)")
    group.add_argument("--gate", type=Path, help="wait for this file before the first CUDA call")
    group.add_argument("--runtime", help="soname of the CUDA runtime (default $GPUSIM_RUNTIME or libcudart.so.12)")


def _add_waits(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--pattern", choices=PATTERNS, help="wait as such a program does (patterns.py)")
    group.add_argument("--sync-every", type=int, default=1, help="steps between syncs; launches run ahead in between")
    group.add_argument("--sync", choices=WAYS, default="stream", help="how the loop waits for the GPU")
    group.add_argument("--behind", type=int, default=1, help="steps that --sync behind leaves to the GPU")
    group.add_argument("--norms", type=int, default=0, help="gradients whose norms are copied back")
    group.add_argument("--read-norms", action="store_true", help="wait for each of them before the next one")
    group.add_argument("--item-mid", action="store_true", help="read the loss between forward and backward")
    group.add_argument(
        "--streams", choices=COPY_STREAMS, nargs="?", const="ordered", default="none",
        help="copy batches on a stream of their own, which the default stream waits for (ordered) or never does, or "
        "the host waits for, too (synced)",
    )  # fmt: skip


def _add_device(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--layers", type=int, default=8, help="transformer layers, 17 launches each")
    group.add_argument("--us", type=float, default=60, help="device time of one matrix product in us (2: launch-bound)")
    group.add_argument("--launches", type=int, default=0, help="extra launches a step, 1 µs each on the GPU")
    group.add_argument("--graph", action="store_true", help="capture a step as a CUDA graph, then replay it")
    group.add_argument("--accumulate", type=int, default=1, help="steps whose gradients the optimizer takes together")
    group.add_argument(
        "--sequence", type=int, default=0, help="waves of work in each launch, and as many bytes of the batch (0: one)"
    )
    group.add_argument("--vary", action="store_true", help="draw each step's length around --sequence, from --seed")
    group.add_argument("--shapes", type=int, default=1, help="kinds of step, in random order from --seed")
    group.add_argument("--seed", type=int, default=1)
    group.add_argument("--bystanders", type=int, default=0, help="threads with a stream each that work by themselves")
    group.add_argument("--churn", action="store_true", help="allocate and free 32 MiB past the cache in each step")
    group.add_argument("--eval-every", type=int, default=0, help="evaluate after each N-th step")
    group.add_argument("--eval-batches", type=int, default=2, help="batches of an evaluation")
    group.add_argument("--autograd-thread", action="store_true", help="launch the backward pass from a second thread")
    group.add_argument("--rank", type=int, default=0)
    group.add_argument("--world", type=int, default=1, help="ranks of data parallel training")
    group.add_argument("--watchdog", action="store_true", help="a thread that queries events of the collectives")
    group.add_argument("--uid", type=Path, help="file through which the ranks meet")


def _add_data(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--workers", type=int, default=1, help="forked DataLoader workers; 0 loads in the training thread"
    )
    group.add_argument("--prefetch", type=int, default=2, help="batches ahead per worker")
    group.add_argument("--cpu-ms", type=float, default=2.0, help="CPU time to decode one batch")
    group.add_argument("--nbytes", type=int, default=1 << 20, help="bytes of one batch")
    group.add_argument("--pin-memory", action="store_true", help="pin batches in a thread of its own")
    group.add_argument("--pageable", action="store_true", help="leave the workers' memory unpinned: a copy waits")
    group.add_argument("--blocking-copies", action="store_true", help="copy batches with calls that wait for them")
    group.add_argument("--data", type=Path, help="read batches from this file with O_DIRECT")
    group.add_argument("--buffered", action="store_true", help="read --data through the page cache")
    group.add_argument("--tcp", metavar="HOST:PORT", help="fetch batches from the store listening there")


def add_host(group: "argparse._ArgumentGroup") -> None:
    """Add the options of a loop's host work beside its GPU work (loop.HostSide)."""
    group.add_argument("--knob", type=Path, help="file of live disturbances (host_knobs.py)")
    group.add_argument("--checkpoint", type=Path, help="file that checkpoints go to, when --knob says so")
    group.add_argument("--heap", type=int, default=0, help="objects that the garbage collector has to walk")
    group.add_argument("--lock-hog", action="store_true", help="a thread that holds a lock for as long as --knob says")
    group.add_argument("--native-threads", type=int, default=0, help="threads that compute when --knob says so")
    group.add_argument(
        "--gil-hog", type=float, metavar="DUTY",
        help="a pure-Python thread that wants the interpreter this share of the time (0: only when --knob says so)",
    )  # fmt: skip
