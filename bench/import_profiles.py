"""How fast `ingero import` reads a trace of PyTorch's profiler, and how much memory it takes for it.

Run: python -m bench.import_profiles [--mib N | --file F] [--short] [--json]. Makes a trace of N MiB like real ones
(an event every 200 bytes: operators, launches, kernels, Python functions), imports it in a process of its own, and
prints MiB of JSON a minute of one core, and the peak of resident memory against the file's size. --short: a small
trace, and everything must add up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

MIB = 1 << 20
_STEP_US = 50_000.0
_LAUNCHES = 1000  # a step, as ResNet50 has
_KERNELS = random.Random(1).choices(range(50), k=_LAUNCHES)  # of a step, in an order that repeats with it only
_TARGET_MIB_PER_MINUTE = 50
_TARGET_MEMORY = 3.0  # times the file, or 400 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The figures of one import. cpu_s: of all its threads."""

    file_mib: float
    cpu_s: float
    peak_mib: float
    calls: int
    steps: int

    @property
    def mib_per_minute(self) -> float:
        """JSON read in a minute of one core."""
        return self.file_mib / self.cpu_s * 60

    @property
    def is_within(self) -> bool:
        """Whether both targets are met."""
        memory_mib = max(_TARGET_MEMORY * self.file_mib, 400)
        return self.mib_per_minute >= _TARGET_MIB_PER_MINUTE and self.peak_mib <= memory_mib


def write_trace(path: Path, size_bytes: int) -> int:
    """Writes a trace of at least this many bytes; returns its number of steps."""
    step = 0
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "baseTimeNanoseconds": 1751410836000000000, "traceEvents": [\n')
        while step < 3 or file.tell() < size_bytes:
            file.writelines(f"{json.dumps(event)},\n" for event in _step(step))
            step += 1
        file.write('{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}}]}\n')
    return step


def _step(number: int) -> Iterator[dict[str, object]]:
    begin = number * _STEP_US
    yield _event("user_annotation", f"ProfilerStep#{number}", begin, _STEP_US - 5)
    for launch in range(_LAUNCHES):
        at, correlation = begin + 20 + launch * 45, number * _LAUNCHES + launch + 1
        name = f"void at::native::vectorized_elementwise_kernel<{_KERNELS[launch]}, float>(int, float)"
        yield _event("python_function", f"torch/nn/modules/module.py({launch % 9}): _call_impl", at, 40)
        dims = [[64, 256, 56, 56], [256]]
        yield _event("cpu_op", "aten::convolution", at + 1, 30, **{"External id": correlation, "Input Dims": dims})
        yield _event("cuda_runtime", "cudaLaunchKernel", at + 5, 6, cbid=211, correlation=correlation)
        grid = {"grid": [56, 2, 1], "block": [384, 1, 1], "registers per thread": 168}
        yield _event("kernel", name, at + 20, 30, device=0, stream=7, correlation=correlation, **grid)


def _event(category: str, name: str, ts: float, dur: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur, "args": args}


def measure(path: Path) -> Result:
    """Imports a file in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run.db"
        command = [sys.executable, __file__, "--child", str(path), str(output)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    usage = json.loads(done.stdout)
    return Result(file_mib=path.stat().st_size / MIB, **usage)


def _import(path: Path, output: Path) -> None:
    """The child: what the command does, and what it took."""
    from ingero.profiles.reading import read_profiles  # noqa: PLC0415  # its import is part of what is measured
    from ingero.profiles.recording import write_recording  # noqa: PLC0415

    read = read_profiles([path])
    written = write_recording(output, read.profiles, read.notes, files=read.files)
    use = resource.getrusage(resource.RUSAGE_SELF)
    usage = {"cpu_s": use.ru_utime + use.ru_stime, "peak_mib": use.ru_maxrss / 1024}
    print(json.dumps(usage | {"calls": written.rows["raw_events"], "steps": written.rows["raw_steps"]}))


def run(size_bytes: int) -> tuple[Result, int]:
    """Makes a trace and imports it; the second is the number of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        steps = write_trace(path, size_bytes)
        return measure(path), steps


def main() -> None:
    """Prints the figures; exit code 1 if a target is missed, or --short does not add up."""
    options = _options()
    if options.child:
        _import(*options.child)
        return
    steps = None
    if options.file:
        result = measure(options.file)
    else:
        result, steps = run(1 * MIB if options.short else options.mib * MIB)
    if options.as_json:
        print(json.dumps(asdict(result) | {"mib_per_minute": result.mib_per_minute}))
    else:
        share = result.peak_mib / result.file_mib
        print(f"{result.file_mib:,.1f} MiB of JSON, {result.calls:,} calls, {result.steps} steps")
        print(f"{result.mib_per_minute:,.0f} MiB a minute and core (target {_TARGET_MIB_PER_MINUTE})")
        print(f"peak {result.peak_mib:,.0f} MiB, {share:.2f} times the file (target 3 times, or 400 MiB)")
    adds_up = steps is None or (result.steps, result.calls) == (steps, steps * _LAUNCHES)
    sys.exit(0 if adds_up and (options.short or result.is_within) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=100)
    parser.add_argument("--file", type=Path, help="a trace of yours instead of a made one")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
