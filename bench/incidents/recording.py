"""Makes one labeled recording: the workload, the agent beside it, and the disturbance on its schedule."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.agent import BenchError
from bench.incidents.agent import tracing
from bench.incidents.ambient import MAX_OTHERS, Usage
from bench.incidents.plan.kinds import KINDS
from bench.incidents.scenario import Planned, Scenario
from bench.incidents.workload import WorkloadRun, completions, gate_of, in_dose, running
from bench.timers import longest_pauses_ns, watched_timers
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads import steps
from ingero.units import SECOND_NS

DATABASE, LABEL, TIMERS = "recording.db", "label.json", "timers"
DRIFT_STEPS = 5
_TIMER_NS = 20_000_000
_EXIT_CODE = 49  # of the fields of /proc/PID/stat after the name
_SCRATCH = Path("/var/tmp")  # on a disk: there is no direct I/O in memory


@dataclass(kw_only=True)
class Label:
    """The ground truth of a run beside its recording. Times are CLOCK_MONOTONIC ns; unix = mono + offset_ns.

    steps_ns: when each step ended, from the first recorded second on; first_step: the number of the first of them.
    marks: when each began, and its kind, as the program itself knows it (workloads/steps.py); empty for a server.
    stepping_pid: the process that they are of.
    spells: when the disturbance was there. culprits: its processes. own_pids: all processes of the run.
    """

    scenario: str
    seed: int
    pid: int
    begin_ns: int = 0
    end_ns: int = 0
    offset_ns: int = 0
    spells: list[tuple[int, int]] = field(default_factory=list)
    culprits: list[int] = field(default_factory=list)
    own_pids: list[int] = field(default_factory=list)
    first_step: int = 0
    steps_ns: list[int] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    stepping_pid: int = 0
    live: list[tuple[int, str]] = field(default_factory=list)
    drops: dict[str, int] = field(default_factory=dict)
    others: float = 0.0  # share of all CPUs that nobody of the run used
    stolen_s: float = 0.0  # by the hypervisor, of all CPUs together; in pauses that no steal clock tells, at most

    @property
    def is_disturbed(self) -> bool:
        """Whether others may have caused what is seen."""
        return self.others > MAX_OTHERS

    def write(self, folder: Path) -> None:
        """Put it beside the recording."""
        (folder / LABEL).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Label:
        """Read it again."""
        content = json.loads((folder / LABEL).read_text())
        for name in ("spells", "live", "marks"):
            content[name] = [tuple(pair) for pair in content.get(name, ())]
        return cls(**content)


def record(planned: Planned, keep: Path) -> Label:
    """Run it once; its recording and label lie in its folder below `keep` afterwards.

    Raises:
        BenchError: the workload failed, or ended before it was recorded, so the run cannot be judged.
    """
    before = Usage.now()
    with TemporaryDirectory(prefix="ingero-incidents-", dir=_SCRATCH) as name:
        folder = Path(name)
        label = _run(planned, folder)
        after = Usage.now()
        label.others = after.others_since(before)
        paused_s = longest_pauses_ns(folder / TIMERS, period_ns=_TIMER_NS) / SECOND_NS
        label.stolen_s = max(after.stolen_s - before.stolen_s, paused_s)
        kept = planned.folder(keep)
        kept.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / DATABASE, kept / DATABASE)
        label.write(kept)
    return label


@contextmanager
def database_of(folder: Path) -> Iterator[Path]:
    """The kept recording, unpacked if it is packed."""
    packed = folder / f"{DATABASE}.gz"
    if not packed.exists():
        yield folder / DATABASE
        return
    with TemporaryDirectory(prefix="ingero-incidents-") as name:
        plain = Path(name) / DATABASE
        with gzip.open(packed, "rb") as source, plain.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        yield plain


def pack(folder: Path) -> None:
    """Compress a kept recording, to a fifth."""
    plain = folder / DATABASE
    with plain.open("rb") as source, gzip.open(folder / f"{DATABASE}.gz", "wb", compresslevel=3) as copy:
        shutil.copyfileobj(source, copy)
    plain.unlink()


def _run(planned: Planned, folder: Path) -> Label:
    scenario = planned.scenario
    with running(scenario, planned.seed, folder) as started, ExitStack() as stack:
        label = Label(scenario=scenario.name, seed=planned.seed, pid=started.workload.pid)
        label.own_pids = sorted(started.pids())
        if scenario.schedule.is_from_start:
            stack.enter_context(_spell(started, label))
        time.sleep(1)  # the first steps fill caches and queues
        driver = environment(build(), ctl=folder / "gpu.knobs")
        stack.enter_context(watched_timers(folder / TIMERS, period_ns=_TIMER_NS))
        with tracing(folder / DATABASE, started.traced, driver, planned.price) as live:
            label.begin_ns = time.monotonic_ns()
            label.offset_ns = time.time_ns() - label.begin_ns
            if scenario.is_cold:
                gate_of(folder).touch()
            _follow(scenario, started, label)
            label.end_ns = time.monotonic_ns()
            failed = "" if _may_end(scenario) else failure_of(label.pid)
            stack.close()
        _note_steps(label, completions(started.log))
        if scenario.workload != "serve":
            label.stepping_pid = started.traced[0]
            label.marks = [mark for mark in steps.marks(started.log) if label.begin_ns <= mark[0] <= label.end_ns]
        if failed or not label.steps_ns:
            raise BenchError(f"the workload {failed or 'made no step while it was recorded'}")
        label.live = list(live.incidents)
        label.drops = live.drops
        label.own_pids = sorted({*label.own_pids, *started.pids(), *label.culprits, live.process.pid})
    return label


def _may_end(scenario: Scenario) -> bool:
    return not scenario.is_control and any(KINDS[one.kind].ends_workload for one in scenario.disturbances)


def failure_of(pid: int) -> str:
    """How a child ended that nobody has waited for; "" if it lives, has done its work, or was killed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = int(fields[_EXIT_CODE]) >> 8  # as wait(2) has it
    return f"ended with status {status}" if fields[0] == "Z" and status else ""


def _follow(scenario: Scenario, started: WorkloadRun, label: Label) -> None:
    """Let the schedule pass."""
    schedule = scenario.schedule
    time.sleep(schedule.before_s)
    end_s = time.monotonic() + schedule.with_s
    if schedule.is_from_start:
        time.sleep(schedule.with_s)
    elif schedule.drifts:
        _drift(scenario, started, label)
    else:
        while (left_s := end_s - time.monotonic()) > 0.1:
            with _spell(started, label):
                time.sleep(min(schedule.on_s or left_s, left_s))
            time.sleep(max(0.0, min(schedule.off_s, end_s - time.monotonic())))
    time.sleep(schedule.after_s)


def _drift(scenario: Scenario, started: WorkloadRun, label: Label) -> None:
    for step in range(1, DRIFT_STEPS + 1):
        recipes = tuple(in_dose(scenario, number, step / DRIFT_STEPS) for number in range(len(scenario.disturbances)))
        with _spell(started, label, recipes):
            time.sleep(scenario.schedule.with_s / DRIFT_STEPS)


@contextmanager
def _spell(started: WorkloadRun, label: Label, recipes: tuple[Any, ...] | None = None) -> Iterator[None]:
    """Applies all disturbances within the block; a process that has died is not restored."""
    begin_ns = time.monotonic_ns()
    with suppress(ProcessLookupError), ExitStack() as stack:
        for recipe in started.recipes if recipes is None else recipes:
            label.culprits += stack.enter_context(recipe.apply(started.workload)).culprits
        yield
    label.spells.append((begin_ns, time.monotonic_ns()))


def _note_steps(label: Label, ended_ns: list[int]) -> None:
    label.first_step = sum(1 for t_ns in ended_ns if t_ns < label.begin_ns)
    label.steps_ns = [t_ns for t_ns in ended_ns if label.begin_ns <= t_ns <= label.end_ns]
