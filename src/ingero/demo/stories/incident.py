"""A backup job takes the CPUs for a few seconds, and every wait for the device becomes eight times as long."""

from __future__ import annotations

from ingero.demo.scene import Scene, Step
from ingero.demo.stage import Stage
from ingero.demo.stories.measured import Measured, longer
from ingero.demo.stories.scripts import take_cpu
from ingero.demo.stories.story import Number, Story
from ingero.ops import Kind

_HOGS = "backup"
_PER_CPU, _NICE = 2, -14  # so that it wins almost always
_LATE_MS = 37.0  # beside 5 ms that the wait takes anyway


def play(stage: Stage) -> None:
    """Healthy, then the backup runs, then healthy again."""
    stage.record(stage.train())
    stage.watch(4)
    with stage.hogs(name=_HOGS, per_cpu=_PER_CPU, nice=_NICE):
        stage.watch(5)
    stage.watch(1)


def script(scene: Scene) -> None:
    """The same by hand: the device is ready, and the thread that waits for it does not get a CPU."""
    trainer = scene.process(4100, "python")
    scene.train(trainer, 0, 4, Step())
    late = Step(late_ms=0.05 + _LATE_MS, sync={"runq": _LATE_MS})
    calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 5 + _LATE_MS)}
    take_cpu(scene, trainer, scene.train(trainer, 4, 9, late, calls=calls), _LATE_MS, [(4711, _HOGS), (4712, _HOGS)])
    scene.train(trainer, 9, 10, Step())


def number(measured: Measured) -> Number:
    """How much longer a wait for the device took."""
    now_ns, usual_ns = (measured.mean_call_ns(window, Kind.SYNC) for window in (measured.window, measured.before))
    slower, text = longer(now_ns, usual_ns)
    return Number(value=slower, text=f"waiting for the device {text}")


STORY = Story(
    name="incident",
    title="A backup with a high priority starts, and training stalls",
    shows="CPU hogs start and end beside a healthy training loop; the device itself is as fast as ever",
    causes=("priority", "cpu-contention"),  # the script holds no priorities: then only who ran is known
    seconds=10,
    play=play,
    script=script,
    number=number,
    scripted_between=(7.5, 8.5),
)
