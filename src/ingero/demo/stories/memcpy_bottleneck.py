"""Copies from memory that is not pinned block the loop, until more than a third of the time is copying."""

from __future__ import annotations

from ingero.demo.scene import Scene, Step
from ingero.demo.stage import Stage
from ingero.demo.stories.measured import Measured
from ingero.demo.stories.story import Number, Story
from ingero.ops import Kind
from ingero.units import format_percent

_BATCH_BYTES = 16 << 20
_USUAL_MS = 1.4  # 12 GB/s
_SLOW_MS = 4.2  # 4 GB/s


def play(stage: Stage) -> None:
    """Large batches; then the copies become slow."""
    stage.record(stage.train(copied_bytes=_BATCH_BYTES))
    stage.watch(4)
    with stage.slow_copies():
        stage.watch(5)


def script(scene: Scene) -> None:
    """The same by hand."""
    trainer = scene.process(4100, "python")
    for begin_s, end_s, copy_ms in ((0, 5, _USUAL_MS), (5, 10, _SLOW_MS)):
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpy": (1.0, copy_ms), "cudaStreamSynchronize": (1.0, 5.0)}
        step = Step(busy_ms=6.3 + copy_ms, enqueue_ms=1 + copy_ms, enqueue={"sleep": copy_ms})
        scene.train(trainer, begin_s, end_s, step, calls=calls, sizes={"cudaMemcpy": _BATCH_BYTES})


def number(measured: Measured) -> Number:
    """Which share of the time went into copies."""
    now, usual = (measured.share_of_wall(window, Kind.COPY) for window in (measured.window, measured.before))
    text = f"the loop was inside copies {format_percent(now)} of the time, {format_percent(usual)} before"
    return Number(value=now, text=text)


STORY = Story(
    name="memcpy-bottleneck",
    title="Copies take the time",
    shows="batches of 16 MiB from memory that is not pinned: each copy returns only when its bytes have moved",
    causes=("memcpy-bound",),
    seconds=10,
    play=play,
    script=script,
    number=number,
    scripted_between=(0.36, 0.40),
)
