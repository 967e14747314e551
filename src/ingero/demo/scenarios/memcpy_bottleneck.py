"""Copies from memory that is not pinned block the loop, until more than a third of the time is copying."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Phase, Step
from ingero.demo.stage import LiveRun
from ingero.demo.whole_scene import FullScriptedRun
from ingero.ops import Kind
from ingero.units import format_percent

_BATCH_BYTES = 16 << 20
_COMPUTING = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}
_BASELINE_MS = 1.4  # 12 GB/s
_SLOW_MS = 4.2  # 4 GB/s


def play(run: LiveRun) -> None:
    """Runs a loop with large batches; then the copies become slow."""
    run.record(run.train(copied_bytes=_BATCH_BYTES))
    run.watch(4)
    run.to_the_end(run.slow_copies())
    run.watch(5)


def script(run: FullScriptedRun) -> None:
    """Writes the scenario as a scripted recording."""
    trainer = run.process(4100, "python")
    for begin_s, end_s, copy_ms in ((0, 5, _BASELINE_MS), (5, 9.98, _SLOW_MS)):
        copy = Step(
            idle_ms=0.3, launch_ms=0, busy_ms=copy_ms, return_delay_ms=0.02, launches=1, size_bytes=_BATCH_BYTES
        )
        calls = {"cudaMemcpy": (1.0, copy_ms)}
        copying = Phase(step=copy, sync_op="cudaMemcpy", calls=calls, sizes={"cudaMemcpy": _BATCH_BYTES})
        run.cycle(trainer, begin_s, end_s, [copying, Phase(step=Step(idle_ms=0.2, size_bytes=8), calls=_COMPUTING)])


def number(measured: Measured) -> Number:
    """The share of the time that the loop was inside copies."""
    now, baseline = (measured.share_of_wall(window, Kind.COPY) for window in (measured.window, measured.before))
    text = f"the loop was inside copies {format_percent(now)} of the time, {format_percent(baseline)} before"
    return Number(value=now, text=text)


SCENARIO = Scenario(
    name="memcpy-bottleneck",
    title="Copies take the time",
    shows="batches of 16 MiB from unpinned memory: each copy returns only when its bytes have moved",
    cause="memcpy-bound",
    seconds=10,
    play=play,
    script=script,
    number=number,
    scripted_between=(0.36, 0.40),
)
