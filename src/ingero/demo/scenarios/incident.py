"""A backup job takes the CPUs for a few seconds, and each GPU sync takes eight times as long."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured, longer
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Step
from ingero.demo.stage import Stage
from ingero.demo.whole_scene import CPUS, WholeScene
from ingero.ops import Kind

_HOGS = "backup"
_PER_CPU, _NICE = 2, -14  # so that it wins almost always
_LATE_MS = 37.0  # beside the 5 ms of a sync


def play(stage: Stage) -> None:
    """Healthy, then the backup runs, then healthy again."""
    stage.record(stage.train())
    stage.watch(4)
    with stage.hogs(name=_HOGS, per_cpu=_PER_CPU, nice=_NICE):
        stage.watch(5)
    stage.watch(1)


def script(scene: WholeScene) -> None:
    """The same by hand: the GPU is done, and the thread that waits for it does not get a CPU."""
    trainer = scene.process(4100, "python")
    scene.train(trainer, 0, 4, Step())
    hogs = tuple((4711 + at, _HOGS) for at in range(_PER_CPU * CPUS))
    scene.neighbors(hogs, 4, 9, nice=_NICE)
    scene.train(trainer, 4, 9, Step(late_ms=0.05 + _LATE_MS, sync={"runq": _LATE_MS}, ran_instead=hogs))
    scene.train(trainer, 9, 9.99, Step())


def number(measured: Measured) -> Number:
    """How much longer a GPU sync took."""
    now_ns, usual_ns = (measured.mean_call_ns(window, Kind.SYNC) for window in (measured.window, measured.before))
    slower, text = longer(now_ns, usual_ns)
    return Number(value=slower, text=f"GPU sync {text}")


SCENARIO = Scenario(
    name="incident",
    title="A backup with a high priority starts, and training stalls",
    shows="CPU hogs start and end beside a healthy training loop; the GPU itself is as fast as before",
    cause="priority",
    seconds=10,
    play=play,
    script=script,
    number=number,
    scripted_between=(7.5, 8.5),
)
