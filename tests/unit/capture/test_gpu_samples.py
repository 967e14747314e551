"""GPU samples come from a thread of their own: what its driver does costs samples, and each lost second is counted."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.capture.host.gpu_samples import GpuSamples, PollPace
from ingero.discover.gpus import Gpu, GpuSample, Nvml, ask_within
from ingero.store.writing import tables
from tests.unit.kept_rows import MemorySink

SECOND_NS = 1_000_000_000
GPU = Gpu(index=3, uuid="GPU-a", name="H100", memory_bytes=80, pci_bus_id="", max_sm_clock_mhz=1980)
SAMPLE = GpuSample(
    uuid="GPU-a",
    busy_percent=97,
    memory_busy_percent=None,
    memory_used_bytes=60,
    memory_total_bytes=80,
    sm_clock_mhz=1410,
    slowdowns=("power cap",),
    throttle_reasons=0x4,
    power_w=349.5,
    temperature_c=71,
    processes={2**22 + 8: None, 2**22 + 7: 50},  # no pid is larger than 2^22
    sm_percents={2**22 + 7: 31},
)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 100 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


class Scripted(Nvml):
    """Answers as often as it is let; each question is announced."""

    def __init__(self, answer: Callable[[], tuple[GpuSample, ...]]) -> None:
        super().__init__(gpus=(GPU,))
        object.__setattr__(self, "answer", answer)

    def sample(self) -> tuple[GpuSample, ...]:
        answer: Callable[[], tuple[GpuSample, ...]] = self.answer  # type: ignore[attr-defined]  # set above
        return answer()


def opening(nvml: Nvml) -> Callable[[], AbstractContextManager[Nvml]]:
    @contextmanager
    def opened() -> Iterator[Nvml]:
        yield nvml

    return opened


class Driver:
    """A driver that hangs until it is let go."""

    def __init__(self) -> None:
        self.asked, self.may_go = threading.Event(), threading.Event()

    def answer(self) -> tuple[GpuSample, ...]:
        self.asked.set()
        assert self.may_go.wait(60)
        return (SAMPLE,)


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.may_go.set()


def test_a_sample_becomes_a_row_with_what_the_driver_told() -> None:
    asked, may_go = threading.Semaphore(0), threading.Semaphore(1)

    def answer() -> tuple[GpuSample, ...]:
        asked.release()
        assert may_go.acquire(timeout=60)
        return (SAMPLE,)

    sink = MemorySink()
    samples = GpuSamples(
        sink, lambda mono_ns: mono_ns + 5, opened=opening(Scripted(answer)), period_ns=10_000, clock=Clock()
    )
    samples.start()
    for _ in range(2):  # asked a second time, it has handed over the first answer
        assert asked.acquire(timeout=60)
    assert samples.write() == 0
    may_go.release(1000)
    samples.stop()
    row = sink.of(tables.GPU_SAMPLES)[0]
    assert (row["time_ns"], row["uuid"], row["gpu_index"]) == (100 * SECOND_NS + 5, "GPU-a", 3)
    assert (row["gpu_percent"], row["memory_percent"], row["power_mw"]) == (97, None, 349_500)
    assert (row["sm_clock_mhz"], row["max_sm_clock_mhz"], row["throttle_reasons"]) == (1410, 1980, 4)
    assert row["processes"] == '[[4194311,50,31,""],[4194312,null,null,""]]'


def test_each_second_without_an_answer_is_counted_once_and_the_first_late_one_is_not(driver: Driver) -> None:
    clock = Clock()
    samples = GpuSamples(MemorySink(), int, opened=opening(Scripted(driver.answer)), clock=clock)
    samples.start()
    assert driver.asked.wait(60)
    clock.now_ns += 2 * SECOND_NS - 1
    assert samples.write() == 0
    clock.now_ns += 3 * SECOND_NS
    assert samples.write() == 3
    assert samples.write() == 0
    clock.now_ns += SECOND_NS
    assert samples.write() == 1
    samples.stop()


def test_a_gpu_that_has_fallen_off_the_bus_is_counted_each_time() -> None:
    samples = GpuSamples(MemorySink(), int, clock=Clock())
    for _ in range(3):
        samples.take(Scripted(lambda: ()))
    assert samples.write() == 3
    assert samples.write() == 0


def test_answers_that_nobody_takes_are_counted() -> None:
    sink, wanted, held = MemorySink(), 20, 16
    samples = GpuSamples(sink, int, clock=Clock())
    for _ in range(wanted):
        samples.take(Scripted(lambda: (SAMPLE,)))
    assert samples.write() == wanted - held
    assert len(sink.of(tables.GPU_SAMPLES)) == held
    assert samples.write() == 0


def test_a_machine_without_a_gpu_has_no_missing_samples() -> None:
    clock = Clock()
    samples = GpuSamples(MemorySink(), int, opened=opening(Nvml(reason="no driver")), clock=clock)
    samples.start()
    samples.stop()
    clock.now_ns += 60 * SECOND_NS
    assert samples.write() == 0


def test_a_driver_that_hangs_at_the_start_is_the_reason_for_no_gpus(driver: Driver) -> None:
    @contextmanager
    def hanging() -> Iterator[Nvml]:
        assert driver.may_go.wait(60)
        yield Nvml()

    assert ask_within(0, hanging) == Nvml(reason="NVML did not answer within 0 s")


def test_what_the_binding_raises_is_the_reason_for_no_gpus() -> None:
    @contextmanager
    def broken() -> Iterator[Nvml]:
        raise RuntimeError("wrong version")
        yield Nvml()

    assert ask_within(60, broken).reason == "NVML: wrong version"


def test_a_process_on_the_gpu_is_named_where_the_machine_knows_it() -> None:
    sink = MemorySink()
    samples = GpuSamples(sink, lambda ns: ns, opened=opening(Nvml()))
    samples.take(Scripted(lambda: (replace(SAMPLE, processes={os.getpid(): 5}, sm_percents={}),)))
    samples.write()
    (row,) = sink.of(tables.GPU_SAMPLES)
    name = Path(f"/proc/{os.getpid()}/comm").read_text().rstrip("\n")
    assert json.loads(str(row["processes"])) == [[os.getpid(), 5, None, name]]


@pytest.mark.parametrize("took_ms", [0.1, 4, 30, 600])
def test_questions_come_the_less_often_the_longer_they_take(took_ms: float) -> None:
    """At most a hundredth of the time is spent in the driver, beside what may be taken once."""
    now_ns, took_ns, spent_ns, asked = 0, int(took_ms * 1e6), 0, 0
    pace = PollPace(SECOND_NS, now_ns)
    while now_ns < 3600 * SECOND_NS:
        now_ns += took_ns
        spent_ns, asked = spent_ns + took_ns, asked + 1
        now_ns += pace.rest_ns(now_ns, took_ns)
    assert spent_ns <= 0.01 * now_ns + 100e6 + took_ns
    assert asked >= min(3500, 0.9 * 36e9 / took_ns)


def test_one_answer_that_was_held_up_changes_nothing() -> None:
    pace = PollPace(SECOND_NS, 0)
    assert pace.rest_ns(SECOND_NS, 50_000_000) == SECOND_NS - 50_000_000


def test_what_is_not_asked_for_yet_is_not_missing() -> None:
    """A query that took 0.6 s is asked again 50 s later; the seconds until then are no losses."""
    clock, sink = Clock(), MemorySink()

    def answer() -> tuple[GpuSample, ...]:
        clock.now_ns += 600_000_000
        return (SAMPLE,)

    samples = GpuSamples(sink, int, clock=clock)
    samples.take(Scripted(answer))
    clock.now_ns += 40 * SECOND_NS
    assert samples.write() == 0
    assert samples.latest
    assert sink.of(tables.GPU_SAMPLES)[0]["asked_ns"] == pytest.approx(600_000_000, abs=1_000_000)
    clock.now_ns += 20 * SECOND_NS
    assert samples.write() > 0
