"""A log shipper shares the CPUs with a training loop: the slowest steps take three times as long."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured, longer
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Step
from ingero.demo.stage import LiveRun
from ingero.demo.whole_scene import CPUS, FullScriptedRun

_HOGS = "log-shipper"
_PER_CPU = 6  # with one, the p99 is 1.3 to 1.5 times as long: Linux 6.18 lets a thread that wakes up run soon
_RETURN_DELAY_MS = 13.0
_STEPS_BETWEEN = 9


def play(run: LiveRun) -> None:
    """Healthy, then the shipper runs until the end."""
    run.record(run.train())
    run.watch(4)
    with run.hogs(name=_HOGS, per_cpu=_PER_CPU):
        run.watch(6)


def script(run: FullScriptedRun) -> None:
    """Writes the scenario as a scripted recording: one step in ten waits for a CPU."""
    trainer = run.process(4100, "python")
    run.train(trainer, 0, 4, Step())
    hogs = tuple((4711 + at, _HOGS) for at in range(_PER_CPU * CPUS))
    run.neighbors(hogs, 4, 10)
    late = Step(return_delay_ms=0.05 + _RETURN_DELAY_MS, sync={"runq": _RETURN_DELAY_MS}, ran_instead=hogs)
    now = 4.0
    while now < 10:
        now = run.train(trainer, now, now + (_STEPS_BETWEEN - 0.5) * 6.55e-3, Step())[-1][2]
        now = run.train(trainer, now, now + 0.001, late)[-1][2]


def number(measured: Measured) -> Number:
    """How many times as long the step p99 was as before."""
    now_ns, baseline_ns = (measured.step_p99_ns(window) for window in (measured.window, measured.before))
    slower, text = longer(now_ns, baseline_ns)
    return Number(value=slower, text=f"step p99 {text}")


SCENARIO = Scenario(
    name="cpu-contention",
    title="A neighbor on the CPU makes the slowest steps slower",
    shows="busy processes on every CPU: steps wait for their turn, and the p99 shows it more than the median does",
    cause="cpu-contention",
    seconds=10.1,
    play=play,
    script=script,
    number=number,
    scripted_between=(2.7, 3.3),
)
