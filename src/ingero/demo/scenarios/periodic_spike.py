"""One step in 200 takes much longer than all others: a callback that the mean hides."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Actor, Step
from ingero.demo.stage import LiveRun
from ingero.demo.whole_scene import FullScriptedRun
from ingero.units import format_ns

_EVERY = 200
_SPIKE_MS = 300.0
_LINE = (("/srv/job/train.py", 88, "save_checkpoint"), ("/srv/job/train.py", 140, "main"))


def play(run: LiveRun) -> None:
    """Runs a healthy loop, then one in which a step in 200 sleeps."""
    run.record(run.train())
    run.watch(3)
    with run.spikes(every=_EVERY, ms=_SPIKE_MS):
        run.watch(15)


def script(run: FullScriptedRun) -> None:
    """Writes the scenario as a scripted recording."""
    trainer = run.process(4100, "python")
    run.train(trainer, 0, 3, Step())
    now = 3.0
    while now < 14:
        now = run.train(trainer, now, now + (_EVERY - 1.5) * 6.55e-3, Step())[-1][2]
        now = _spike(run, trainer, now)


def _spike(run: FullScriptedRun, trainer: Actor, at_s: float) -> float:
    """Writes one long step; returns its end in seconds."""
    long = Step(idle_ms=0.5 + _SPIKE_MS, idle={"sleep": _SPIKE_MS}, stack=_LINE)
    return run.train(trainer, at_s, at_s + 0.001, long)[0][2]


def number(measured: Measured) -> Number:
    """The number of steps from one long step to the next."""
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
