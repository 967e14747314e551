"""memcpy-bound: copies that block; a slower device with the same copies is not one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, Actor, Phase, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis
from ingero.events import HostMemory, SyncIntervalFlag
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

USUAL = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpy": (1.0, 2.0), "cudaStreamSynchronize": (1.0, 3.0)}
BYTES = 16 << 20
COPIED = {"cudaMemcpy": BYTES}
TO_DEVICE, TO_HOST, INSIDE = 1, 2, 3  # cudaMemcpyKind


def steps(run: ScriptedRun, trainer: Actor, begin_s: float, end_s: float, *, copy_ms: float, busy_ms: float) -> None:
    """Steps with one blocking copy each."""
    calls = USUAL | {"cudaMemcpy": (1.0, copy_ms)}
    sizes = {"cudaMemcpy": BYTES}
    run.train(trainer, begin_s, end_s, Step(busy_ms=busy_ms), calls=calls, sizes=sizes)


def diagnosis_of(folder: Path, *, copy_ms: float, busy_ms: float) -> Diagnosis:
    """A healthy time range, then one with these."""
    with ScriptedRun(folder / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        steps(run, trainer, 0, QUIET_S, copy_ms=2, busy_ms=6)
        steps(run, trainer, QUIET_S, LENGTH_S, copy_ms=copy_ms, busy_ms=busy_ms)
    return diagnosed_file(folder / "copies.db")


def test_copies_that_became_slow_are_named_with_their_bandwidth(tmp_path: Path) -> None:
    diagnosis = diagnosis_of(tmp_path, copy_ms=8, busy_ms=12)
    assert causes(diagnosis) == ["memcpy-bound"]
    assert diagnosis.incidents[0].evidence["bytes per second"] == pytest.approx(BYTES / 8e-3, rel=0.03)


@pytest.mark.parametrize(("kind", "words"), [(1, "copying from host to GPU:"), (2, "copying from GPU to host:")])
def test_the_direction_is_that_of_the_recorded_copies(tmp_path: Path, kind: int, words: str) -> None:
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        steps(run, trainer, 0, QUIET_S, copy_ms=2, busy_ms=6)
        steps(run, trainer, QUIET_S, LENGTH_S, copy_ms=8, busy_ms=12)
        run.call(trainer, "cudaMemcpy", 8, 8.0, arg0=BYTES, arg2=kind)
        run.call(trainer, "cudaMemcpy", 9, 0.1, arg0=64, arg2=3 - kind)
    incident = diagnosed_file(tmp_path / "copies.db").incidents[0]
    assert words in incident.summary
    assert incident.evidence["direction"] == words.removeprefix("copying ").rstrip(":")


def test_a_process_that_has_pinned_nothing_copies_from_pageable_memory(tmp_path: Path) -> None:
    found = {}
    for pinned in (False, True):
        path = tmp_path / f"{pinned}.db"
        with ScriptedRun(path, seconds=LENGTH_S) as run:
            trainer = run.process(100, "python", start_s=0)
            steps(run, trainer, 0.5, QUIET_S, copy_ms=2, busy_ms=6)
            steps(run, trainer, QUIET_S, LENGTH_S, copy_ms=8, busy_ms=12)
            run.call(trainer, "cudaMemcpy", 8, 8.0, arg0=BYTES, arg2=1)
            if pinned:
                run.memory(trainer, "cudaHostAlloc", 1, 1, BYTES)
        found[pinned] = diagnosed_file(path).incidents[0]
    assert "copying from unpinned memory to the GPU" in found[False].summary
    assert (found[False].evidence["pageable"], found[True].evidence["pageable"]) == (True, None)


def test_an_asynchronous_copy_that_blocks_is_from_pageable_memory(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin, end, ms in ((0.0, QUIET_S, 2.0), (QUIET_S, LENGTH_S, 8.0)):
            calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (1.0, ms)}
            step = Step(busy_ms=4 + ms, launch_ms=1 + ms)
            run.train(trainer, begin, end, step, calls=calls, sizes={"cudaMemcpyAsync": BYTES})
    diagnosis = diagnosed_file(tmp_path / "copies.db")
    assert causes(diagnosis) == ["memcpy-bound"]
    assert diagnosis.incidents[0].evidence["pageable"] is True
    assert "blocked in cudaMemcpyAsync (pageable)" in diagnosis.incidents[0].summary


@pytest.mark.parametrize(
    ("told", "by"),
    [
        (HostMemory.PAGEABLE, "traced allocations"),
        (HostMemory.SEEMS_PAGEABLE, "the call's own behavior: it waited"),
        (HostMemory.PINNED, None),
    ],
)
def test_how_it_is_known_that_memory_is_pageable_is_said(told: HostMemory, by: str | None, tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        steps(run, trainer, 0, QUIET_S, copy_ms=2, busy_ms=6)
        steps(run, trainer, QUIET_S, LENGTH_S, copy_ms=8, busy_ms=12)
        run.call(trainer, "cudaMemcpy", 8, 8.0, arg0=BYTES, arg1=int(told), arg2=TO_DEVICE)
    assert diagnosed_file(tmp_path / "copies.db").incidents[0].evidence["pageable by"] == by


def batches(folder: Path, *regimes: tuple[float, float, float], slept: bool = True) -> Diagnosis:
    """The only wait of a step is the pageable copy of its batch, which then copies. Regimes: begin, GPU and copy in ms.

    The sync intervals are as decoding leaves them: each begins with the copy. A thread that did not sleep has polled,
    and copied for as long as the fastest at the least.
    """
    with ScriptedRun(folder / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for (begin, gpu_ms, copy_ms), end in zip(regimes, [*(one[0] for one in regimes[1:]), LENGTH_S], strict=True):
            waited_ms = gpu_ms - 1
            calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (1.0, waited_ms + copy_ms)}
            flags = int(
                SyncIntervalFlag.BEFORE_COPY if slept else SyncIntervalFlag.BEFORE_COPY | SyncIntervalFlag.ESTIMATED
            )
            parts = {
                "launch_ms": 1 + (copy_ms if slept else min(one[2] for one in regimes)),
                "busy_ms": gpu_ms + copy_ms,
                "return_delay_ms": 0.01,
            }
            step = Step(idle_ms=0, size_bytes=BYTES, flags=flags, **parts)
            made = run.train(
                trainer, begin, end, step, sync_op="cudaMemcpyAsync", calls=calls, sizes={"cudaMemcpyAsync": BYTES}
            )
            clocks = {"run_ns": int(copy_ms * 1e6), "sleep_ns": int(waited_ms * 1e6)}
            clocks = clocks if slept else {"run_ns": sum(clocks.values()), "sleep_ns": 0}
            for _, _, ended_s in made[::20]:
                told = {"arg0": BYTES, "arg1": int(HostMemory.PAGEABLE), "arg2": TO_DEVICE} | clocks
                run.call(trainer, "cudaMemcpyAsync", ended_s - waited_ms / 1e3, waited_ms + copy_ms, **told)
    return diagnosed_file(folder / "copies.db")


def test_what_a_copy_ran_after_it_had_slept_is_what_its_bytes_took(tmp_path: Path) -> None:
    diagnosis = batches(tmp_path, (0, 6, 1.4), (QUIET_S, 6, 3.4))
    assert causes(diagnosis) == ["memcpy-bound"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(2 / 9.4, rel=0.05)
    assert diagnosis.incidents[0].evidence["direction"] == "from host to GPU"


def test_what_a_copy_slept_before_is_the_device(tmp_path: Path) -> None:
    diagnosis = batches(tmp_path, (0, 6, 1.4), (QUIET_S, 8, 1.4))
    assert causes(diagnosis) == ["gpu-slower"]
    assert "link" not in diagnosis.incidents[0].summary
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(2 / 9.4, rel=0.05)


@pytest.mark.parametrize("slower", [(QUIET_S, 8, 1.4), (QUIET_S, 6, 3.4)])
def test_of_copies_that_polled_it_is_not_known_whether_the_device_or_the_link_was_slower(
    tmp_path: Path, slower: tuple[float, float, float]
) -> None:
    diagnosis = batches(tmp_path, (0, 6, 1.4), slower, slept=False)
    assert causes(diagnosis) == ["gpu-slower"]
    assert ", or the link to it (16.0 MiB are copied in each step), took" in diagnosis.incidents[0].summary


def waiting_copies(folder: Path, *, recorded_bytes: int, fastest_ms: float) -> Diagnosis:
    """Thirty asynchronous copies a step, that come to wait longer; most bytes stay on the GPU."""
    with ScriptedRun(folder / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin, end, ms in ((0.0, QUIET_S, 0.1), (QUIET_S, LENGTH_S, 0.3)):
            calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (30.0, ms)}
            step = Step(busy_ms=4 + 30 * ms, launch_ms=1 + 30 * ms)
            run.train(trainer, begin, end, step, calls=calls, sizes={"cudaMemcpyAsync": 7 << 20})
        run.call(trainer, "cudaMemcpyAsync", 8, 0.004, arg0=199 << 20, arg2=INSIDE)
        run.call(trainer, "cudaMemcpyAsync", 8.1, fastest_ms, arg0=recorded_bytes, arg2=TO_HOST)
    return diagnosed_file(folder / "copies.db")


def test_small_copies_that_waited_are_no_copying_however_many_bytes_stayed_on_the_device(tmp_path: Path) -> None:
    """Seen in a recommender on real GPUs: thirty copies of 48 to 704 bytes waited for other streams."""
    assert "memcpy-bound" not in causes(waiting_copies(tmp_path, recorded_bytes=704, fastest_ms=0.6))


def test_only_the_time_that_the_link_needs_is_copying(tmp_path: Path) -> None:
    """The sums say that a fifth of the bytes went to the host, in 0.1 ms at the speed of the fastest recorded copy."""
    assert "memcpy-bound" not in causes(waiting_copies(tmp_path, recorded_bytes=40 << 20, fastest_ms=2))


def test_a_slower_device_with_the_same_copies_is_not(tmp_path: Path) -> None:
    assert causes(diagnosis_of(tmp_path, copy_ms=2, busy_ms=12)) == ["gpu-slower"]


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "memcpy-bound" in {one.cause for one in diagnosis.not_evaluated}


def test_a_small_result_that_waits_for_a_slower_device_is_no_copying(tmp_path: Path) -> None:
    """The loop reads four bytes at the end of each step: the copy is its sync."""
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin, end, busy_ms in ((0.0, QUIET_S, 6.0), (QUIET_S, LENGTH_S, 12.0)):
            calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpy": (1.0, busy_ms - 1)}
            step = Step(busy_ms=busy_ms)
            run.train(trainer, begin, end, step, sync_op="cudaMemcpy", calls=calls, sizes={"cudaMemcpy": 4})
    assert causes(diagnosed_file(tmp_path / "copies.db")) == ["gpu-slower"]


def test_how_long_large_copies_take_is_not_known_where_only_small_ones_are_recorded(tmp_path: Path) -> None:
    """A server copies each request to the GPU, and four bytes back, which wait for a GPU that became slower."""
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin, end, busy_ms in ((0.0, QUIET_S, 4.0), (QUIET_S, LENGTH_S, 10.0)):
            calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (2.0, busy_ms / 2)}
            step = Step(busy_ms=busy_ms)
            sizes = {"cudaMemcpyAsync": 1 << 19}
            for begin_s, _, _ in run.train(
                trainer, begin, end, step, sync_op="cudaMemcpyAsync", calls=calls, sizes=sizes
            ):
                run.call(trainer, "cudaMemcpyAsync", begin_s + 1e-3, busy_ms - 1, arg0=4, arg2=TO_HOST)
                if begin_s < QUIET_S:
                    run.call(trainer, "cudaMemcpyAsync", begin_s, 0.08, arg0=1 << 20, arg2=TO_DEVICE)
    assert causes(diagnosed_file(tmp_path / "copies.db")) == ["gpu-slower"]


def test_many_small_copies_that_each_take_their_time_are_copying(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin, end, count, busy_ms in ((0.0, QUIET_S, 100.0, 6.0), (QUIET_S, LENGTH_S, 500.0, 12.4)):
            made = USUAL | {"cudaMemcpy": (count, 0.016)}
            run.train(trainer, begin, end, Step(busy_ms=busy_ms), calls=made, sizes={"cudaMemcpy": 256})
    assert causes(diagnosed_file(tmp_path / "copies.db")) == ["memcpy-bound"]


def test_copies_of_steps_with_two_syncs_are_compared_with_those_of_the_healthy_time(tmp_path: Path) -> None:
    """The other sync of a step is as fast while copies are slow: that time is no baseline for copies."""
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin_s, end_s, ms in ((0, QUIET_S, 1.4), (QUIET_S, LENGTH_S, 4.2)):
            copy = Step(idle_ms=0.3, launch_ms=0, busy_ms=ms, return_delay_ms=0.02, launches=1, size_bytes=BYTES)
            calls, sizes = {"cudaMemcpy": (1.0, ms)}, {"cudaMemcpy": BYTES}
            compute = Phase(step=Step(), calls={"cudaStreamSynchronize": (1.0, 5.0)})
            run.cycle(
                trainer, begin_s, end_s, [Phase(step=copy, sync_op="cudaMemcpy", calls=calls, sizes=sizes), compute]
            )
    diagnosis = diagnosed_file(tmp_path / "copies.db")
    assert causes(diagnosis) == ["memcpy-bound"]
    assert diagnosis.incidents[0].evidence["baseline"] == pytest.approx(BYTES / 1.42e-3, rel=0.02)


Piece = tuple[float, Sequence[float], float]  # begin in s, ms of each copy of a step, ms of the work after each


def copies_alone(folder: Path, *pieces: Piece, asleep_ms: float = 0) -> Diagnosis:
    """Steps of blocking copies and syncs in turn, so that each copy finds nothing queued; all are recorded.

    asleep_ms: from the second piece on the thread sleeps so long before each work.
    """
    with ScriptedRun(folder / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        ends = [*(begin_s for begin_s, _, _ in pieces[1:]), LENGTH_S]
        for (begin_s, copies_ms, work_ms), end_s in zip(pieces, ends, strict=True):
            phases = []
            slept_ms = asleep_ms if begin_s else 0
            work = Step(idle_ms=0.5 + slept_ms, idle={"sleep": slept_ms}, busy_ms=work_ms)
            for copy_ms in copies_ms:
                copy = Step(
                    idle_ms=0.3, launch_ms=0, busy_ms=copy_ms, return_delay_ms=0.02, launches=1, size_bytes=BYTES
                )
                phases.append(Phase(step=work, calls={"cudaStreamSynchronize": (1.0, work_ms - 1)}))
                phases.append(Phase(step=copy, sync_op="cudaMemcpy", calls={"cudaMemcpy": (1, copy_ms)}, sizes=COPIED))
            for _, called_s, _ in run.cycle(trainer, begin_s, end_s, phases):
                run.call(trainer, "cudaMemcpy", called_s, copies_ms[-1], arg0=BYTES, arg2=TO_DEVICE)
    return diagnosed_file(folder / "copies.db")


def test_healthy_copies_before_the_link_became_slower_do_not_speak_against_it(tmp_path: Path) -> None:
    """The loop was disturbed half a second before, so that the case begins with copies as fast as ever."""
    disturbed = (QUIET_S - 0.7, [1.4], 9.0), (QUIET_S - 0.5, [1.4], 6.0)
    diagnosis = copies_alone(tmp_path, (0, [1.4], 6.0), *disturbed, (QUIET_S, [4.2], 6.0))
    assert causes(diagnosis) == ["memcpy-bound"]
    incident = diagnosis.incidents[0]
    assert incident.start_ns < BEGIN_NS + int((QUIET_S - 0.4) * 1e9)
    assert incident.explained_ratio == pytest.approx(0.96, abs=0.04)


def test_copies_that_waited_for_nothing_are_slower_however_much_else_was_lost(tmp_path: Path) -> None:
    diagnosis = copies_alone(tmp_path, (0, [1.4], 6.0), (QUIET_S, [4.2], 6.0), asleep_ms=5)
    incident = diagnosis.incidents[0]
    assert incident.evidence["partly memcpy-bound (ratio)"] == pytest.approx(2.8 / 7.8, rel=0.03)


def test_copies_of_which_every_other_is_as_fast_as_ever_show_no_slower_link(tmp_path: Path) -> None:
    diagnosis = copies_alone(tmp_path, (0, [1.4, 1.4], 6.0), (QUIET_S, [4.2, 1.4], 6.0))
    assert causes(diagnosis) == ["unexplained"]


def test_two_long_copies_among_fast_ones_show_no_slower_link(tmp_path: Path) -> None:
    stalls = (QUIET_S, [66.0], 6.0), (QUIET_S + 0.07, [1.4], 6.0), (QUIET_S + 0.3, [60.0], 6.0)
    diagnosis = copies_alone(tmp_path, (0, [1.4], 6.0), *stalls, (QUIET_S + 0.36, [1.4], 6.0))
    assert causes(diagnosis) == ["unexplained"]
    assert not [fact for fact in diagnosis.incidents[0].evidence if "memcpy-bound" in fact]


def test_copies_behind_queued_work_may_have_waited_for_it(tmp_path: Path) -> None:
    """A single one that took no longer than ever shows that the link is as fast as it was."""
    with ScriptedRun(tmp_path / "copies.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin_s, end_s, ms in ((0, QUIET_S, 2.0), (QUIET_S, LENGTH_S, 8.0)):
            calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpy": (1.0, ms)}
            step = Step(busy_ms=1 + ms, size_bytes=BYTES)
            made = run.train(trainer, begin_s, end_s, step, sync_op="cudaMemcpy", calls=calls, sizes=COPIED)
            for _, launched_s, _ in made:
                run.call(trainer, "cudaMemcpy", launched_s + 1e-3, ms, arg0=BYTES, arg2=TO_DEVICE)
        run.call(trainer, "cudaMemcpy", QUIET_S + 1, 2.0, arg0=BYTES, arg2=TO_DEVICE)
    assert causes(diagnosed_file(tmp_path / "copies.db")) == ["gpu-slower"]
