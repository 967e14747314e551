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

from ingero.attach.libbpf import BpfObject, CpuClock, Map, Program
from ingero.attach.objects import object_path

_ONLINE = Path("/sys/devices/system/cpu/online")
_HZ = 49  # in step with nothing that happens 10, 50 or 100 times a second
_MOST_PER_S = (
    784  # of all CPUs together, as if 16 of them ran nothing but targets: each costs the agent 0.1 ms and more
)
_LEAST_HZ = 7
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
        self.period_ns = 10**9 // rate_hz(len(self._cpus))
        self._loaded = BpfObject(
            object_path("samples"),
            shared={name: entry for name, entry in shared.items() if name not in _OWN_MAPS},
            constants=constants,
        )
        self._links = ExitStack()
        self._clocks: list[CpuClock] = []
        self._lock = threading.Lock()

    def attach(self) -> None:
        """Starts the clocks of all CPUs that are online, and looks at sleepers.

        Raises:
            BpfError: the kernel refuses one; then none runs.
        """
        program = self._loaded.program("sample_running")
        with self._lock, ExitStack() as links:
            links.callback(self._loaded.program("note_sleeper").attach().close)
            clocks = [self._clock_of(program, cpu, links) for cpu in self._cpus]
            self._links, self._clocks = links.pop_all(), clocks

    def _clock_of(self, program: Program, cpu: int, links: ExitStack) -> CpuClock:
        clock = program.attach_cpu_clock(cpu, self.period_ns)
        links.callback(clock.close)
        return clock

    def vary(self) -> None:
        """Puts the ticks of each CPU otherwise apart, as often as ever on average; to be called each VARIED_NS."""
        with self._lock:
            for clock in self._clocks:
                with suppress(OSError):  # its CPU has gone offline
                    clock.retime(varied_ns(self.period_ns, random.uniform(-_SPREAD, _SPREAD)))

    def detach(self) -> None:
        """Stops them."""
        with self._lock:
            self._clocks = []
            self._links.close()

    def program_fd(self, name: str) -> int:
        """The descriptor of a program: the kernel tells there what it costs."""
        return self._loaded.program(name).fd

    def parked(self) -> bytes:
        """One `struct parked_thread` per thread that is asleep outside traced calls."""
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


def rate_hz(cpus: int) -> int:
    """Ticks per second of each CPU: fewer where there are many."""
    return max(_LEAST_HZ, min(_HZ, _MOST_PER_S // max(cpus, 1)))


def varied_ns(period_ns: int, spread: float) -> int:
    """A period with (1 + spread) times the ticks of another one; a new one begins anew and loses half a tick."""
    lost = period_ns / (2 * VARIED_NS)
    return round(period_ns / ((1 + spread) * (1 + lost)))


def parse_cpus(text: str) -> list[int]:
    """The numbers in a list such as `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
