"""A backup job takes the CPUs for a few seconds, and each GPU sync takes eight times as long."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured, longer
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Step
from ingero.demo.stage import LiveRun
from ingero.demo.whole_scene import CPUS, FullScriptedRun
from ingero.ops import Kind

_HOGS = "backup"
_PER_CPU, _NICE = 2, -14  # so that it wins almost always
_RETURN_DELAY_MS = 37.0  # beside the 5 ms of a sync


def play(run: LiveRun) -> None:
    """Runs a healthy loop, then the backup beside it, then the loop alone again."""
    run.record(run.train())
    run.watch(4)
    with run.hogs(name=_HOGS, per_cpu=_PER_CPU, nice=_NICE):
        run.watch(5)
    run.watch(1)


def script(run: FullScriptedRun) -> None:
    """Writes the scenario as a scripted recording: the GPU is done, and the waiting thread does not get a CPU."""
    trainer = run.process(4100, "python")
    run.train(trainer, 0, 4, Step())
    hogs = tuple((4711 + at, _HOGS) for at in range(_PER_CPU * CPUS))
    run.neighbors(hogs, 4, 9, nice=_NICE)
    run.train(
        trainer, 4, 9, Step(return_delay_ms=0.05 + _RETURN_DELAY_MS, sync={"runq": _RETURN_DELAY_MS}, ran_instead=hogs)
    )
    run.train(trainer, 9, 9.99, Step())


def number(measured: Measured) -> Number:
    """How many times as long a GPU sync took as before."""
    now_ns, baseline_ns = (measured.mean_call_ns(window, Kind.SYNC) for window in (measured.window, measured.before))
    slower, text = longer(now_ns, baseline_ns)
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
