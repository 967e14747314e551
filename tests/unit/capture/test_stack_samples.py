"""Which sleeping threads are looked at, and when a CPU is sampled."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ingero.attach.cpu_samples import VARIED_NS, parse_cpus, varied_ns
from ingero.attach.objects import object_path
from ingero.attach.sample_pace import MAX_HZ
from ingero.capture.foreign.memory_reader import MemoryReader
from ingero.capture.loop.clocks import WallClock
from ingero.capture.stacks.blocked_samples import GPU_PLACES, PLACES, BlockedSampler, chosen
from ingero.capture.stacks.process_stacks import ProcessStacks
from ingero.capture.stacks.stack_samples import StackSamples
from ingero.decode.btf import btf_of
from ingero.store.writing import tables
from tests.unit.kept_rows import MemorySink

_BLOCKED = btf_of(object_path("layouts")).dtype("parked_thread")
NO_PID = 2**22 + 1  # beyond the highest there can be
_TICKS = 840  # a multiple of what the turns below take


def blocked(*, callers: int = 0, mains: int = 0, others: int = 0) -> np.ndarray[Any, Any]:
    """Sleeping threads: those that made traced calls, main threads of other processes, and the rest."""
    threads = np.zeros(callers + mains + others, _BLOCKED)
    threads["tid"] = 100 + np.arange(len(threads))
    threads["pid"] = 1
    threads["hits"][:callers] = 5
    threads["pid"][callers : callers + mains] = threads["tid"][callers : callers + mains]
    return threads


@pytest.mark.parametrize(
    "threads",
    [
        blocked(callers=2, mains=3, others=4),
        blocked(callers=20, mains=9, others=100),
        blocked(callers=1, mains=40, others=14),
        blocked(callers=14),
        blocked(others=70),
        blocked(mains=20),
    ],
)
def test_every_thread_is_stood_for_in_full_and_no_look_reads_more_than_its_places(
    threads: np.ndarray[Any, Any],
) -> None:
    stood_for: dict[int, float] = defaultdict(float)
    for tick in range(_TICKS):
        now = list(chosen(threads, tick))
        assert len(now) <= PLACES
        assert len({index for index, _ in now}) == len(now)
        for index, weight in now:
            stood_for[index] += weight
    assert set(stood_for) == set(range(len(threads)))
    assert sum(stood_for.values()) == pytest.approx(_TICKS * len(threads))
    assert list(stood_for.values()) == pytest.approx([_TICKS] * len(threads), rel=0.1)


def test_threads_that_made_traced_calls_are_looked_at_each_time() -> None:
    seen = Counter(index for tick in range(10) for index, _ in chosen(blocked(callers=GPU_PLACES, others=99), tick))
    assert [seen[index] for index in range(GPU_PLACES)] == [10] * GPU_PLACES


def test_threads_of_processes_that_are_no_targets_give_no_sample() -> None:
    assert BlockedSampler(lambda _pid: None, _BLOCKED, lambda _rows: None).sample(blocked(others=3).tobytes(), 1) == []


def test_a_thread_that_was_looked_at_as_it_went_to_sleep_is_not_read() -> None:
    threads = blocked(mains=2)
    threads["is_looked_at"], threads["python_stack"] = 1, (77, 0)  # the second has no Python frames
    interpreter = SimpleNamespace(version=(3, 12))
    process = SimpleNamespace(interpreter=interpreter, layout={}, memory=MemoryReader(), pid=NO_PID)
    sampler = BlockedSampler(lambda _pid: (7, cast(ProcessStacks, process)), _BLOCKED, lambda _rows: None)
    (found,) = sampler.sample(threads.tobytes(), 1000)
    assert (found.process, found.tid, found.python_stack, found.stack_hash) == (7, 100, 77, 0)
    threads["is_looked_at"] = threads["python_stack"] = 0
    (unknown,) = sampler.sample(threads[:1].tobytes(), 1000)  # it is gone: a sample whose place is not known
    assert (unknown.python_stack, unknown.stack_hash) == (0, 0)


def samples(
    threads: np.ndarray[Any, Any], sink: MemorySink, *, halted: frozenset[int] | None = None
) -> tuple[StackSamples, Any]:
    """Of these threads, all of process 7; halted: stacks are given up. With what is asked when a sample is lost."""
    lost = threading.Semaphore(0)
    kernel = SimpleNamespace(
        layouts=SimpleNamespace(dtype=lambda _name: _BLOCKED),
        samples=SimpleNamespace(blocked=threads.tobytes, vary=lambda **_now: None),
        are_stacks_off=halted is not None,
        is_running=True,
    )
    stacks = SimpleNamespace(
        process_of=lambda _number: SimpleNamespace(interpreter=object(), pid=NO_PID),
        hashes=lambda _numbers, python: python.tolist(),
        count_unresolved=lost.release,
    )
    clock = WallClock()
    clock.add_pair(0, 0)
    traced_processes = SimpleNamespace(of_pid=lambda _pid: SimpleNamespace(number=7))
    made = StackSamples(
        *(cast(Any, one) for one in (kernel, sink, clock, traced_processes, stacks)),
        halted=lambda: halted or frozenset(),
    )
    return made, lost


def test_samples_of_sleeping_threads_that_nobody_takes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingero.capture.stacks.stack_samples._MAX_WAITING", 3)
    threads = blocked(mains=2)
    threads["is_looked_at"], threads["python_stack"] = 1, (77, 78)
    sink = MemorySink()
    made, lost = samples(threads, sink)
    with made:
        for _ in range(3):  # one of the second look, both of the third
            assert lost.acquire(timeout=60)
    made.write_blocked()
    assert [row["stack_hash"] for row in sink.of(tables.SAMPLES)] == [77, 78, 77]


def test_where_stacks_are_given_up_only_processes_that_make_no_calls_any_more_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ingero.capture.stacks.stack_samples._MAX_WAITING", 0)  # so that each sample is told
    threads = blocked(mains=1)
    threads["is_looked_at"], threads["python_stack"] = 1, 77
    halted, lost = samples(threads, MemorySink(), halted=frozenset({7}))
    with halted:
        assert lost.acquire(timeout=60)
    for numbers in (frozenset({8}), frozenset[int]()):
        other, lost = samples(threads, MemorySink(), halted=numbers)
        with other:
            assert not lost.acquire(timeout=1.5)


def test_ticks_that_vary_come_as_often_as_ever() -> None:
    period_ns, spreads = 10**9 // MAX_HZ, [number / 1000 for number in range(-200, 201)]
    periods = [varied_ns(period_ns, spread) for spread in spreads]
    ticks = sum(VARIED_NS / one - 0.5 for one in periods) / len(periods)  # the time before a new period began is lost
    assert ticks == pytest.approx(MAX_HZ, rel=0.001)
    assert max(periods) > 1.4 * min(periods)


def test_a_list_of_cpus_may_have_gaps() -> None:
    assert parse_cpus("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_cpus("0\n") == [0]
