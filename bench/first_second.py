"""Is what makes a program slow from its first second on reported without anything to compare with, with line and price?

Eight kinds, each recorded from its first call on; beside each the same program without it, which must stay silent. What
the kind costs is known from the programs' own logs: the mean step with it beside the one without, or the steps that it
makes longer. The price is right within 15% of that.

Run as root: python -m bench.first_second [KIND ...] [--runs N] [--seconds S] [--unlimited]
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bench.agent import require_quiet_kernel
from bench.hangs import DEFAULT_LIMITS
from bench.incidents.ambient import favored
from ingero import open_recording
from ingero.demo.faults import cgroups
from ingero.demo.gpusim.knobs import DEFAULTS, Knobs
from ingero.demo.workloads import lifecycle, steps
from ingero.demo.workloads.program import Program
from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.findings import Diagnosis, Incident
from tests.integration.targets import Simulation, simulation
from tests.integration.tracing import tracing

_NEW_WORKERS = Path(__file__).parent / "new_workers_program.py"
_SETTLED = 20  # steps after which a program has its memory, modules and workers
_PASS_STEPS, _START_MS = 40, 250.0
_PRICE = 0.15
_COMPILES_US = 8_000_000.0
_Log = Sequence[steps.Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to be slow from the start on.

    arguments, without: of the training program with and without it; None: it is the program of new workers. knobs: of
    the simulated GPU while it is there. knob: of the program. line: a pattern of where. is_once: it ends by itself.
    is_limited: by the agent's default limits; without launches, which they give up at so many calls, it is not checked.
    """

    causes: frozenset[str]
    line: str
    arguments: tuple[str, ...] = ()
    without: tuple[str, ...] | None = None
    knobs: tuple[tuple[str, float], ...] = ()
    knob: str = ""
    is_once: bool = False
    is_limited: bool = True


_LOADS_ITSELF = ("--workers", "0", "--cpu-ms", "0.2")
KINDS = {
    "hidden sync": Kind(
        causes=frozenset({"unexpected-sync"}),
        line=r"train\.py:\d+",
        arguments=(*_LOADS_ITSELF, "--norms", "120", "--read-norms"),
        without=(*_LOADS_ITSELF, "--norms", "120"),
        is_limited=False,
    ),
    "empty cache in each step": Kind(
        causes=frozenset({"allocation-churn"}),
        line=r"train\.py:\d+",
        arguments=(*_LOADS_ITSELF, "--us", "100", "--churn"),
        without=(*_LOADS_ITSELF, "--us", "100"),
        knobs=(("malloc_us", 4000.0),),  # as of all blocks of a cache
    ),
    "too few workers": Kind(
        causes=frozenset({"data-starvation"}),
        line=r"dataset\.py:\d+",
        arguments=("--cpu-ms", "16"),
        without=("--cpu-ms", "0.5"),
    ),
    "no worker": Kind(
        causes=frozenset({"data-starvation"}),
        line=r"dataset\.py:\d+",
        arguments=("--workers", "0", "--cpu-ms", "8"),
        without=_LOADS_ITSELF,
    ),
    "workers made anew": Kind(causes=frozenset({"worker-restarts"}), line=r"\.py:\d+"),
    "sleep in each step": Kind(
        causes=frozenset({"sleep-in-loop"}),
        line=r"callbacks\.py:\d+",
        arguments=_LOADS_ITSELF,
        without=_LOADS_ITSELF,
        knob="stall_ms 5\n",
    ),
    "first launch compiles": Kind(
        causes=frozenset({"cold-start"}),
        line=r"\.py:\d+",
        arguments=_LOADS_ITSELF,
        without=_LOADS_ITSELF,
        knobs=(("first_launch_us", _COMPILES_US),),
        is_once=True,
    ),
    "module load compiles": Kind(
        causes=frozenset({"cold-start"}),
        line=r"\.py:\d+",
        arguments=_LOADS_ITSELF,
        without=_LOADS_ITSELF,
        knobs=(("module_load_us", _COMPILES_US),),
        is_once=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded program. shown: causes of incidents that were opened while it ran."""

    log: _Log
    diagnosis: Diagnosis
    shown: frozenset[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs them and prints what came of each; 1 if one was not reported, at a wrong price, or a quiet run was not."""
    parser = argparse.ArgumentParser(prog="first_second", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="begin of a kind's name")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--unlimited", action="store_true", help="nothing limits the agent (default: its own limits)")
    options = parser.parse_args(arguments)
    require_quiet_kernel()
    kinds = {n: k for n, k in KINDS.items() if not options.kinds or n.startswith(tuple(options.kinds))}
    right: Counter[str] = Counter()
    small = loud = 0
    with lifecycle.until_stopped(), nullcontext() if cgroups.missing("cpu") else favored():
        for name, kind in kinds.items():
            for _ in range(options.runs):
                slow, quiet = (_recorded(kind, options, is_there=is_there) for is_there in (True, False))
                problems = _problems(kind, slow, quiet)
                spoken = sorted({one.cause for one in quiet.diagnosis.incidents})
                is_small = not problems and not kind.is_once and _found(kind, slow) is None
                small += is_small
                right[name] += not problems and not is_small
                loud += bool(spoken)
                judged = "WRONG" if problems else "small" if is_small else "right"
                print(f"{judged}  {name}: {'; '.join(problems) or _said(kind, slow)}")
                print(f"       without it: {', '.join(spoken) or 'silent'}", flush=True)
    runs = options.runs * len(kinds)
    print(f"\nreported with line and price: {right.total()} of {runs - small}; {small} cost too little to be reported")
    print(f"incidents in quiet runs: {loud} of {runs}")
    return 0 if right.total() == runs - small and not loud else 1


def _problems(kind: Kind, slow: Run, quiet: Run) -> list[str]:
    found = _found(kind, slow)
    others = sorted({one.cause for one in slow.diagnosis.incidents} - kind.causes)
    problems = [f"also {', '.join(others)}"] if others else []
    if kind.is_once:
        if not kind.causes & slow.shown:
            problems.append("not said while it lasted")
        return problems
    truth = _truth(kind, slow.log, quiet.log)
    if found is None and truth < BOTTLENECK_RATIO:
        return problems
    if found is None:
        return [f"not reported; it costs {truth:.0%} of the time", *problems]
    if not re.search(kind.line, str(found.line)):
        problems.append(f"at {found.line}")
    if abs(found.lost_ratio - truth) > _PRICE * truth:
        problems.append(f"price {found.lost_ratio:.1%} of the time, is {truth:.1%}")
    return problems


def _found(kind: Kind, run: Run) -> Incident | None:
    mine = [one for one in run.diagnosis.incidents if one.cause in kind.causes]
    return max(mine, key=lambda one: one.lost_ns, default=None)


def _said(kind: Kind, run: Run) -> str:
    found = _found(kind, run)
    return found.summary if found else "said while it lasted" if kind.is_once else "costs too little to be reported"


def _truth(kind: Kind, slow: _Log, quiet: _Log) -> float:
    """The share of the time that it takes."""
    if kind.without is None:
        median_ns = statistics.median(one.data_ns for one in slow)
        longer = sum(one.data_ns - median_ns for one in slow[_PASS_STEPS:] if one.step % _PASS_STEPS == 0)
        return float(longer / sum(one.step_ns for one in slow[_PASS_STEPS:]))
    means = [statistics.mean(one.step_ns for one in log[_SETTLED:]) for log in (quiet, slow)]
    return 1 - means[0] / means[1]


def _recorded(kind: Kind, options: argparse.Namespace, *, is_there: bool) -> Run:
    with tempfile.TemporaryDirectory(prefix="first-") as name:
        folder = Path(name)
        simulated, gate, log = simulation(folder), folder / "gate", folder / "log"
        with Knobs(simulated.knobs) as knobs:
            for knob, value in kind.knobs if is_there else ():
                setattr(knobs, knob, value)
            limits = DEFAULT_LIMITS if kind.is_limited and not options.unlimited else ()
            with (
                _program(kind, simulated, gate, log, options.seconds, is_there=is_there) as program,
                tracing(folder, pids=[program.pid], options=limits) as tracer,
            ):
                gate.touch()
                if kind.is_once and is_there:
                    time.sleep(_COMPILES_US / 2e6)  # the first one has begun, and no other one is to
                    for knob, _ in kind.knobs:
                        setattr(knobs, knob, DEFAULTS[knob])
                program.finish()
                tracer.wait_for("finished")
        opened = [one["incident"]["cause"] for one in tracer.messages if one["type"] == "incident_opened"]
        with open_recording(tracer.database) as recording:
            return Run(log=steps.read(log), diagnosis=recording.diagnose(), shown=frozenset(opened))


@contextmanager
def _program(
    kind: Kind, simulated: Simulation, gate: Path, log: Path, seconds: float, *, is_there: bool
) -> Iterator[Program]:
    knob = simulated.folder / "knob"
    if kind.without is None:
        words = [_NEW_WORKERS, gate, log, seconds, _PASS_STEPS, _START_MS, int(not is_there)]
        program = Program([sys.executable, *map(str, words)], environment=simulated.environment)
    else:
        if kind.knob and is_there:
            knob.write_text(kind.knob)
        more = kind.arguments if is_there else kind.without
        words = [*more, "--seconds", seconds, "--gate", gate, "--out", log, "--knob", knob]
        program = Program.module("train", *words, environment=simulated.environment)
    with program:
        program.wait_for("loaded")
        yield program


if __name__ == "__main__":
    sys.exit(main())
