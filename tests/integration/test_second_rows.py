"""Written once a second besides calls: who woke the targets, which groups were throttled; and rest when idle."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.capture.loop.null_sink import NullSink
from ingero.capture.loop.recorder import Recorder, RecorderOptions
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.loop.session import session_facts
from ingero.demo.faults import Fault, Workload
from ingero.demo.faults.cgroups import Group
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program
from ingero.store.reader import open_reader
from ingero.store.writing.writer import Writer
from tests.integration.accounts.rig import undisturbed
from tests.integration.targets import rows
from tests.integration.tracing import tracing

FEW_SYNC_INTERVALS_BYTES = 16 << 10
NOBODY = 1  # pid 1 uses no CUDA
PERIODS = 3  # of 100 ms in which a quota was used up


def test_without_targets_no_program_stays_on_the_schedulers_path() -> None:
    options = RecorderOptions(is_traced=lambda _pid: False)
    with KernelSide(KernelSizes()) as kernel, Recorder(kernel, NullSink("node"), options) as recorder:
        recorder.start()
        assert not kernel.is_running


def test_the_first_target_brings_the_programs_back() -> None:
    with (
        KernelSide(KernelSizes()) as kernel,
        Recorder(kernel, NullSink("node"), RecorderOptions(pids=[NOBODY])) as recorder,
    ):
        recorder.start()
        assert kernel.is_running


def test_host_events_and_maps_survive_a_rest() -> None:
    with KernelSide(KernelSizes()) as kernel:
        kernel.start()
        unavailable = list(kernel.unavailable)
        kernel.pause()
        kernel.start()
        assert kernel.unavailable == unavailable
        slot = kernel.enroll(os.getpid(), 1)
        assert slot is not None
        assert kernel.process_at(slot) == (os.getpid(), 1)
        kernel.release(os.getpid())


@pytest.fixture
def trained(tmp_path: Path) -> tuple[dict[str, str], Path, Path]:
    knobs, host_knobs = tmp_path / "gpu.knobs", tmp_path / "host.knobs"
    return {**os.environ, **environment(build(), ctl=knobs, sched="block")}, knobs, host_knobs


def test_sleeps_are_summed_by_who_ended_them(tmp_path: Path, trained: tuple[dict[str, str], Path, Path]) -> None:
    variables, _, host_knobs = trained
    with Program.module("train", "--seconds", 60, "--knob", host_knobs, environment=variables) as trainer:
        trainer.wait_for("ready")
        with tracing(tmp_path, pids=[trainer.pid]) as tracer:
            for _ in range(3):
                tracer.wait_for("second")
    with open_reader(tracer.database) as reader:
        window = reader.window(None, 0)
        assert window is not None
        process = next(one for one in reader.processes() if one.pid == trainer.pid)
        wakers = {one.waker_kind: one for one in reader.wakers(window, process=process.process)}
    # the simulated device ends a blocking wait with a timer
    assert wakers["timer"].count > 100
    assert wakers["timer"].sleep_ns > 100_000_000


def test_sync_intervals_of_a_second_that_their_ring_has_no_room_for_are_all_kept(
    tmp_path: Path, trained: tuple[dict[str, str], Path, Path]
) -> None:
    variables, _, _ = trained
    database, gate = tmp_path / "recording.db", tmp_path / "go"
    arguments = ("--gate", gate, "--seconds", 4)
    with Program.module("train", *arguments, environment=variables) as trainer:
        pid = int(trainer.wait_for("loaded")[0])
        with (
            KernelSide(KernelSizes(sync_intervals_bytes=FEW_SYNC_INTERVALS_BYTES)) as kernel,
            Writer(database, session=session_facts([pid]), node="node") as sink,
            Recorder(kernel, sink, RecorderOptions(pids=[pid])) as recorder,
        ):
            record_bytes = kernel.layouts.dtype("sync_interval_record").itemsize
            recorder.start()
            gate.touch()
            with undisturbed():  # the ring has room for a third of a second: whoever waits for a CPU longer comes late
                recorder.run(should_stop=lambda: not len(recorder.traced_processes), on_second=lambda _: None)
            sink.flush()
            drops = Counter(recorder.seconds.drops_total)
    ((most,),) = rows(
        database, "SELECT max(n) FROM (SELECT count(*) n FROM raw_sync_intervals GROUP BY sync_end_ns / 1000000000)"
    )
    print(f"\n{most} sync intervals in the fullest second, room for {FEW_SYNC_INTERVALS_BYTES // record_bytes}")
    assert not drops["sync_intervals_ring_full"]
    assert most > FEW_SYNC_INTERVALS_BYTES // record_bytes


def test_a_hurried_second_is_half_of_one_and_its_rows_stand_for_that(
    tmp_path: Path, trained: tuple[dict[str, str], Path, Path]
) -> None:
    """Whoever looks at what is stored takes for complete all that lies before the end of the last second."""
    variables, _, _ = trained
    database, found = tmp_path / "recording.db", list[SecondOfCounts]()
    ends: list[tuple[int, int]] = []

    with Program.module("train", "--seconds", 60, environment=variables) as trainer:
        trainer.wait_for("ready")
        with (
            KernelSide(KernelSizes()) as kernel,
            Writer(database, session=session_facts([trainer.pid]), node="node") as sink,
            Recorder(kernel, sink, RecorderOptions(pids=[trainer.pid])) as recorder,
        ):

            def note(second: SecondOfCounts) -> None:
                found.append(second)
                sink.flush()
                with open_reader(database) as reader:
                    ends.append((reader.counted_until_ns(), second.time_ns))

            recorder.start()
            recorder.run(
                should_stop=lambda: len(found) >= 8,
                on_second=note,
                is_hurried=lambda: 3 <= len(found) < 6,
            )
    lengths = [second.elapsed_s for second in found]
    print("\n", [f"{one:.2f}" for one in lengths])
    assert max(lengths[4:6]) < min(lengths[1:3]), "with the sync's patience they are 0.5 to 0.75 s"
    assert all(counted <= end for counted, end in ends[1:])
    stored = rows(database, "SELECT DISTINCT start_ns, period_s FROM raw_thread_state_seconds ORDER BY start_ns")
    assert [period_s for _, period_s in stored] == pytest.approx(lengths, abs=0.02)
    for (start_ns, period_s), (after_ns, _) in pairwise(stored):
        assert (after_ns - start_ns) / 1e9 == pytest.approx(period_s, abs=0.02), "a row begins where the last one ended"


def test_a_group_at_its_quota_is_recorded_as_throttled(
    tmp_path: Path, trained: tuple[dict[str, str], Path, Path]
) -> None:
    variables, knobs, host_knobs = trained
    fault = Fault("cfs_quota")
    if reason := fault.requires():
        pytest.skip(reason)
    with fault.prepare(tmp_path) as setup:
        arguments = ("--seconds", 60, "--knob", host_knobs, *setup.arguments)
        with Program.module("train", *arguments, environment=variables, cgroups=setup.cgroups) as trainer:
            trainer.wait_for("ready")
            workload = Workload(pid=trainer.pid, knobs=knobs, host_knobs=host_knobs)
            with fault.apply(workload) as injection, tracing(tmp_path, pids=[trainer.pid]) as tracer:
                (path,) = injection.cgroups
                group = Group(path=path, is_v2=(path / "cgroup.events").exists())
                tracer.wait_for("second")
                before = group.throttled_periods()
                while group.throttled_periods() < before + PERIODS:  # where others want the CPUs it seldom uses them up
                    tracer.wait_for("second")
                tracer.wait_for("second")
    with open_reader(tracer.database) as reader:
        window = reader.window(None, 0)
        assert window is not None
        throttled = reader.throttling(window)
        clocks = reader.thread_state_totals(window)
    print(f"\nthrottled by the group's own count: {throttled}")
    assert sum(one.nr_throttled for one in throttled) > 0
    assert sum(one.clocks.throttled_ns for one in clocks) > 0
