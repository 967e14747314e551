"""What the sampling clock's program costs per tick, and the one that looks at threads as they go to sleep.

Times are the kernel's own (kernel.bpf_stats_enabled), of which measuring is about 55 ns. Loads in turn: a thread that
is no target, and one of a Python program so many frames deep that is; it computes, then sleeps for 5 ms at a time. Run
as root: python -m bench.samples_cost
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.stacks.python_layouts import layout_row
from ingero.demo.workloads.program import Program
from ingero.discover.interpreters import Interpreter, find_interpreter
from ingero.discover.processes import read_process_id

STATS_SWITCH = Path("/proc/sys/kernel/bpf_stats_enabled")
DEEP = """
def spin(depth):
    if depth: spin(depth - 1)
    print("up", flush=True)
    while True: {}
import sys, time; spin(int(sys.argv[1]))
"""
COMPUTES, SLEEPS = DEEP.format("pass"), DEEP.format("time.sleep(0.005)")
_NS_PER_TICK = 10**9 // os.sysconf("SC_CLK_TCK")


@contextmanager
def statistics() -> Iterator[None]:
    """The kernel counts what programs take."""
    STATS_SWITCH.write_text("1")
    try:
        yield
    finally:
        STATS_SWITCH.write_text("0")


def runs(fd: int) -> tuple[int, int]:
    """(ns, runs) of a program so far."""
    facts = dict(line.split(":\t") for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines())
    return int(facts["run_time_ns"]), int(facts["run_cnt"])


def per_run(kernel: KernelSide, program: str, seconds: float) -> tuple[float, float]:
    """(ns per run, runs per second) of a program while the present load goes on."""
    assert kernel.samples
    fd = kernel.samples.program_fd(program)
    with statistics():
        before_ns, before = runs(fd)
        time.sleep(seconds)
        after_ns, after = runs(fd)
    return (after_ns - before_ns) / max(after - before, 1), (after - before) / seconds


def track(kernel: KernelSide, pid: int) -> None:
    """Traces a Python program and its frames."""
    identity, interpreter = read_process_id(pid), find_interpreter(pid)
    assert identity
    assert isinstance(interpreter, Interpreter), interpreter
    slot = kernel.enroll(pid, identity.start_ticks * _NS_PER_TICK)
    assert slot is not None
    row = layout_row(interpreter, kernel.layouts.dtype("python_layout"))
    kernel.maps["python_layouts"].update(slot.to_bytes(4, "little"), row.tobytes())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each load")
    options = parser.parse_args()
    for frames in (None, 5, 20, 80):
        name = f"traced, {frames} Python frames" if frames else "not traced"
        with loaded(COMPUTES, frames) as kernel:
            ns, rate = per_run(kernel, "sample_running", options.seconds)
            begin = time.perf_counter_ns()
            for _ in range(20):
                assert kernel.samples
                kernel.samples.blocked()
            look_us = (time.perf_counter_ns() - begin) / 20e3
        print(f"{name:<28} {ns:8.0f} ns per tick, {rate:.0f} ticks/s; a look for sleeping threads {look_us:.0f} us")
        with loaded(SLEEPS, frames) as kernel:
            kernel.samples and kernel.samples.blocked()  # gives it the memory to be looked at
            time.sleep(0.5)
            ns, rate = per_run(kernel, "note_sleeper", options.seconds)
        print(f"{'':<28} {ns:8.0f} ns per switch of all threads, {rate:.0f}/s, where it sleeps 190 times a second")


@contextmanager
def loaded(program: str, frames: int | None) -> Iterator[KernelSide]:
    """The kernel side beside such a program; frames: how deep it is traced, None: not at all."""
    command = [sys.executable, "-c", program, str(frames or 1)]
    with KernelSide(KernelSizes(), host_programs=(), with_stacks=True) as kernel, Program(command) as load:
        time.sleep(0.5)  # it is as deep as it goes
        kernel.start()
        if frames:
            track(kernel, load.pid)
            time.sleep(1)  # its native stacks have been copied
        yield kernel


if __name__ == "__main__":
    main()
