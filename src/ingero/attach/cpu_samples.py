"""Samples what threads do: a program at each tick of every CPU's clock, one that looks at threads as they go to sleep,
and a list of the threads that are asleep.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.libbpf import BpfObject, CpuClock, Map, Program
from ingero.attach.objects import object_path
from ingero.attach.sample_pace import SamplePace

_ONLINE = Path("/sys/devices/system/cpu/online")
VARIED_NS = 1_000_000_000  # ticks equally far apart for longer would find a loop of 6.8 ms at three places only
_SPREAD = 0.2  # of the ticks per second, to either side
_OWN_MAPS = ("python_walks",)  # a tick may come in the middle of another program's walk


class CpuSamples:
    """The sampling programs, loaded; `attach` starts them. Closing detaches and unloads.

    shared: the maps of the scheduler and call programs. constants: see samples.bpf.c.

    Raises:
        BpfError: the kernel refuses them.
    """

    def __init__(self, shared: Mapping[str, Map], constants: Mapping[str, bytes]) -> None:
        self._cpus = parse_cpus(_ONLINE.read_text(encoding="ascii"))
        self._pace = SamplePace(len(self._cpus))
        self._loaded = BpfObject(
            object_path("samples"),
            shared={name: entry for name, entry in shared.items() if name not in _OWN_MAPS},
            constants=constants,
        )
        self._links = ExitStack()
        self._clocks: list[CpuClock] = []
        self._lock = threading.Lock()

    def attach(self) -> None:
        """Starts the sampling clocks of all online CPUs, and the program for threads that go to sleep.

        Raises:
            BpfError: the kernel refuses one; then none runs.
        """
        program = self._loaded.program("sample_running")
        with self._lock, ExitStack() as links:
            links.callback(self._loaded.program("note_sleeper").attach().close)
            clocks = [self._clock_of(program, cpu, links) for cpu in self._cpus]
            self._links, self._clocks = links.pop_all(), clocks

    def _clock_of(self, program: Program, cpu: int, links: ExitStack) -> CpuClock:
        clock = program.attach_cpu_clock(cpu, self._pace.period_ns)
        links.callback(clock.close)
        return clock

    def periods_ns(self, times_ns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The period (ns) that each tick at these times (CLOCK_MONOTONIC) stands for; ask once per tick."""
        with self._lock:
            return self._pace.periods_ns(times_ns)

    def vary(self, *, now_ns: int, elapsed_ns: int) -> None:
        """Varies the period of each CPU around the current pace; to be called every VARIED_NS.

        elapsed_ns: since the last time.
        """
        with self._lock:
            self._pace.choose(now_ns=now_ns, elapsed_ns=elapsed_ns)
            for clock in self._clocks:
                with suppress(OSError):  # its CPU has gone offline
                    clock.retime(varied_ns(self._pace.period_ns, random.uniform(-_SPREAD, _SPREAD)))

    def detach(self) -> None:
        """Stops sampling."""
        with self._lock:
            self._clocks = []
            self._links.close()

    def program_fd(self, name: str) -> int:
        """The descriptor of a program, for the kernel's run-time statistics."""
        return self._loaded.program(name).fd

    def blocked(self) -> bytes:
        """The sleeping threads outside traced calls, one `struct parked_thread` each."""
        return self._loaded.program("find_parked").read_iterator()

    def close(self) -> None:
        """Detaches and unloads."""
        self.detach()
        self._loaded.close()

    def __enter__(self) -> CpuSamples:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def varied_ns(period_ns: int, spread: float) -> int:
    """A period with (1 + spread) times the ticks of `period_ns`, corrected: a new period loses half a tick."""
    lost_ratio = period_ns / (2 * VARIED_NS)
    return round(period_ns / ((1 + spread) * (1 + lost_ratio)))


def parse_cpus(text: str) -> list[int]:
    """The numbers in a list such as `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
