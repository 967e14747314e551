"""Run: python -m bench.incidents [--only PATTERN] [--shard 1/4] [--seeds N], or make bench-incidents.

Results are appended run by run: cut it when you like, and call it again to go on. With --log they outlive their
recordings, and what the log holds is not run again. Exit code 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from bench.agent import BenchError
from bench.incidents.ambient import favored
from bench.incidents.findings import ask
from bench.incidents.judge import Judgement, judge
from bench.incidents.log import Log
from bench.incidents.plan import all_scenarios, control_of
from bench.incidents.plan.kinds import PAIRS
from bench.incidents.price import Price
from bench.incidents.recording import DATABASE, LABEL, Label, database_of, pack, record
from bench.incidents.results import Result, Results
from bench.incidents.scenario import Planned, Scenario
from bench.incidents.score import Scored, Total, confusions, distinguished, table, totals
from bench.incidents.score_programs import programs
from bench.incidents.step_score import score_recording
from bench.incidents.truth import truth
from bench.incidents.workload import missing
from ingero.demo.workloads import lifecycle
from ingero.errors import IngeroError

KEEP = Path("build/incidents")
SEEDS = 2  # 637 scenarios with a fault: 1,274 scored runs, where 600 are promised
QUIET_SEEDS = 4  # 112 without: 448 runs, and the pairs of the others, where 300 are promised


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the table of everything; 1 if a promise is broken."""
    options = _parse(arguments)
    results = Results(options.keep / "results.jsonl")
    log = Log(options.log, options.price) if options.log else None
    planned = _planned(options, log)
    if options.list:
        for one in planned:
            print(one.key, "|".join(cause for part in one.scenario.expected for cause in sorted(part.causes)) or "-")
        return 0
    if options.rerun_diagnosis:
        results = _rediagnose(planned, options.keep, log)
    elif not options.score:
        if os.geteuid() != 0:
            raise BenchError("probes need root", hint=f"sudo {' '.join(sys.orig_argv)}")
        with lifecycle.until_stopped(), favored() if options.favor else nullcontext():
            _run(planned, options, results, log)
    if log:
        return _print(list(log.scored(_by_name(), since=options.since)))
    scored = list(score(planned, options.keep, results))
    if options.all:
        scored = [replace(run, is_disturbed=False) for run in scored]
    return _print(scored)


def score(planned: Iterable[Planned], keep: Path, results: Results) -> Iterable[Scored]:
    """Judge every run that has a result."""
    for one in planned:
        result = results.by_key.get(one.key)
        if result is not None and (one.folder(keep) / LABEL).exists():
            judgement = judge_kept(one, keep, result)
            yield Scored(
                scenario=one.scenario, judgement=judgement, is_disturbed=result.is_disturbed, steps=result.steps
            )


def judge_kept(planned: Planned, keep: Path, result: Result) -> Judgement:
    """One run against its control, where there is one."""
    label = Label.read(planned.folder(keep))
    control = control_planned(planned).folder(keep)
    measured = truth(label, Label.read(control)) if (control / LABEL).exists() else None
    return judge(planned.scenario, label, measured, result.answer.found, planned.price)


def control_planned(planned: Planned) -> Planned:
    """The run that it is compared with."""
    return replace(planned, scenario=control_of(planned.scenario))


def run_one(planned: Planned, keep: Path) -> Result:
    """Record and diagnose one run."""
    label = record(planned, keep)
    return diagnosed(planned, keep, label)


def diagnosed(planned: Planned, keep: Path, label: Label) -> Result:
    """What the rules of now say of a kept recording, and how its steps agree with the program's."""
    with database_of(planned.folder(keep)) as database:
        answer, steps = ask(database), score_recording(database, label)
    return Result(key=planned.key, is_disturbed=label.is_disturbed, others=label.others, answer=answer, steps=steps)


def _by_name() -> dict[str, Scenario]:
    """Every scenario and its control."""
    return {one.name: one for each in all_scenarios() for one in (each, control_of(each))}


def _run(planned: list[Planned], options: argparse.Namespace, results: Results, log: Log | None) -> None:
    """Each run once; the disturbed ones once more at the end."""
    _all([one for one in planned if one.key not in results.by_key], options, results, log)
    if not options.once:
        done = [one for one in planned if one.key in results.by_key]
        _all([one for one in done if results.by_key[one.key].is_disturbed], options, results, log)


def _with_control(planned: Planned) -> list[Planned]:
    """The run and, before it, what it is compared with; in a healthy workload nothing is lost by plan."""
    needs_pair = planned.scenario.disturbances and planned.scenario.workload != "serve"
    return [control_planned(planned), planned] if needs_pair else [planned]


def _all(todo: list[Planned], options: argparse.Namespace, results: Results, log: Log | None) -> None:
    for number, one in enumerate(todo, 1):
        if reason := missing(one.scenario):
            print(f"{number}/{len(todo)} {one.key}: left out, {reason}", flush=True)
            continue
        began = time.monotonic()
        try:
            result = run_one(one, options.keep)
        except IngeroError as error:
            print(f"{number}/{len(todo)} {one.key}: failed, {error}", flush=True)
            continue
        results.add(result)
        if not options.plain:
            pack(one.folder(options.keep))
        _note(one, options.keep, result, log)
        print(
            f"{number}/{len(todo)} {one.key}: {_line(one, options.keep, result, time.monotonic() - began)}", flush=True
        )


def _note(planned: Planned, keep: Path, result: Result, log: Log | None) -> None:
    """Into the log, if it was not disturbed and is not there."""
    if log is not None and not result.is_disturbed and planned not in log:
        log.add(planned, judge_kept(planned, keep, result), _said(result), result.steps)


def _said(result: Result) -> str:
    return ", ".join(f"{one.cause} {one.lost_ratio:.0%}" for one in result.answer.found) or "silence"


def _line(planned: Planned, keep: Path, result: Result, took_s: float) -> str:
    judgement = judge_kept(planned, keep, result)
    said = _said(result)
    verdicts = " ".join(part.verdict.value for part in judgement.parts) or ("right" if judgement.is_right else "false")
    dose = f"{judgement.dose:.1%} lost" if judgement.dose is not None else "no pair"
    others = f", others {result.others:.0%} of the CPUs" if result.is_disturbed else ""
    return f"{verdicts}: {said} ({dose}{others}, {took_s:.0f} s)"


def _rediagnose(planned: Iterable[Planned], keep: Path, log: Log | None) -> Results:
    """The kept recordings by the rules of now, into a new file, and into the log what that does not hold."""
    path = keep / "rerun.jsonl"
    path.unlink(missing_ok=True)
    results = Results(path)
    for one in planned:
        folder = one.folder(keep)
        if not (folder / LABEL).exists() or not list(folder.glob(f"{DATABASE}*")):
            continue
        result = diagnosed(one, keep, Label.read(folder))
        results.add(result)
        _note(one, keep, result, log)
        print(f"{one.key}: {_line(one, keep, result, result.answer.took_s)}", flush=True)
    return results


def _print(scored: list[Scored]) -> int:
    for rows in (table(scored), programs(scored)):
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        print()
    found = totals(scored)
    disturbed = sum(run.is_disturbed for run in scored)
    print(f"{len(scored)} runs, {disturbed} of them disturbed by others and left out of the totals")
    for first, second, apart, count in distinguished(scored, PAIRS):
        print(f"told apart: {first} and {second} in {apart} of {count} runs")
    for times, kinds, cause in confusions(scored):
        print(f"taken for another cause: {kinds} for {cause}, {times} x")
    for one in found:
        print(f"{_mark(one)} {one.promise}: {one.figure}")
    return 1 if any(one.is_kept is False for one in found) else 0


def _mark(total: Total) -> str:
    return {True: "kept  ", False: "BROKEN", None: "unseen"}[total.is_kept]


def _planned(options: argparse.Namespace, log: Log | None) -> list[Planned]:
    chosen = [one for one in all_scenarios() if any(fnmatch.fnmatch(one.name, wanted) for wanted in options.only)]
    if options.fast:
        chosen = [one for one in chosen if one.is_fast]
    if options.quiet:
        chosen = [one for one in chosen if not one.expected]
    first = options.first_seed
    planned = [
        Planned(scenario=one, seed=first + at, price=options.price)
        for one in chosen
        for at in range(_seeds(one, options))
    ]
    planned.sort(key=lambda one: one.seed)
    shard, _, shards = options.shard.partition("/")
    mine = [one for one in planned[int(shard) - 1 :: int(shards)] if log is None or one not in log]
    return list({one.key: one for each in mine for one in _with_control(each)}.values())


def _seeds(scenario: Scenario, options: argparse.Namespace) -> int:
    return int(options.seeds or (SEEDS if scenario.expected else QUIET_SEEDS))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.incidents", description=__doc__)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="by name, such as 'cpu_hog-*-spin'")
    parser.add_argument("--fast", action="store_true", help="the subset of make test")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="this part of N")
    parser.add_argument("--seeds", type=int, help=f"runs of each scenario (default {SEEDS}, quiet ones {QUIET_SEEDS})")
    parser.add_argument("--first-seed", type=int, default=1, help="runs that nobody has seen: from this seed on")
    parser.add_argument("--quiet", action="store_true", help="only the runs in which nothing is to be found")
    parser.add_argument(
        "--price",
        type=Price,
        default=Price.MEASURED,
        metavar="|".join(price.value for price in Price if price.value),
        help="say that a probed call costs as much as on a slow machine, or trace no launches from the start",
    )
    parser.add_argument("--keep", type=Path, default=KEEP, help=f"folder of recordings and results (default {KEEP})")
    parser.add_argument("--log", type=Path, help="file of judgements: add to it, leave out what it holds, and score it")
    parser.add_argument("--since", default="", metavar="COMMIT", help="of the log, score what it and later ones made")
    parser.add_argument("--plain", action="store_true", help="do not compress the recordings")
    parser.add_argument("--once", action="store_true", help="do not repeat runs that others disturbed")
    parser.add_argument("--favor", action="store_true", help="take the CPUs before others do, on a shared machine")
    parser.add_argument("--rerun-diagnosis", action="store_true", help="diagnose kept recordings anew; record nothing")
    parser.add_argument("--all", action="store_true", help="count the runs that others disturbed, too")
    parser.add_argument("--score", action="store_true", help="only score what is there")
    parser.add_argument("--list", action="store_true", help="only print what is planned, with the right answers")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
