"""The GPU was empty because no data was ready: for what its producers did, see `workers`."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import claim_run, run_growth
from ingero.diagnose.causes.cpu.cpu_takers import KEPT_FROM_RUNNING
from ingero.diagnose.causes.data.masked_workers import HiddenWork, hidden_work
from ingero.diagnose.causes.data.producers import HELD, ON_CPU, TEXTS, Production, fixes, production, whole_cycles
from ingero.diagnose.causes.host_code.thread_waits import Wait, is_of_other_thread, own_thread_wait
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.recorded import CULPRITS
from ingero.diagnose.findings import Bucket, Culprit, Finding, FindingKind, Fix, Link, severity_of
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.diagnose.samples.stack_samples import Doing, Spent, at
from ingero.units import format_ns, format_percent

CAUSE = "data-starvation"
TOO_FEW = "too few workers"
NO_WORKER = "no worker"
HIDDEN = "hidden by another cause"


def find(case: Case) -> Iterator[Finding]:
    """Waits for a worker or a producing thread, loading in the feeding thread itself, and workers that will be late."""
    if finding := _waited(case):
        yield finding
    if finding := _loaded_itself(case):
        yield finding
    if hidden := hidden_work(case):
        yield _hidden(case, hidden)


def _waited(case: Case) -> Finding | None:
    """Sleep that ended in a producer."""
    own = own_thread_wait(case, Wait.ITEM) is not None
    has_owner = not case.evidence.missing((CULPRITS,))

    def is_producer(one: Segment) -> bool:
        if own and is_of_other_thread(one, case.process.pid):
            return True
        if one.state == "stopped":
            return False  # that has a name of its own
        is_worker = one.pid != case.process.pid and one.pid in case.family
        return is_worker and not (has_owner and one.state in KEPT_FROM_RUNNING)

    segments = [one for one in case.waits if is_producer(one)]
    claims = case.take_path(is_producer)
    if not segments or not claims:
        return None
    found, lost = production(case, whole_cycles(case, segments)), sum(claims.values())
    scale = lost / max(found.total_ns, 1)
    since = "one item to the next" if case.kind is FindingKind.BOTTLENECK else "the begin of the wait"
    source = f"{' by' if found.worst == HELD else ''} {found.source}" if found.source else ""
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(case.process.pid),
        summary=f"{case.who} waited {case.amount(lost)} for input data {case.when_idle}; {found.who} spent "
        f"{format_percent(found.worst_share)} of that {TEXTS[found.worst]}{source}{at(found.line)}",
        claims=claims,
        culprits=found.culprits(lost),
        line=found.line,
        chain=tuple(
            Link(
                text=f"the producer was {TEXTS[name]}",
                seen_ns=int(ns * scale),
                structure="it woke the launching thread",
                order=f"what it did from {since} until it delivered",
            )
            for name, ns in found.doing[:3]
        ),
        fixes=fixes(case, found),
        evidence={f"worker {name} (ns)": int(ns * scale) for name, ns in found.doing}
        | {
            "worker was": found.worst,
            "workers": len(found.producers),
            "source": found.source,
            "sub-cause": _sub_cause(case, found),
        },
        waits_for=tuple(pid for pid, _, _ in found.producers if pid != case.process.pid),
    )


def _sub_cause(case: Case, found: Production) -> str:
    is_steady = case.kind is FindingKind.BOTTLENECK and found.worst == ON_CPU
    return TOO_FEW if is_steady else f"worker {TEXTS[found.worst]}"


def _loaded_itself(case: Case) -> Finding | None:
    """On-CPU time of the feeding thread in a dataset (no worker), or in taking over a worker's items."""
    grown = run_growth(case)
    kind = max((Doing.LOADING, Doing.PASSING), key=lambda one: grown[one].ns if one in grown else 0)
    mine = grown.get(kind)
    claims = claim_run(case, mine)
    return _own_finding(case, kind, mine, claims) if mine and claims else None


def _own_finding(case: Case, kind: Doing, mine: Spent, claims: dict[Bucket, int]) -> Finding:
    lost = sum(claims.values())
    is_loading = kind is Doing.LOADING
    fix = (
        Fix(text="load in workers while the GPU computes", command="DataLoader(num_workers=4, prefetch_factor=2)")
        if is_loading
        else Fix(text="pass tensors in shared memory instead of pickled objects")
    )
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(case.process.pid),
        summary=f"{case.who} spent {case.amount(lost)} {kind.value} in the launching thread{at(mine.line)}",
        claims=claims,
        line=mine.line,
        chain=(
            Link(
                text=f"the launching thread was {kind.value}{at(mine.line)}",
                seen_ns=int(mine.ns),
                structure=f"{mine.count} samples on its CPU with a data loader's frames, beyond the baseline",
                order=f"{case.when_idle}, before the next launch",
            ),
        ),
        fixes=(fix,),
        evidence={"samples": mine.count, "sub-cause": NO_WORKER if is_loading else "passing items between processes"},
    )


def _hidden(case: Case, found: HiddenWork) -> Finding:
    """No lost time of its own: the loop would wait for these workers if nothing else made it slow."""
    producer = (found.worker.pid, found.worker.name, 1)
    work = Production(doing=((found.doing, 1),), producers=(producer,), line=found.line)
    who, needed, usual = (
        f"{found.worker.name} [{found.worker.pid}]",
        format_ns(found.needed_ns),
        format_ns(found.step_ns),
    )
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(case.process.pid),
        kind=FindingKind.EVENT,
        severity=severity_of(found.ratio),
        summary=f"{who} needs {needed} per step of {case.who} (baseline {usual}): hidden while another cause makes the "
        f"steps as slow, it alone would cost {format_percent(found.ratio)} of wall time; it was "
        f"{TEXTS[found.doing]}{at(found.line)}",
        culprits=(Culprit(pid=found.worker.pid, name=found.worker.name),),
        line=found.line,
        chain=(
            Link(
                text=f"for each step the worker was busy {needed}, without its waits for the loop and for a CPU",
                seen_ns=int(found.needed_ns),
                expected_ns=int(found.step_ns),
                structure="the intervals off the CPU of its main thread, and the steps of the same seconds",
                order="in the baseline it had time left and waited for the loop",
            ),
        ),
        fixes=(Fix(text="fix it together with the other cause: one alone gains nothing"), *fixes(case, work)),
        evidence={"worker was": found.doing, "would cost (ratio)": round(found.ratio, 4), "sub-cause": HIDDEN},
    )


RULE = Rule(
    cause=CAUSE,
    title="no input data was ready for the GPU",
    order=40,
    needs=("sync_intervals", "offcpu"),
    shows="the sleeps of the launching thread while the GPU was idle, followed through their wakers to a worker or "
    "producing thread, what it did meanwhile, and its line; without workers, the loading in the launching thread; "
    "workers whose step is longer than the loop's best while another cause makes the loop as slow",
    limits="waits below 100 µs are not followed; a worker in another container than the trainer's is not seen; lines "
    "need stacks",
    find=find,
)
