"""Runs in the arm64 guest: loads every object, attaches everything, and compares calls with what the target made.

Prints a line per check and leaves a report in pytest's format for the table.
"""

from __future__ import annotations

import platform
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.libbpf import AttachType, BpfObject
from ingero.attach.objects import object_path
from ingero.attach.probes import CallSite, ProbeMode
from ingero.capture.loop.rings import Ring
from ingero.discover.elf import ElfFile
from ingero.discover.instructions import probe_offset
from ingero.discover.mappings import parse_maps, read_maps
from ingero.ops import BY_ID, OPS

Array = np.ndarray[Any, np.dtype[Any]]

LIBRARY, TARGET, REPORT = Path("libcuda.so.1").resolve(), Path("target").resolve(), Path("/share/arm64.xml")
PACIASP = bytes.fromhex("3f2303d5")
ROUNDS = 5
SIZES = KernelSizes(
    cells=1 << 10, kernels=1 << 10, calls_bytes=1 << 20, sync_intervals_bytes=1 << 18, offcpu_bytes=1 << 18
)
OPERATIONS = {op.name: op for op in OPS if op.name in ("cuLaunchKernel", "cuMemcpyAsync", "cuMemAlloc")}
SYMBOLS = {"cuLaunchKernel": "cuLaunchKernel", "cuMemcpyAsync": "cuMemcpyAsync", "cuMemAlloc_v2": "cuMemAlloc"}


def sites() -> list[CallSite]:
    """Where the probes go, and proof that a signed return address comes right behind."""
    found = []
    with ElfFile(LIBRARY) as elf:
        for symbol, (offset,) in elf.functions(SYMBOLS).items():
            code = elf.read_at(offset)
            assert code.startswith(PACIASP), f"{symbol} begins with {code.hex()}"
            assert probe_offset(code, elf.machine).skip_bytes == 0
            cookie = OPERATIONS[SYMBOLS[symbol]].cookie(symbol)
            found.append(CallSite(path=str(LIBRARY), offset=offset, cookie=cookie))
    assert len(found) == len(SYMBOLS)
    return found


@contextmanager
def target() -> Iterator[subprocess.Popen[str]]:
    """The program, ready for its first round."""
    with subprocess.Popen([TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def play(process: subprocess.Popen[str]) -> None:
    """One round."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


class Checks:
    """The checks of one probe mode, on one recording."""

    def __init__(self, mode: ProbeMode | None) -> None:
        with KernelSide(SIZES, record_all=True, mode=mode) as kernel, target() as process:
            self.mode, self.pid = kernel.mode, process.pid
            kernel.start()
            self.unavailable = [one for one in kernel.unavailable if one.name != ProbeMode.SESSION.value]
            self.failed = kernel.attach_calls(sites())
            assert kernel.enroll(process.pid, 0) is not None
            for _ in range(ROUNDS):
                play(process)
            self.maps = parse_maps(read_maps(process.pid))
            with Ring(kernel.maps["calls"], kernel.layouts.dtype("call_record", header_bytes=8)) as ring:
                self.records = ring.drain()
            self.threads = kernel.read_threads()

    def of(self, name: str) -> Array:
        """The records of one call."""
        return self.records[self.records["op"] == OPERATIONS[name].id]

    def everything_loads_and_attaches(self) -> None:
        assert not self.failed, self.failed
        assert not self.unavailable, self.unavailable

    def every_call_is_counted_once(self) -> None:
        counts = Counter(BY_ID[op].name for op in self.records["op"].tolist())
        assert counts == dict.fromkeys(OPERATIONS, ROUNDS), counts

    def register_arguments_are_right(self) -> None:
        copies = self.of("cuMemcpyAsync")
        assert set(copies["size_bytes"].tolist()) == {12345}
        assert set(copies["stream"].tolist()) == {0x4444}
        assert set(self.of("cuLaunchKernel")["function"].tolist()) == {0x1111}

    def the_ninth_argument_comes_from_the_stack(self) -> None:
        assert set(self.of("cuLaunchKernel")["stream"].tolist()) == {0x9999}

    def return_values_and_results_behind_pointers_are_right(self) -> None:
        assert set(self.of("cuMemcpyAsync")["ret"].tolist()) == {35}
        assert set(self.of("cuMemAlloc")["ret"].tolist()) == {0}
        assert set(self.of("cuMemAlloc")["handle"].tolist()) == {0xDEAD0000BEEF}

    def the_caller_is_the_unsigned_return_address(self) -> None:
        code = [one for one in self.maps if one.path == str(TARGET) and "x" in one.permissions]
        for caller in self.records["caller"].tolist():
            assert any(one.start <= caller < one.end for one in code), hex(caller)

    def clocks_add_up(self) -> None:
        assert not self.records["residual_ns"].any()
        assert (self.records["state_ns"].sum(axis=1) == self.records["duration_ns"]).all()
        assert not (self.records["flags"] & 1).any()
        assert self.threads


def trial_loads() -> None:
    """The program that proves return probes safe."""
    BpfObject(object_path("trial"), uprobe_types={"trial": AttachType.UPROBE_MULTI}).close()


def main() -> None:
    """All checks with the best probes there are, then with those of older kernels."""
    suite = ElementTree.Element("testsuite")
    print(f"Linux {platform.release()} {platform.machine()}", flush=True)
    judge(suite, "arm64", "trial_loads", trial_loads)
    for mode in (None, ProbeMode.PERF_EVENT):
        checks: list[Checks] = []
        judge(suite, str(mode), "recorded", lambda mode=mode, checks=checks: checks.append(Checks(mode)))  # type: ignore[misc]
        for name in [name for name in vars(Checks) if not name.startswith("_") and name != "of"] if checks else []:
            judge(suite, checks[0].mode.value, name, getattr(checks[0], name))
    ElementTree.ElementTree(suite).write(REPORT)


def judge(suite: ElementTree.Element, group: str, name: str, check: Callable[[], object]) -> None:
    """Runs one check and writes down what became of it."""
    case = ElementTree.SubElement(suite, "testcase", classname=group, name=name)
    try:
        check()
        print(f"ok      {group}: {name.replace('_', ' ')}", flush=True)
    except Exception as error:  # every check is run
        ElementTree.SubElement(case, "failure", message=f"{type(error).__name__}: {error}")
        print(f"FAILED  {group}: {name}\n{traceback.format_exc()}", flush=True)


if __name__ == "__main__":
    main()
