"""Starts data parallel training on this machine: one trainer for each rank, as torchrun does."""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.program import Program

PATIENCE_S = 0.5  # a rank inside a collective does not react to SIGTERM until all ranks have joined it


def rank_path(path: Path, rank: int) -> Path:
    """Return a rank's own variant of a path that was given for all ranks."""
    return path.with_name(f"{path.name}.{rank}")


def rank_environment(rank: int, world: int) -> dict[str, str]:
    """Return this environment with the variables that torchrun sets."""
    return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}


def rank_arguments(options: argparse.Namespace, rank: int, meeting: Path, rest: list[str]) -> list[str]:
    """Return the trainer's arguments for one rank; files that are written get the rank as a suffix."""
    arguments = [*rest, "--rank", str(rank), "--world", str(options.world), "--uid", str(meeting)]
    for name in ("out", "knob"):
        path: Path | None = getattr(options, name)
        if path is not None:
            arguments += [f"--{name}", str(rank_path(path, rank))]
    return arguments


def terminate(ranks: list[Program]) -> None:
    """Ask all ranks at once to end: one that waits for a rank which has already ended would wait for ever."""
    for program in ranks:
        if program.process.poll() is None:
            program.process.terminate()


def main(arguments: list[str] | None = None) -> int:
    """Run all ranks; print `ready PID RANK_PID...` when every rank is; any other argument goes to the trainers."""
    parser = argparse.ArgumentParser(prog="ddp", description=__doc__)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--out", type=Path, help="log of steps; .0 .1 ... is appended")
    parser.add_argument("--knob", type=Path, help="file of live disturbances; .0 .1 ... is appended")
    options, rest = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ingero-ddp-") as scratch, ExitStack() as stack:
        stack.enter_context(lifecycle.until_stopped())
        ranks = []
        for rank in range(options.world):
            parts = rank_arguments(options, rank, Path(scratch) / "meeting", rest)
            environment = rank_environment(rank, options.world)
            program = Program.module("train", *parts, environment=environment, patience_s=PATIENCE_S)
            ranks.append(stack.enter_context(program))
        stack.callback(terminate, ranks)
        for program in ranks:
            program.wait_for("ready")
        lifecycle.announce("ready", *(program.pid for program in ranks))
        for program in ranks:
            sys.stdout.write(program.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main())
