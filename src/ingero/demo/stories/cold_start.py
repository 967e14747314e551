"""A process begins: its first calls load and compile code, and take a hundred times as long as all later ones."""

from __future__ import annotations

from ingero.demo.scene import Scene, Step
from ingero.demo.stage import Stage
from ingero.demo.stories.measured import Measured, longer
from ingero.demo.stories.story import Number, Story
from ingero.ops import Kind
from ingero.store.records import Window

_FIRST_NS, _LAST_NS = 500_000_000, 3_000_000_000
_WARM = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}
_FIRST_MS = 47.6  # of the first launch of a kernel, one in each cold step
_COLD = {"cudaLaunchKernel": (80.0, 0.6), "cudaStreamSynchronize": (1.0, 5.0)}  # with it


def play(stage: Stage) -> None:
    """Recorded from its first call on; warm after two seconds."""
    with stage.slow_first_use():
        stage.record(stage.train(is_gated=True))
        stage.open_gate("the first launches load and compile their kernels")
        stage.watch(2)
    stage.watch(6)


def script(scene: Scene) -> None:
    """The same by hand."""
    trainer = scene.process(4100, "python", start_s=-1)
    for begin_s, _, _ in scene.train(trainer, 0, 1, Step(empty_ms=48, empty={"run": 48}), calls=_COLD):
        scene.call(trainer, "cudaLaunchKernel", begin_s, _FIRST_MS)
    scene.train(trainer, 1.06, 8, Step(), calls=_WARM)


def number(measured: Measured) -> Number:
    """How much longer the calls of the first second took than those of the last."""
    whole = measured.diagnosis.window
    first = Window(begin_ns=measured.incident.start_ns, end_ns=measured.incident.start_ns + _FIRST_NS)
    last = Window(begin_ns=whole.end_ns - _LAST_NS, end_ns=whole.end_ns)
    slower, text = longer(*(measured.mean_call_ns(window, Kind.LAUNCH) for window in (first, last)))
    return Number(value=slower, text=f"a launch of the first half second {text}")


STORY = Story(
    name="cold-start",
    title="The first steps of a new process",
    shows="the first use of every kernel loads and compiles it; only requests in the first seconds pay for it",
    causes=("cold-start",),
    seconds=8,
    play=play,
    script=script,
    number=number,
    scripted_between=(50, 200),
)
