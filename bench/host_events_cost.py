"""What the host event programs cost per event, and what the probes that were left out would cost.

One process does the same thing in turn: untouched, with the programs attached, and as a target of them. Each figure is
the least CPU time of many short turns (other work on the machine only ever adds to it), in nanoseconds per event, and
the programs' own are differences to the untouched one. BPF run-time statistics stay off: they cost as much as these
programs do.

Needs root, clang and gcc: `sudo python bench/host_events_cost.py [--disk DIRECTORY]`.
"""

from __future__ import annotations

import argparse
import os
import platform
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import ingero
from ingero.attach.libbpf import BpfObject, Program
from ingero.attach.objects import object_path

BENCH = Path(__file__).resolve().parent
BPF_SOURCES = Path(ingero.__file__).parent / "bpf"
sys.path.insert(0, str(BENCH.parent / "tools"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Programs of one object, and the load that makes their event."""

    event: str
    object_path: Path
    programs: tuple[str, ...]
    load: str
    count: int


def _cases(rejected: Path) -> tuple[Case, ...]:
    memory, tcp, block = map(object_path, ("memory", "tcp", "block_io"))
    rows = (
        ("page allocated", memory, ("page_alloc",), "pages", 10_240),
        ("send + receive", tcp, ("socket_send", "socket_receive"), "messages", 5_000),
        ("direct read of 4 KiB", block, ("block_insert", "block_issue", "block_complete"), "reads", 100),
        ("left out: page_fault_user", rejected, ("page_fault_user",), "faults", 10_240),
        ("left out: sys_enter + sys_exit", rejected, ("sys_enter", "sys_exit"), "calls", 50_000),
        ("left out, by send + receive", rejected, ("sys_enter", "sys_exit"), "messages", 5_000),
    )
    return tuple(
        Case(event=event, object_path=path, programs=programs, load=load, count=count)
        for event, path, programs, load, count in rows
    )


class Load:
    """The measured process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid

    def run(self, count: int) -> float:
        """CPU nanoseconds per event."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / count


@contextmanager
def _attached(programs: Sequence[Program]) -> Iterator[None]:
    with ExitStack() as stack:
        for program in programs:
            stack.callback(program.attach().close)
        yield


def measure(case: Case, load: Load, rounds: int) -> tuple[float, float, float]:
    """Nanoseconds per event: untouched, added for others, added for targets."""
    turns = {"base": load.run(case.count), "others": float("inf"), "targets": float("inf")}
    key, slot = struct.pack("<I", load.pid), bytes(4)
    with BpfObject(case.object_path, programs=case.programs) as loaded:
        programs = [loaded.program(name) for name in case.programs]
        for _ in range(rounds):
            turns["base"] = min(turns["base"], load.run(case.count))
            with _attached(programs):
                turns["others"] = min(turns["others"], load.run(case.count))
                loaded.maps["targets"].update(key, slot)
                turns["targets"] = min(turns["targets"], load.run(case.count))
                loaded.maps["targets"].delete(key)
    return turns["base"], turns["others"] - turns["base"], turns["targets"] - turns["base"]


def _build(directory: Path) -> tuple[Path, Path]:
    """The load program and the object of the probes that were left out."""
    from build_bpf import ARCHITECTURES, FLAGS, compiler  # noqa: PLC0415 (tools/ is no package)

    load, rejected = directory / "load", directory / "rejected.bpf.o"
    subprocess.run(["gcc", "-O2", "-o", load, BENCH / "host_events_load.c"], check=True)
    define = f"-D__TARGET_ARCH_{ARCHITECTURES[platform.machine()]}"
    command: list[str | Path] = [
        *compiler(),
        *FLAGS,
        define,
        f"-I{BPF_SOURCES}",
        "-c",
        BENCH / "rejected_probes.bpf.c",
        "-o",
        rejected,
    ]
    subprocess.run(command, check=True)
    return load, rejected


def _data_file(directory: Path) -> Path:
    path = directory / "data"
    with path.open("wb") as file:
        file.write(os.urandom(4 << 20))
        os.fsync(file.fileno())
    return path


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--disk", type=Path, help="directory on a block device for the read test; default: /var/tmp")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.disk or Path("/var/tmp")) as name:
        load_path, rejected = _build(Path(name))
        data = _data_file(Path(name))
        print(f"{'event':32} {'untouched':>10} {'others':>8} {'targets':>8}   ns of CPU per event")
        for case in _cases(rejected):
            command = [str(load_path), case.load, str(data)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                base, others, targets = measure(case, Load(process), options.rounds)
                assert process.stdin is not None
                process.stdin.close()
            print(f"{case.event:32} {base:10.0f} {others:+8.0f} {targets:+8.0f}", flush=True)


if __name__ == "__main__":
    main()
