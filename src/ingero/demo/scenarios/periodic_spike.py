"""One step in 200 takes much longer than all others: a callback that the mean hides."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Actor, Step
from ingero.demo.stage import Stage
from ingero.demo.whole_scene import WholeScene
from ingero.units import format_ns

_EVERY = 200
_SPIKE_MS = 300.0
_LINE = (("/srv/job/train.py", 88, "save_checkpoint"), ("/srv/job/train.py", 140, "main"))


def play(stage: Stage) -> None:
    """Healthy, then a step in 200 sleeps."""
    stage.record(stage.train())
    stage.watch(3)
    with stage.spikes(every=_EVERY, ms=_SPIKE_MS):
        stage.watch(15)


def script(scene: WholeScene) -> None:
    """The same by hand."""
    trainer = scene.process(4100, "python")
    scene.train(trainer, 0, 3, Step())
    now = 3.0
    while now < 14:
        now = scene.train(trainer, now, now + (_EVERY - 1.5) * 6.55e-3, Step())[-1][2]
        now = _spike(scene, trainer, now)


def _spike(scene: WholeScene, trainer: Actor, at_s: float) -> float:
    """One long step; answers when it ended."""
    long = Step(empty_ms=0.5 + _SPIKE_MS, empty={"sleep": _SPIKE_MS}, stack=_LINE)
    return scene.train(trainer, at_s, at_s + 0.001, long)[0][2]


def number(measured: Measured) -> Number:
    """How many steps lie between two long ones."""
    every, each = measured.spikes()
    return Number(value=every, text=f"a spike every {every:.0f} steps, each {format_ns(each)} longer than the others")


SCENARIO = Scenario(
    name="periodic-spike",
    title="A spike every N steps",
    shows="a callback in one step in 200: the mean hardly moves, and a few steps hold all of the lost time",
    cause="sleep-in-loop",  # what the long steps do is a stronger proof than their rhythm
    seconds=16,
    play=play,
    script=script,
    number=number,
    scripted_between=(195, 205),
)
