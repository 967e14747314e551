"""The function that frees code objects is found in every interpreter, and its probe counts in one process only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from ingero.attach import freed_code
from ingero.attach.freed_code import FreedCodeProbes
from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.discover.freed_code import code_destructor
from ingero.discover.interpreters import Interpreter, find_interpreter
from ingero.discover.processes import read_process_id
from tests.integration.interpreters import counts_freed, interpreters

SLOT, IMAGE = 7, 99
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_FREEING = """
import sys, threading
def free(count):
    for _ in range(count):
        compile("1", "f", "eval")
for line in iter(sys.stdin.readline, ""):
    thread = threading.Thread(target=free, args=(int(line),))
    thread.start()
    thread.join()
    print(flush=True)
"""
_LEAVING = """
import ctypes, sys, threading, time
leaving = threading.Event()
def stay():
    leaving.wait()
    time.sleep(1)
    print(flush=True)
    time.sleep(60)
threading.Thread(target=stay).start()
print(flush=True)
sys.stdin.readline()
leaving.set()
ctypes.CDLL(None).pthread_exit(None)
"""


class Freeing:
    """A process that frees code objects on demand, in another thread than its first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self.pid = process, process.pid

    def free(self, count: int) -> None:
        assert self._process.stdin
        assert self._process.stdout
        print(count, file=self._process.stdin, flush=True)
        self._process.stdout.readline()


@contextmanager
def freeing(program: Path) -> Iterator[Freeing]:
    command = [program, "-c", _FREEING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        one = Freeing(process)
        one.free(1)
        yield one
        process.kill()


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelSide]:
    with KernelSide(KernelSizes(), with_stacks=True) as side:
        yield side


@pytest.fixture(params=["as in this kernel", "perf-event"])
def probes(kernel: KernelSide, request: pytest.FixtureRequest) -> Iterator[FreedCodeProbes]:
    assert kernel.freed_code is not None
    if request.param != "perf-event":
        yield kernel.freed_code
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freed_code, "read_kernel", lambda: SimpleNamespace(features=frozenset()))
        older = FreedCodeProbes(kernel.maps, kernel.layouts)
    yield older
    older.close()


@pytest.mark.parametrize("name", [name for name, one in interpreters().items() if not counts_freed(one)])
def test_what_one_process_frees_is_counted(name: str, kernel: KernelSide, probes: FreedCodeProbes) -> None:
    program = interpreters()[name]
    with freeing(program) as watched, freeing(program) as other:
        found = find_interpreter(watched.pid)
        assert isinstance(found, Interpreter)
        place = code_destructor(watched.pid, found)
        link = probes.attach(watched.pid, SLOT, IMAGE, place.path, place.offset)
        assert kernel.maps["freed_codes"].lookup(SLOT.to_bytes(4, "little"))[:8] == IMAGE.to_bytes(8, "little")
        before = probes.count(SLOT)
        watched.free(1000)
        other.free(5000)
        assert probes.count(SLOT) - before == 1000
        link.close()
        watched.free(1000)
        assert probes.count(SLOT) - before == 1000
        assert kernel.maps["freed_codes"].lookup(SLOT.to_bytes(4, "little"))[:8] == bytes(8), "nobody counts any more"


def test_nothing_is_counted_any_more_once_the_first_thread_has_ended(kernel: KernelSide) -> None:
    probes = kernel.freed_code
    assert probes is not None
    kernel.start_clocks()
    command = [sys.executable, "-c", _LEAVING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        own = read_process_id(process.pid)
        found = find_interpreter(process.pid)
        assert own is not None
        assert isinstance(found, Interpreter)
        slot = kernel.enroll(process.pid, own.start_ticks * _TICK_NS)
        assert slot is not None
        image = kernel.image_at(slot, process.pid)
        assert image is not None
        place = code_destructor(process.pid, found)
        link = probes.attach(process.pid, slot, image, place.path, place.offset)
        images = [kernel.maps["freed_codes"].lookup(slot.to_bytes(4, "little"))[:8]]
        assert process.stdin
        print(file=process.stdin, flush=True)
        process.stdout.readline()  # from the other thread, a second after the first has left
        images.append(kernel.maps["freed_codes"].lookup(slot.to_bytes(4, "little"))[:8])
        link.close()
        kernel.release(process.pid)
        process.kill()
    assert images == [image.to_bytes(8, "little"), bytes(8)]
