"""What the kernel side learns of launches, compiled for this machine: did they wait for room, or are they slow."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import ingero

BPF = Path(ingero.__file__).parent / "bpf"
HOST = "#pragma once\n#include <stdbool.h>\n#define INLINE static inline\n"
PROGRAM = """
#include "launch_times.h"
#include <string.h>

static struct launch_times times;
static u64 launches;

void forget(void) { memset(&times, 0, sizeof(times)); launches = 0; }

/* A launch that returns: how much of it was waiting for room; -1: not known. */
s64 launched(u64 start_ns, u64 took_ns, bool is_short)
{
	s64 waited = took_ns >= BLOCKED_MIN_NS && !is_short ? waited_for_room(&times, took_ns) : 0;

	if (note_launch_time(&times, ++launches, start_ns, took_ns, is_short))
		learn_launch_cost(&times, launches, start_ns + took_ns);
	times.returned_ns = start_ns + took_ns;
	return waited;
}
"""
DEPTH = 1022
US = 1000
UNKNOWN = -1
Launched = Callable[[int, int, bool], int]


@pytest.fixture
def launched(tmp_path: Path) -> Launched:
    for name in ("launch_times.h", "events.h"):
        shutil.copy(BPF / name, tmp_path)
    (tmp_path / "kernel.h").write_text(HOST)
    (tmp_path / "program.c").write_text('#include "kernel.h"\n' + PROGRAM)
    library = tmp_path / "program.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, tmp_path / "program.c"], check=True)
    function = ctypes.CDLL(str(library)).launched
    function.argtypes, function.restype = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool], ctypes.c_int64
    return lambda start_ns, took_ns, is_short: int(function(start_ns, took_ns, is_short))


def gpu_loop(
    launched: Launched, kernels_us: Iterable[float], *, host_us: float, call_us: float, pause_us: float, steps: int = 40
) -> list[tuple[int, int, int]]:
    """A loop that never waits, on a queue of 1,022: (duration, waited in truth, waited as told) of each launch, ns.

    kernels_us: of one step, before which the host pauses.
    """
    kernels = [int(us * US) for us in kernels_us]
    ends: list[int] = []
    now, gpu_ns = 1_000_000, 0
    told = []
    for _ in range(steps):
        now += int(pause_us * US)
        for kernel_ns in kernels:
            now += int(host_us * US)
            room_ns = ends[-DEPTH] if len(ends) >= DEPTH else 0
            ready = now + int(call_us * US)
            returned = max(ready, room_ns + 6 * US) if room_ns > ready else ready
            gpu_ns = max(gpu_ns, returned) + kernel_ns
            ends.append(gpu_ns)
            told.append((returned - now, returned - ready, launched(now, returned - now, False)))
            now = returned
    return told


def settled(told: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    """Sums of the later half: of what was waited in truth and as told, and how often that was not known."""
    later = told[len(told) // 2 :]
    return (
        sum(true for _, true, _ in later),
        sum(said for _, _, said in later if said != UNKNOWN),
        sum(said == UNKNOWN for _, _, said in later),
    )


def test_on_a_full_queue_launches_wait_for_the_gpu(launched: Launched) -> None:
    told = gpu_loop(launched, [60.0] * 150, host_us=5, call_us=4, pause_us=1000)
    true, said, unknown = settled(told)
    assert unknown == 0
    assert said == pytest.approx(true, rel=0.15)  # of each that waits its own 4 us count as well
    assert true > 0


def test_slow_launches_of_a_loop_that_never_waits_are_no_waits(launched: Launched) -> None:
    """Each takes 60 us, the GPU has nothing to do in half of them."""
    told = gpu_loop(launched, [20.0] * 150, host_us=5, call_us=60, pause_us=1000)
    assert settled(told) == (0, 0, 0)


def test_of_slow_launches_on_a_full_queue_the_wait_is_what_they_take_longer(launched: Launched) -> None:
    told = gpu_loop(launched, [150.0] * 150, host_us=5, call_us=60, pause_us=2000)
    true, said, unknown = settled(told)
    assert unknown == 0
    assert said == pytest.approx(true, rel=0.05)


def test_kernels_of_all_lengths_tell_by_the_shortest(launched: Launched) -> None:
    """A large model pauses for less than four of its launches; among its kernels are short ones."""
    told = gpu_loop(launched, [900.0, 5.0, 1500.0, 8.0, 1200.0] * 60, host_us=10, call_us=4, pause_us=300)
    true, said, unknown = settled(told)
    assert unknown == 0
    assert said == pytest.approx(true, rel=0.15)


def test_of_a_loop_without_any_pause_it_is_not_known(launched: Launched) -> None:
    """Both would look like this: equal kernels on a full queue, and launches that are as slow."""
    full = gpu_loop(launched, [60.0] * 150, host_us=5, call_us=4, pause_us=0)
    _, said, unknown = settled(full)
    assert said == 0
    assert unknown == len(full) // 2


def test_launches_become_slow_while_it_runs(launched: Launched) -> None:
    """From a full queue over to a slow driver: after a lesson or two nothing is a wait any more."""
    gpu_loop(launched, [60.0] * 150, host_us=5, call_us=4, pause_us=1000)
    told = gpu_loop(launched, [20.0] * 150, host_us=5, call_us=60, pause_us=1000)
    assert settled(told) == (0, 0, 0)


def test_a_queue_that_is_known_to_be_short_tells_what_a_launch_takes(launched: Launched) -> None:
    """A loop that waits every 1,500 launches: the first ones after it found room, however slow they are."""
    now, told = 0, []
    for launch in range(6000):
        now += 70 * US
        told.append(launched(now, 65 * US, launch % 1500 < 900))
    assert told[3000:] == [0] * 3000
