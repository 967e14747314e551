"""Waits of the launching thread for a child: a program that it ran, or a process that answers what it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import KEPT_FROM_RUNNING
from ingero.diagnose.causes.data.producers import TEXTS, production
from ingero.diagnose.causes.host_code.ipc_waits import IpcWait, WaitKind
from ingero.diagnose.causes.host_code.thread_waits import asleep_meanwhile
from ingero.diagnose.evidence.recorded import CULPRITS
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.samples.stack_samples import (
    SampleGroup,
    at,
    compiles,
    gets_an_item,
    matching_share,
    runs_program,
    sampled_time,
    takes_items,
)
from ingero.events import WAITS_FOR_CHILD
from ingero.store.call_stacks import CallStack
from ingero.units import format_percent

_MIN_SHARE_OF_SAMPLES = 0.7  # of the sleeping samples, before they prove a kind of wait


def child_wait(case: Case) -> IpcWait | None:
    """Waits for a program that the process ran, or for a child that makes neither input data nor GPU code."""
    workers = {worker.pid for worker in data_workers(case.evidence, case.process)}
    has_owner = not case.evidence.why_unavailable((CULPRITS,))

    def is_child(segment: PathSegment) -> bool:
        is_of_family = segment.pid != case.process.pid and segment.pid in case.family and segment.pid not in workers
        is_kept = segment.state == "stopped" or (has_owner and segment.state in KEPT_FROM_RUNNING)
        return is_of_family and not is_kept

    waits = [wait for wait in case.waits if is_child(wait)]
    asleep = asleep_meanwhile(case, waits)
    is_program = max(matching_share(asleep, runs_program), _share_until_end(case, waits)) >= _MIN_SHARE_OF_SAMPLES
    share = 1.0 if is_program else _share_of_answers(asleep)
    if share < _MIN_SHARE_OF_SAMPLES:
        return None
    claims = case.claimable_on_path(is_child, share)
    by_name: Counter[str] = Counter()
    pids: dict[str, dict[int, None]] = {}
    for wait in waits:
        name = case.thread_name(wait)
        by_name[name] += wait.duration_ns
        pids.setdefault(name, {})[wait.pid] = None
    if not claims:
        return None
    where = sampled_time(asleep)
    return IpcWait(
        kind=WaitKind.PROGRAM if is_program else WaitKind.ANSWER,
        claims=claims,
        partners=[(next(iter(pids[name])), name, ns) for name, ns in by_name.most_common()],
        line=where.line,
        samples=where.count,
        runs=len(pids[by_name.most_common(1)[0][0]]) if is_program else 0,
        doing="" if is_program else _doing_text(case, waits),
    )


def _share_until_end(case: Case, waits: Sequence[PathSegment]) -> float:
    """The share of these waits, 0 to 1, in which the process's main thread slept until a child ended (`os.system`)."""
    until_end_ns = 0
    for wait in waits:
        rows = case.evidence.critical_paths.intervals(case.process.pid, wait.begin_ns, wait.end_ns)
        until_end_ns += wait.duration_ns if (rows["futex"] == WAITS_FOR_CHILD).any() else 0
    return until_end_ns / max(sum(wait.duration_ns for wait in waits), 1)


def _share_of_answers(asleep: Sequence[SampleGroup]) -> float:
    """The share of waits for a child, 0 to 1, that take no item and wait for no compiler; 0 without stacks."""

    def is_answer(stack: CallStack | None) -> bool:
        return not (takes_items(stack) or gets_an_item(stack) or compiles(stack))

    return matching_share(asleep, is_answer)


def _doing_text(case: Case, waits: Sequence[PathSegment]) -> str:
    produced = production(case, waits)
    share = format_percent(produced.worst_share)
    return f"; {produced.who} spent {share} of that {TEXTS[produced.worst]}{at(produced.line)}"
