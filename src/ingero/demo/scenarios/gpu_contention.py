"""A second job starts on the same GPU, and the first one's steps take longer by just that."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Step
from ingero.demo.stage import Stage
from ingero.demo.whole_scene import WholeScene
from ingero.units import format_percent


def play(stage: Stage) -> None:
    """One job alone, then two."""
    stage.record(stage.train(), stage.train(is_gated=True))
    stage.watch(4)
    stage.open_gate("a second job starts on the same GPU")
    stage.watch(6)


def script(scene: WholeScene) -> None:
    """The same by hand: the second job gets 45% of the GPU."""
    trainer, thief = scene.process(4100, "python"), scene.process(4200, "notebook")
    scene.train(trainer, 0, 4, Step())
    scene.train(trainer, 4, 9.98, Step(busy_ms=6 / 0.55))
    scene.train(thief, 4, 9.97, Step(empty_ms=0.2, enqueue_ms=0.5, busy_ms=20, launches=40))


def number(measured: Measured) -> Number:
    """Which share of the GPU each of them got."""
    share = measured.fact("share of the GPU (ratio)")
    mine = measured.incident.affected[0]
    other = measured.incident.culprits[0]
    text = (
        f"while both had work, {mine.name} [{mine.pid}] got {format_percent(share)} of the GPU and "
        f"{other.name} [{other.pid}] {format_percent(1 - share)}"
    )
    return Number(value=share, text=text)


SCENARIO = Scenario(
    name="gpu-contention",
    title="Two jobs on one GPU",
    shows="a second process works on the same GPU: nothing on the host explains the lost time, its work does",
    cause="gpu-contention",
    seconds=10,
    play=play,
    script=script,
    number=number,
    scripted_between=(0.53, 0.57),
)
