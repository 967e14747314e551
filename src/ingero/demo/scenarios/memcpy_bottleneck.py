"""Copies from memory that is not pinned block the loop, until more than a third of the time is copying."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Phase, Step
from ingero.demo.stage import Stage
from ingero.demo.whole_scene import WholeScene
from ingero.ops import Kind
from ingero.units import format_percent

_BATCH_BYTES = 16 << 20
_COMPUTING = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}
_USUAL_MS = 1.4  # 12 GB/s
_SLOW_MS = 4.2  # 4 GB/s


def play(stage: Stage) -> None:
    """Large batches; then the copies become slow."""
    stage.record(stage.train(copied_bytes=_BATCH_BYTES))
    stage.watch(4)
    stage.to_the_end(stage.slow_copies())
    stage.watch(5)


def script(scene: WholeScene) -> None:
    """The same by hand."""
    trainer = scene.process(4100, "python")
    for begin_s, end_s, copy_ms in ((0, 5, _USUAL_MS), (5, 9.98, _SLOW_MS)):
        copy = Step(empty_ms=0.3, enqueue_ms=0, busy_ms=copy_ms, late_ms=0.02, launches=1, size_bytes=_BATCH_BYTES)
        calls = {"cudaMemcpy": (1.0, copy_ms)}
        copying = Phase(step=copy, sync_op="cudaMemcpy", calls=calls, sizes={"cudaMemcpy": _BATCH_BYTES})
        scene.cycle(trainer, begin_s, end_s, [copying, Phase(step=Step(empty_ms=0.2, size_bytes=8), calls=_COMPUTING)])


def number(measured: Measured) -> Number:
    """Which share of the time went into copies."""
    now, usual = (measured.share_of_wall(window, Kind.COPY) for window in (measured.window, measured.before))
    text = f"the loop was inside copies {format_percent(now)} of the time, {format_percent(usual)} before"
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
