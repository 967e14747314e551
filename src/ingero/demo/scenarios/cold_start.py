"""A process begins: its first calls load and compile code, and take a hundred times as long as all later ones."""

from __future__ import annotations

from ingero.demo.scenarios.measured import Measured, longer
from ingero.demo.scenarios.scenario import Number, Scenario
from ingero.demo.scene import Phase, Step
from ingero.demo.stage import LiveRun
from ingero.demo.whole_scene import FullScriptedRun
from ingero.ops import Kind
from ingero.store.records import Window

_FIRST_NS, _LAST_NS = 500_000_000, 3_000_000_000
_WARM = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (2.0, 0.01), "cudaStreamSynchronize": (1.0, 5.0)}
_FIRST_MS = 47.6  # of the first launch of a kernel, the first of each cold step


def play(run: LiveRun) -> None:
    """Recorded from its first call on; warm after two seconds."""
    with run.slow_first_use():
        run.record(run.train(is_gated=True))
        run.open_gate("the first launches load and compile their kernels")
        run.watch(2)
    run.watch(6)


def script(run: FullScriptedRun) -> None:
    """Writes the scenario as a scripted recording."""
    trainer = run.process(4100, "python", start_s=-1)
    cold = Step(launch_ms=1 + _FIRST_MS, busy_ms=6 + _FIRST_MS)
    others = _WARM | {"cudaLaunchKernel": (79.0, 0.005)}
    phase = Phase(step=cold, calls=others, longest={"cudaLaunchKernel": _FIRST_MS})
    warm_s = run.cycle(trainer, 0, 1, [phase])[-1][2]
    run.train(trainer, warm_s, 7.99, Step(), calls=_WARM)


def number(measured: Measured) -> Number:
    """How many times as long the calls of the first second took as those of the last."""
    whole = measured.diagnosis.window
    first = Window(begin_ns=measured.incident.start_ns, end_ns=measured.incident.start_ns + _FIRST_NS)
    last = Window(begin_ns=whole.end_ns - _LAST_NS, end_ns=whole.end_ns)
    slower, text = longer(*(measured.mean_call_ns(window, Kind.LAUNCH) for window in (first, last)))
    return Number(value=slower, text=f"a launch of the first half second {text}")


SCENARIO = Scenario(
    name="cold-start",
    title="The first steps of a new process",
    shows="the first use of every kernel loads and compiles it; only requests in the first seconds pay for it",
    cause="cold-start",
    seconds=8,
    play=play,
    script=script,
    number=number,
    scripted_between=(50, 200),
)
