"""What users who want the agent to stand still, grow, or miss others get: nothing that counts.

For each kind of hostile program and each seed an agent records it beside a program of somebody else, whose calls are
counted twice: by itself, and by the agent. Printed are the worst seed of each kind and what it is compared with: a run
with that other program alone. Half of the runs end by --duration, half by SIGTERM.

- recorded: share of the other's calls that are in the recording; at least 95%.
- standstill: the longest second of the loop, as a ratio to the longest of the quiet run; at most 5.
- memory: the largest of the agent and of its readers, over that of the quiet run; at most 300 MiB.
- end: from the end of the duration, or from the signal, until the agent has ended; at most 2 s.

The generators are those of the tests (tests/integration/hostile_programs.py, withheld.py).

Run as root: python -m bench.hostile [--seeds N] [--first SEED] [--seconds S] [--kind NAME ...] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.agent import Agent, BenchError, launched, peak_rss_bytes
from bench.incidents.ambient import favored
from bench.reader_memory import descendants, pss_bytes
from ingero.demo.faults import cgroups
from tests.integration import hostile_programs, withheld
from tests.integration.targets import rows, simulation

MIN_RECORDED, MAX_STILL, MAX_MORE_BYTES, MAX_END_S = 0.95, 5.0, 300 << 20, 2.0
_IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child")  # another owner of its files to the agent
_PERIOD_S = 0.2
_QUIET = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of one run. longest_s: the longest second of the loop."""

    kind: str
    seed: int
    recorded_ratio: float
    longest_s: float
    memory_bytes: int
    end_s: float
    given_up: dict[str, int]


@contextmanager
def _program(kind: Callable[[Path, Path, random.Random], list[str]], folder: Path, rng: random.Random) -> Iterator[int]:
    hostile = simulation(folder)
    (folder / "work").mkdir()
    command = [*_IN_A_CONTAINER, *kind(folder / "work", hostile.libraries, rng)]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, env=hostile.environment, stdout=nothing, stderr=nothing) as enemy:
        try:
            time.sleep(1)  # it begins before the agent does
            if enemy.poll() is not None:
                raise BenchError(f"the hostile program {kind.__name__} ended by itself")
            yield enemy.pid
        finally:
            enemy.kill()


@contextmanager
def _nobody(folder: Path, rng: random.Random) -> Iterator[None]:
    del folder, rng
    yield None


@contextmanager
def _withholding(kind: str, folder: Path, rng: random.Random) -> Iterator[int]:
    del rng
    with withheld.withholding(folder, kind) as pid:
        yield pid


KINDS = {
    **{kind.__name__: partial(_program, kind) for kind in hostile_programs.MORE_KINDS},
    **{f"memory_withheld_{kind}": partial(_withholding, kind) for kind in withheld.KINDS},
}


def run(kind: str, seed: int, seconds: float) -> Outcome:
    """Makes one run. kind: "nobody" for a quiet run."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name, ExitStack() as stack:
        ours, its = Path(name) / "ours", Path(name) / "its"
        ours.mkdir()
        its.mkdir()
        other = stack.enter_context(_other(ours))
        enemy = stack.enter_context(KINDS.get(kind, _nobody)(its, random.Random(seed)))
        return _recorded(kind, seed, seconds, Path(name) / "recording.db", other, enemy)


@contextmanager
def _other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    mine = simulation(folder)
    command = [sys.executable, "-c", hostile_programs.OTHER, str(mine.libraries / "libcudart.so.12")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=mine.environment
    ) as other:
        try:
            yield other
        finally:
            other.kill()


def _recorded(
    kind: str, seed: int, seconds: float, database: Path, other: subprocess.Popen[str], enemy: int | None
) -> Outcome:
    has_duration = seed % 2 == 0
    options = ["--stack", *([f"--duration={seconds + 1:g}s"] if has_duration else [])]
    pids = [other.pid, *([enemy] if enemy else [])]
    with launched(Agent, database, pids=pids, options=options, environment={}) as agent:
        began_s = time.monotonic()
        assert other.stdin
        other.stdin.write("\n")
        other.stdin.flush()
        readers_bytes = _largest_bytes(agent.pid, began_s + seconds)
        other.terminate()
        assert other.stdout
        made = int(other.stdout.readline())  # it stays: without anybody to trace the agent would end by itself
        own_bytes = peak_rss_bytes(agent.pid)
        due_s = began_s + seconds + 1
        if not has_duration:
            time.sleep(max(0.0, due_s - time.monotonic()))
            due_s = time.monotonic()
            agent.process.send_signal(signal.SIGTERM)
        agent.wait_for("finished")
        agent.process.wait()
        end_s = time.monotonic() - due_s
    calls = rows(
        database,
        "SELECT coalesce(sum(count), 0) FROM raw_op_stats JOIN raw_processes p USING (process) WHERE p.pid = ?",
        other.pid,
    )
    drops = agent.messages[-1]["drops"]
    return Outcome(
        kind=kind,
        seed=seed,
        recorded_ratio=calls[0][0] / made,
        longest_s=max(message["elapsed_s"] for message in agent.messages if message["type"] == "second"),
        memory_bytes=own_bytes + readers_bytes,
        end_s=end_s,
        given_up={name: count for name, count in drops.items() if "given_up" in name or "stood_still" in name},
    )


def _largest_bytes(pid: int, until_s: float) -> int:
    """The largest sum of what the processes of an agent take, itself left out."""
    largest = 0
    while time.monotonic() < until_s:
        largest = max(largest, sum(pss_bytes(one) or 0 for one in descendants(pid)))
        time.sleep(_PERIOD_S)
    return largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The worst of each figure among the seeds of one kind, beside the quiet run of the same seed."""

    kind: str
    seeds: int
    recorded_ratio: float
    still_ratio: float
    longest_s: float
    more_bytes: int
    end_s: float
    failed_seeds: tuple[int, ...]


def worst_of(kind: str, outcomes: list[Outcome], quiet: dict[int, Outcome]) -> Worst:
    """The worst figures of the runs of one kind."""
    compared = [(one, quiet[one.seed]) for one in outcomes]
    return Worst(
        kind=kind,
        seeds=len(outcomes),
        recorded_ratio=min(one.recorded_ratio for one in outcomes),
        still_ratio=max(one.longest_s / calm.longest_s for one, calm in compared),
        longest_s=max(one.longest_s for one in outcomes),
        more_bytes=max(one.memory_bytes - calm.memory_bytes for one, calm in compared),
        end_s=max(one.end_s for one in outcomes),
        failed_seeds=tuple(one.seed for one, calm in compared if not _is_kept(one, calm)),
    )


def _is_kept(one: Outcome, calm: Outcome) -> bool:
    return (
        one.recorded_ratio >= MIN_RECORDED
        and one.longest_s <= MAX_STILL * calm.longest_s
        and one.memory_bytes - calm.memory_bytes <= MAX_MORE_BYTES
        and one.end_s <= MAX_END_S
    )


def _print(worst: list[Worst], quiet: dict[int, Outcome]) -> None:
    calm = list(quiet.values())
    print(
        f"quiet runs: {len(calm)}, recorded {min(one.recorded_ratio for one in calm):.1%}, longest second "
        f"{max(one.longest_s for one in calm):.2f} s, {max(one.memory_bytes for one in calm) / 2**20:.0f} MiB, "
        f"end {max(one.end_s for one in calm):.2f} s"
    )
    print(f"{'worst of each':24} seeds  recorded  standstill (longest)     memory     end")
    for one in worst:
        failed = f"  BROKEN with seeds {', '.join(map(str, one.failed_seeds))}" if one.failed_seeds else ""
        print(
            f"{one.kind:24} {one.seeds:5} {one.recorded_ratio:9.1%} {one.still_ratio:7.2f} ({one.longest_s:5.2f} s) "
            f"{one.more_bytes / 2**20:+10.0f} MiB {one.end_s:5.2f} s{failed}"
        )
    print(
        f"{'promised':24} {'':5} {MIN_RECORDED:9.0%} {MAX_STILL:7.0f} {'':10} {MAX_MORE_BYTES >> 20:+9} MiB "
        f"{MAX_END_S:5.0f} s"
    )


def main() -> None:
    """Prints the table; exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only these")
    parser.add_argument("--short", action="store_true", help="one seed, 3 s")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + (1 if options.short else options.seeds))
    seconds = 3.0 if options.short else options.seconds
    quiet: dict[int, Outcome] = {}
    outcomes: dict[str, list[Outcome]] = {kind: [] for kind in options.kind or KINDS}
    without: list[str] = []
    # where others use the CPUs, too, these programs have them first
    with nullcontext() if cgroups.missing("cpu") else favored():
        for seed in seeds:
            for kind in (_QUIET, *outcomes):
                try:
                    found = run(kind, seed, seconds)
                except BenchError as error:
                    without.append(f"{kind} {seed}: {str(error)[:200]}")
                    continue
                print(json.dumps(asdict(found)), file=sys.stderr, flush=True)
                if kind == _QUIET:
                    quiet[seed] = found
                elif seed in quiet:
                    outcomes[kind].append(found)
    worst = [worst_of(kind, found, quiet) for kind, found in outcomes.items() if found]
    if options.json:
        print(json.dumps({"quiet": [asdict(one) for one in quiet.values()], "worst": [asdict(one) for one in worst]}))
        return
    if quiet:
        _print(worst, quiet)
    for line in without:
        print(f"no figures: {line}")
    if without or any(one.failed_seeds for one in worst):
        sys.exit(1)


if __name__ == "__main__":
    main()
