"""What the kernel's verifier takes for each BPF program of the agent: instructions it follows, and CPU time.

Loads all that an agent loads at its start, as often as asked, and attaches nothing. An object's time is that of this
process in its load, a program's the verifier's own. `instructions` counts each path that comes by an instruction, so it
does not depend on the machine; where pointers of the kernel's structures are followed, an instruction takes longer.

Run as root: python -m bench.verifier [--rounds N] [--short] [--json]
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

from bench.agent import require_quiet_kernel
from ingero.attach import cpu_samples, freed_code, host_events, kernel_side
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.libbpf import BpfObject
from ingero.attach.libbpf.binding import libbpf
from ingero.attach.libbpf.programs import Link, Program

_STATS = 4  # BPF_LOG_STATS
_LOG_BYTES = 1 << 16
_SAID = re.compile(r"verification time (\d+) usec.*?processed (\d+) insns", re.DOTALL)
_LOADERS = (kernel_side, host_events, cpu_samples, freed_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A program in one load. An object's own row has no program: the CPU time of its load, with its maps."""

    object: str
    program: str
    instructions: int
    cpu_ms: float


class MeasuredObject(BpfObject):
    """An object that notes what its load takes."""

    loads: list[Loaded]

    def _load(self) -> None:
        texts = {name: c.create_string_buffer(_LOG_BYTES) for name in self.sections()}
        for name, text in texts.items():
            program = libbpf().bpf_object__find_program_by_name(self._pointer, name.encode())
            libbpf().bpf_program__set_log_buf(program, text, _LOG_BYTES)
            libbpf().bpf_program__set_log_level(program, _STATS)
        began_ns = time.process_time_ns()
        super()._load()
        cpu_ms = (time.process_time_ns() - began_ns) / 1e6
        name = self.path.name.partition(".")[0]
        found = {one: _SAID.search(text.value.decode(errors="replace")) for one, text in texts.items()}
        programs = [
            Loaded(object=name, program=one, instructions=int(said[2]), cpu_ms=int(said[1]) / 1e3)
            for one, said in found.items()
            if said  # the others are not loaded
        ]
        whole = Loaded(object=name, program="", instructions=sum(one.instructions for one in programs), cpu_ms=cpu_ms)
        self.loads += [whole, *programs]


@contextmanager
def measured() -> Iterator[list[Loaded]]:
    """Meanwhile all objects note what their loads take, and tracing programs are not attached."""
    MeasuredObject.loads = []
    with ExitStack() as stack:
        for module in _LOADERS:  # each has imported it by its name
            stack.enter_context(patch.object(module, "BpfObject", MeasuredObject))
        stack.enter_context(patch.object(Program, "attach", lambda _self: Link(lambda: None)))
        yield MeasuredObject.loads


def _declare() -> None:
    """Functions of libbpf that the agent does not use."""
    libbpf().bpf_program__set_log_level.argtypes = (c.c_void_p, c.c_uint32)
    libbpf().bpf_program__set_log_buf.argtypes = (c.c_void_p, c.c_void_p, c.c_size_t)


def load_once() -> list[Loaded]:
    """Loads all objects of a recording with stacks once."""
    with measured() as loads:
        with KernelSide(KernelSizes(), with_stacks=True) as kernel:
            kernel.start()
        return loads


def run(rounds: int) -> list[Loaded]:
    """Medians over some rounds, after one that fills the caches: objects in their order, each with its programs."""
    _declare()
    load_once()
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    instructions: dict[tuple[str, str], int] = {}
    for _ in range(rounds):
        for one in load_once():
            times[one.object, one.program].append(one.cpu_ms)
            instructions[one.object, one.program] = one.instructions
    return [
        Loaded(object=key[0], program=key[1], instructions=instructions[key], cpu_ms=statistics.median(found))
        for key, found in times.items()
    ]


def print_text(found: list[Loaded]) -> None:
    """The table: objects, and below each its programs that take long."""
    objects = [one for one in found if not one.program]
    print(f"{'':<34}{'instructions':>14}{'CPU':>12}")
    for row in objects:
        print(f"{row.object:<34}{row.instructions:>14,}{row.cpu_ms:>9.1f} ms")
        for one in found:
            if one.object == row.object and one.program and one.cpu_ms >= 1:
                print(f"    {one.program:<30}{one.instructions:>14,}{one.cpu_ms:>9.1f} ms")
    print(f"{'all':<34}{sum(one.instructions for one in objects):>14,}{sum(one.cpu_ms for one in objects):>9.1f} ms")


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    require_quiet_kernel()
    found = run(1 if options.short else options.rounds)
    rows: list[dict[str, Any]] = [asdict(one) for one in found]
    print(json.dumps(rows)) if options.json else print_text(found)


if __name__ == "__main__":
    main()
