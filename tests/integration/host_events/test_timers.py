"""Timers of the kernel that come late, as they do when a machine was paused."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build_bpf import ARCHITECTURES, FLAGS, SOURCES, compiler

from ingero.attach.libbpf import BpfObject, Helper, has_helper
from tests.integration.host_events.conftest import Tracer

pytestmark = pytest.mark.integration

_HELD_UP = np.dtype([("begin_ns", "<u8"), ("end_ns", "<u8")])
_SLACK_NS = 1_000_000  # interrupts of a virtual machine
_PERIOD_NS = 50_000_000
_TIMER_ABSTIME = 1  # time.h


@contextmanager
def busy(cpu: int) -> Iterator[None]:
    """Something runs on a CPU: an idle one has no tick."""
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


def held_up(folder: Path, cpu: int) -> np.ndarray[Any, Any]:
    """When a CPU was held up by an interrupt that we made long."""
    output = folder / "holds_up.o"
    source = Path(__file__).with_name("holds_up.bpf.c")
    define = f"-D__TARGET_ARCH_{ARCHITECTURES[platform.machine()]}"
    subprocess.run([*compiler(), *FLAGS, define, f"-I{SOURCES}", "-c", source, "-o", output], check=True)
    with BpfObject(output) as loaded, busy(cpu):
        clock, entries = loaded.program("hold_up").attach_cpu_clock(cpu, _PERIOD_NS), loaded.maps["held_up"]
        last = struct.pack("<I", entries.max_entries - 1)
        try:
            while not struct.unpack("<QQ", entries.lookup(last) or bytes(16))[1]:
                time.sleep(0.05)
        finally:
            clock.close()
        raw = (entries.lookup(struct.pack("<I", index)) or b"" for index in range(entries.max_entries))
        return np.frombuffer(b"".join(raw), _HELD_UP)


def test_each_time_that_a_cpu_was_held_up_is_told_once(tmp_path: Path, tracer: Tracer) -> None:
    if not has_helper(Helper.LOOP):
        pytest.skip("this kernel has no bpf_loop: nothing can keep a CPU in an interrupt")
    cpu = max(os.sched_getaffinity(0))
    truth = held_up(tmp_path, cpu)
    late = tracer.records("LATE_TIMER")
    assert tracer.total("LATE_TIMER")["other_count"] == len(late)
    late = late[late["arg0"] == cpu]
    ends = late["start_ns"] + late["duration_ns"]
    for one in truth:
        mine = late[(late["start_ns"] > one["begin_ns"] - _SLACK_NS) & (ends < one["end_ns"] + _SLACK_NS)]
        assert len(mine) == 1, f"{(one['end_ns'] - one['begin_ns']) / 1e6} ms, {mine}"
        assert mine["start_ns"][0] + mine["duration_ns"][0] >= one["end_ns"]


def test_what_a_program_asked_for_too_late_is_no_late_timer(tracer: Tracer) -> None:
    started_ns = time.monotonic_ns()
    passed = struct.pack("<qq", started_ns // 10**9 - 1, 0)
    for _ in range(100):
        assert ctypes.CDLL(None).clock_nanosleep(time.CLOCK_MONOTONIC, _TIMER_ABSTIME, passed, None) == 0
    assert not (tracer.records("LATE_TIMER")["start_ns"] < started_ns - 500_000_000).any()
