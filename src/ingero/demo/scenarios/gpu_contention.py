"""A second job starts on the same GPU, and the steps of the first take longer by the time that it uses."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Step
from ingero.demo.stage import LiveRun
from ingero.demo.whole_scene import FullScriptedRun
from ingero.units import format_percent


def play(run: LiveRun) -> None:
    """Runs one job alone, then two."""
    run.record(run.train(), run.train(is_gated=True))
    run.watch(4)
    run.open_gate("a second job starts on the same GPU")
    run.watch(6)


def script(run: FullScriptedRun) -> None:
    """Writes the scenario as a scripted recording: the second job gets 45% of the GPU."""
    trainer, neighbor = run.process(4100, "python"), run.process(4200, "notebook")
    run.train(trainer, 0, 4, Step())
    run.train(trainer, 4, 9.98, Step(busy_ms=6 / 0.55))
    run.train(neighbor, 4, 9.97, Step(idle_ms=0.2, launch_ms=0.5, busy_ms=20, launches=40))


def number(measured: Measured) -> Number:
    """The share of the GPU that each job got."""
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
