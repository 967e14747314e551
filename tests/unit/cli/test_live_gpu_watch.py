"""NVML is asked in a thread: a driver that hangs costs nothing but its own lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.busy_second import gpu_state
from ingero.cli.live.gpu_watch import DEADLINE_S, GpuWatch
from ingero.discover.gpus import GpuSample, Nvml


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class HangingNvml(Nvml):
    """Answers once; then its driver hangs until it is let go."""

    asked = threading.Semaphore(0)
    may_go = threading.Event()
    calls = 0

    def sample(self) -> tuple[GpuSample, ...]:
        HangingNvml.calls += 1
        HangingNvml.asked.release()
        if HangingNvml.calls > 1:
            assert HangingNvml.may_go.wait(60)
        return gpu_state(1).samples


@contextmanager
def hanging() -> Iterator[Nvml]:
    yield HangingNvml(gpus=gpu_state(1).gpus)


def test_a_hung_driver_is_silent_and_blocks_nobody() -> None:
    clock = Clock()
    watch = GpuWatch(hanging, period_s=0, clock=clock)
    watch.start()
    try:
        for _ in range(2):
            assert HangingNvml.asked.acquire(timeout=60)
        assert watch.latest().no_answer_s is None
        clock.now_s += DEADLINE_S + 9
        latest = watch.latest()
        assert latest.no_answer_s == DEADLINE_S + 9
        assert latest.samples == gpu_state(1).samples
        watch.stop()
    finally:
        HangingNvml.may_go.set()


@contextmanager
def absent() -> Iterator[Nvml]:
    yield Nvml(reason="NVML: Driver Not Loaded")


@contextmanager
def broken() -> Iterator[Nvml]:
    raise OSError("not an ELF file")
    yield Nvml()


def ended(watch: GpuWatch) -> GpuWatch:
    watch.start()
    watch._thread.join()
    return watch


def test_a_machine_without_gpu_says_why_and_is_never_called_silent() -> None:
    clock = Clock()
    watch = ended(GpuWatch(absent, clock=clock))
    clock.now_s += 100
    assert (watch.latest().reason, watch.latest().no_answer_s) == ("NVML: Driver Not Loaded", None)


def test_what_the_binding_raises_is_the_reason() -> None:
    assert ended(GpuWatch(broken)).latest().reason == "NVML: not an ELF file"
