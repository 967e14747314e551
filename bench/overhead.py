"""What tracing costs a training loop, and what the agent itself uses: the same loop untraced and traced in turn.

One trainer runs all the time on the simulated GPU. In each round it is left alone, traced, and traced with launches
probed in the driver only; the order changes from round to round. Ratios are taken inside a round, so that what else
the machine does cancels, and the median of the rounds is shown. Two loops: one that waits for its device, at 39,000
probed calls a second, and one that is held up by its own launches. No budget limits the agent, except with --overhead
limiter: then the third way is the default budgets, and what the agent itself says that it costs is shown, too. With
--traps both
ways are also taken with probes that do nothing: what the kernel's traps alone cost on this machine.

Run as root: python -m bench.overhead [--rounds N] [--seconds S] [--loop gpu|launch] [--overhead-limiter] [--traps]
[--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from bench.agent import Agent, agent, cpu_s, peak_rss_bytes, require_quiet_kernel
from bench.traps import empty_probes
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads import steps
from ingero.demo.workloads.program import Program

# the extra launches bring the loop to 39,000 probed calls a second, the rate at which the original was measured
LOOPS: dict[str, tuple[str, Sequence[object]]] = {
    "gpu": ("waits for its device", ("--launches", 9)),
    "launch": ("held up by its launches", ("--us", 2, "--cpu-ms", 0.2)),  # else its data worker holds it up
}
MODES: dict[str, Sequence[str] | None] = {
    "untraced": None,
    "traced": (),
    "launches at the driver only": ("--launches-at=driver",),
}
TRAPS = {"traps alone": False, "traps alone, launches at the driver only": True}
GOVERNED = {"with the default budgets": ("--max-overhead=2%", "--max-cpu=5%")}
SETTLE_SECONDS = 2  # the first readings set the thresholds; until then more calls are recorded
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One mode in one round. Times of steps in ms; losses of the measured seconds, and from attach to detach."""

    mode: str
    step_count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    loop_cpu_ms: float  # of the training thread, per step
    agent_cpu_percent: float = 0.0
    agent_rss_bytes: int = 0
    probed_calls_per_s: float = 0.0
    bytes_per_call: float = 0.0
    bytes_per_s: float = 0.0
    own_overhead_percent: float = 0.0  # of the thread's time, by the agent's own account
    level: int = 0  # the highest
    from_attach_ms: float = 0.0  # mean of the steps since the first probe was attached, the first seconds included
    level_s: dict[int, float] = field(default_factory=dict)  # since then, time by highest level
    level_changes: int = 0
    drops: dict[str, int] = field(default_factory=dict)
    all_losses: dict[str, int] = field(default_factory=dict)


class Trainer:
    """The running loop, and what its log says of a time range."""

    def __init__(self, program: Program, log: Path) -> None:
        self.program, self._log = program, log

    def cpu_s(self) -> float:
        """CPU time of the thread that trains."""
        pid = self.program.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def turn(self, mode: str, began: tuple[int, float], ended: tuple[int, float]) -> Turn:
        """The steps between two moments (monotonic ns, CPU s)."""
        found = [step.step_ns / 1e6 for step in steps.between(steps.read(self._log), began[0], ended[0])]
        return Turn(
            mode=mode,
            step_count=len(found),
            mean_ms=statistics.fmean(found),
            p50_ms=statistics.median(found),
            p99_ms=float(np.percentile(found, 99)),
            loop_cpu_ms=(ended[1] - began[1]) * 1e3 / len(found),
        )

    def now(self) -> tuple[int, float]:
        """This moment, for `turn`."""
        return time.monotonic_ns(), self.cpu_s()


def untraced(trainer: Trainer, seconds: float) -> Turn:
    """A time range on its own."""
    began = trainer.now()
    time.sleep(seconds)
    return trainer.turn("untraced", began, trainer.now())


def trapped(trainer: Trainer, folder: Path, mode: str, seconds: float) -> Turn:
    """A time range with probes that do nothing."""
    with empty_probes(trainer.program.pid, folder, launches_at_driver=TRAPS[mode]):
        time.sleep(1)
        return replace(untraced(trainer, seconds), mode=mode)


def traced(trainer: Trainer, folder: Path, mode: str, options: Sequence[str], seconds: int) -> Turn:
    """A time range beside an agent that has settled; its start and its end are left out."""
    with agent(folder, pids=[trainer.program.pid], options=options) as recording:
        for _ in range(SETTLE_SECONDS):
            recording.wait_for("second")
        began, agent_cpu_s = trainer.now(), cpu_s(recording.pid)
        drops: Counter[str] = Counter()
        seconds_read = [recording.wait_for("second") for _ in range(seconds)]
        for second in seconds_read:
            drops.update(second["drops"])
        ended, agent_cpu_s = trainer.now(), cpu_s(recording.pid) - agent_cpu_s
        levels = time_at_levels(recording)
        rss = peak_rss_bytes(recording.pid)
        all_losses = recording.stop()
    return replace(
        trainer.turn(mode, began, ended),
        agent_cpu_percent=agent_cpu_s / (ended[0] - began[0]) * 1e11,
        agent_rss_bytes=rss,
        own_overhead_percent=100 * statistics.fmean(second["overhead_ratio"] for second in seconds_read),
        level=max(second["level"] for second in seconds_read),
        drops=dict(drops),
        all_losses=all_losses,
        from_attach_ms=trainer.turn(mode, (attached_ns(recording), 0.0), ended).mean_ms,
        level_s=levels,
        level_changes=level_changes(recording),
        **recorded_figures(recording),
    )


def time_at_levels(recording: Agent) -> dict[int, float]:
    """Seconds by the highest level that was in force in them."""
    found: Counter[int] = Counter()
    for second in recording.messages:
        if second["type"] == "second":
            found[second["level"]] += second["elapsed_s"]
    return dict(found)


def attached_ns(recording: Agent) -> int:
    """The monotonic time just before the first probe is attached, after the limiter has measured the probe cost."""
    unix_ns = one_number(recording, "SELECT min(time_ns) FROM raw_overhead_levels")
    return unix_ns - time.time_ns() + time.monotonic_ns()


def level_changes(recording: Agent) -> int:
    """How often the highest level changed."""
    before = "SELECT level, lag(level) OVER (ORDER BY id) AS before FROM raw_overhead_levels"
    return one_number(recording, f"SELECT count(*) FROM ({before}) WHERE level <> before")


def one_number(recording: Agent, query: str) -> int:
    """The number that a query of the recording returns."""
    with apsw.Connection(str(recording.database), flags=apsw.SQLITE_OPEN_READONLY) as db:
        (answer,) = next(iter(db.execute(query)))
    return int(answer)


def recorded_figures(recording: Agent) -> dict[str, Any]:
    """The calls in the recording, and the bytes written for them."""
    size = recording.database.stat().st_size
    with apsw.Connection(str(recording.database), flags=apsw.SQLITE_OPEN_READONLY) as db:
        query = "SELECT sum(count), sum(count + nested) FROM raw_op_stats"
        calls, probed = next(iter(db.execute(query)))
    recorded_s = sum(message["elapsed_s"] for message in recording.messages if message["type"] == "second")
    recording.database.unlink()
    return {
        "probed_calls_per_s": probed / recorded_s,
        "bytes_per_call": size / calls,
        "bytes_per_s": size / recorded_s,
    }


def measure(loop: str, folder: Path, *, rounds: int, seconds: int, modes: Sequence[str]) -> list[list[Turn]]:
    """Runs all rounds of a loop; each round has a turn of every mode."""
    log = folder / f"{loop}.jsonl"
    variables = {**os.environ, **environment(build(), ctl=folder / f"{loop}.knobs", sched="block")}
    arguments = ("--seconds", HOUR_S, "--out", log, *LOOPS[loop][1])
    found = []
    with Program.module("train", *arguments, environment=variables) as program:
        program.wait_for("ready")
        trainer = Trainer(program, log)
        time.sleep(1)
        for number in range(rounds):
            turns = {}
            for mode in (*modes[number % len(modes) :], *modes[: number % len(modes)]):
                turns[mode] = _turn(trainer, folder, mode, seconds)
            found.append([turns[mode] for mode in modes])
    return found


def _turn(trainer: Trainer, folder: Path, mode: str, seconds: int) -> Turn:
    if mode in TRAPS:
        return trapped(trainer, folder, mode, seconds)
    options = {**MODES, **GOVERNED}[mode]
    return untraced(trainer, seconds) if options is None else traced(trainer, folder, mode, options, seconds)


def median(rounds: Sequence[Sequence[Turn]], index: int, name: str) -> float:
    """The median over the rounds of one figure of one mode."""
    return statistics.median(float(getattr(turns[index], name)) for turns in rounds)


def added_percent(rounds: Sequence[Sequence[Turn]], index: int, name: str) -> float:
    """The median overhead (percent) of a mode against the untraced turn of the same round."""
    ratios = (float(getattr(turns[index], name) / getattr(turns[0], name)) for turns in rounds)
    return statistics.median(100 * (ratio - 1) for ratio in ratios)


def is_loss(counter: str) -> bool:
    """Whether a counter says that something is missing; the others say what was repaired or could not be told."""
    return counter.startswith("rows_lost") or counter.endswith(("_full", "_exhausted", "_failed", "_overflow"))


def show(loop: str, rounds: Sequence[Sequence[Turn]]) -> None:
    """Prints a loop for people."""
    print(f"\nA loop {LOOPS[loop][0]}: {len(rounds)} rounds, medians")
    head = (
        "step mean",
        "p50",
        "p99",
        "CPU/step",
        "agent CPU",
        "memory",
        "probed calls",
        "bytes/call",
        "written",
        "says itself",
        "level",
    )
    print(f"{'':40}" + "".join(f"{name:>19}" for name in head[:4]) + "".join(f"{name:>14}" for name in head[4:]))
    for index, turn in enumerate(rounds[0]):
        cells = []
        for name in ("mean_ms", "p50_ms", "p99_ms", "loop_cpu_ms"):
            beside = f" {added_percent(rounds, index, name):+6.1f} %" if index else ""
            cells.append(f"{median(rounds, index, name):.3f} ms{beside}")
        line = f"{turn.mode:40}" + "".join(f"{cell:>19}" for cell in cells)
        if index and turn.mode not in TRAPS:
            line += f"{median(rounds, index, 'agent_cpu_percent'):12.2f} %"
            line += f"{max(turns[index].agent_rss_bytes for turns in rounds) / 1e6:11.0f} MB"
            line += f"{median(rounds, index, 'probed_calls_per_s'):12,.0f}/s"
            line += f"{median(rounds, index, 'bytes_per_call'):14.1f}"
            line += f"{median(rounds, index, 'bytes_per_s') / 1e3:9.0f} kB/s"
            line += f"{median(rounds, index, 'own_overhead_percent'):12.2f} %"
            line += f"{median(rounds, index, 'level'):14.0f}"
        print(line)
    for index, turn in enumerate(rounds[0]):
        if turn.mode in ("untraced", *TRAPS):
            continue
        added = statistics.median(100 * (turns[index].from_attach_ms / turns[0].mean_ms - 1) for turns in rounds)
        at_levels: Counter[int] = Counter()
        for turns in rounds:
            at_levels.update(turns[index].level_s)
        shares = ", ".join(f"{level}: {share / at_levels.total():.1%}" for level, share in sorted(at_levels.items()))
        changes = statistics.fmean(turns[index].level_changes for turns in rounds)
        print(
            f"{turn.mode}, from attach on: step mean {added:+.1f} %; time by highest level {shares}; "
            f"{changes:.1f} changes a turn"
        )
        for title, name in (("while measured", "drops"), ("start and end included", "all_losses")):
            total: Counter[str] = Counter()
            for turns in rounds:
                total.update(getattr(turns[index], name))
            lost = {counter: count for counter, count in total.items() if is_loss(counter)}
            repaired = {counter: count for counter, count in total.items() if not is_loss(counter)}
            print(f"{turn.mode}, {title}: lost {lost or 0}, repaired or unknown {repaired or 0}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=12, help="of each turn (default 12)")
    parser.add_argument("--loop", choices=LOOPS, action="append", help="default: both")
    parser.add_argument(
        "--overhead-limiter", action="store_true", help="with the default budgets instead of driver launches"
    )
    parser.add_argument("--traps", action="store_true", help="also with probes that do nothing")
    parser.add_argument("--short", action="store_true", help="one round of a second, for tests")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    require_quiet_kernel()
    rounds, seconds = (1, 1) if options.short else (options.rounds, options.seconds)
    modes = [
        "untraced",
        "traced",
        *(GOVERNED if options.overhead_limiter else list(MODES)[2:]),
        *(TRAPS if options.traps else ()),
    ]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        found = {
            loop: measure(loop, Path(name), rounds=rounds, seconds=seconds, modes=modes)
            for loop in options.loop or LOOPS
        }
    if options.json:
        print(json.dumps({loop: [[asdict(turn) for turn in turns] for turns in found[loop]] for loop in found}))
        return
    for loop, turns in found.items():
        show(loop, turns)


if __name__ == "__main__":
    main()
