"""The GPU was idle because no input data was ready; what its producers did is in `producers`."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import claim_run_time, run_growth
from ingero.diagnose.causes.cpu.cpu_takers import KEPT_FROM_RUNNING
from ingero.diagnose.causes.data.masked_workers import MaskedWorkers, find_masked_workers
from ingero.diagnose.causes.data.producers import HELD, ON_CPU, TEXTS, Production, fixes, production, whole_cycles
from ingero.diagnose.causes.host_code.polled_waits import is_timed, looks_per_step, maker_meanwhile
from ingero.diagnose.causes.host_code.thread_waits import Wait, is_of_other_thread, own_thread_wait
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.recorded import CULPRITS
from ingero.diagnose.findings import Bucket, Culprit, Finding, FindingKind, Fix, Link, severity_of
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.stack_samples import (
    SLEEP,
    Doing,
    SampledTime,
    at,
    group_samples,
    sampled_time,
    spans_of,
)
from ingero.units import format_ns, format_percent

CAUSE = "data-starvation"
TOO_FEW = "too few workers"
NO_WORKER = "no worker"
HIDDEN = "hidden by another cause"


def explain(case: Case) -> Iterator[Finding]:
    """Waits for a worker or producing thread, loading in the launching thread, and workers masked by another cause."""
    if finding := _producer_finding(case):
        yield finding
    if finding := _polled_finding(case):
        yield finding
    if finding := _own_loading_finding(case):
        yield finding
    if masked := find_masked_workers(case):
        yield _masked_finding(case, masked)


def _producer_finding(case: Case) -> Finding | None:
    """Sleep that ended when a producer delivered."""
    is_own_thread = own_thread_wait(case, Wait.ITEM) is not None
    has_owner = not case.evidence.why_unavailable((CULPRITS,))

    def is_producer(segment: PathSegment) -> bool:
        if is_own_thread and is_of_other_thread(segment, case.process.pid):
            return True
        if segment.state == "stopped":
            return False  # that is the cause `stopped`
        is_worker = segment.pid != case.process.pid and segment.pid in case.family
        return is_worker and not (has_owner and segment.state in KEPT_FROM_RUNNING)

    segments = [wait for wait in case.waits if is_producer(wait)]
    claims = case.claimable_on_path(is_producer)
    if not segments or not claims:
        return None
    produced, lost = production(case, whole_cycles(case, segments)), sum(claims.values())
    scale = lost / max(produced.total_ns, 1)
    since = "one item to the next" if case.kind is FindingKind.BOTTLENECK else "the begin of the wait"
    source = f"{' by' if produced.worst == HELD else ''} {produced.source}" if produced.source else ""
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(case.process.pid),
        summary=f"{case.who} waited {case.amount(lost)} for input data {case.when_idle}; {produced.who} spent "
        f"{format_percent(produced.worst_share)} of that "
        f"{TEXTS[produced.worst]}{source}{at(produced.line)}",
        claims=claims,
        culprits=produced.culprits(lost),
        line=produced.line,
        chain=tuple(
            Link(
                text=f"the producer was {TEXTS[name]}",
                seen_ns=int(ns * scale),
                structure="it woke the launching thread",
                order=f"what it did from {since} until it delivered",
            )
            for name, ns in produced.doing[:3]
        ),
        fixes=fixes(case, produced),
        evidence={f"worker {name} (ns)": int(ns * scale) for name, ns in produced.doing}
        | {
            "worker was": produced.worst,
            "workers": len(produced.producers),
            "source": produced.source,
            "sub-cause": _sub_cause(case, produced),
        },
        waited_for_pids=tuple(pid for pid, _, _ in produced.producers if pid != case.process.pid),
    )


def _polled_finding(case: Case) -> Finding | None:
    """Sleeps between looks for an item, while another thread of the process was at work."""
    sleeps = [wait for wait in case.waits if is_timed(wait)]
    looks = looks_per_step(case, sleeps)
    maker = maker_meanwhile(case, sleeps) if looks else None
    claims = case.claimable_on_path(is_timed) if maker else {}
    if maker is None or not claims:
        return None
    lost = sum(claims.values())
    waiter = sampled_time(
        group_samples(case.evidence, case.process.process, (case.window,), spans_of(sleeps), SLEEP)
    ).line
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(case.process.pid),
        summary=f"{case.who} waited {case.amount(lost)} {case.when_idle}, looking {looks:.0f} times per {case.noun} "
        f"for an item{at(waiter)}, while its thread {maker.name} [{maker.tid}] was computing{at(maker.work.line)}",
        claims=claims,
        culprits=(Culprit(pid=case.process.pid, name=maker.name, lost_ns=lost),),
        line=maker.work.line or waiter,
        chain=(
            Link(
                text=f"the launching thread slept again and again{at(waiter)}",
                seen_ns=lost,
                structure=f"{len(sleeps)} sleeps that only a timer ended, in varying numbers per {case.noun}",
                order=f"{case.when_starving}, before the next launch",
            ),
            Link(
                text=f"its thread {maker.name} was computing meanwhile{at(maker.work.line)}",
                seen_ns=int(maker.share * lost),
                structure=f"{maker.work.count} samples on its CPU; nothing shows who delivered",
                order="during these sleeps",
            ),
        ),
        fixes=(
            Fix(text="make items in more threads or processes", command="DataLoader(num_workers=4, prefetch_factor=2)"),
        ),
        evidence={"looks": round(looks, 1), "samples": maker.work.count, "sub-cause": "a thread of its own, polled"},
    )


def _sub_cause(case: Case, produced: Production) -> str:
    is_steady = case.kind is FindingKind.BOTTLENECK and produced.worst == ON_CPU
    return TOO_FEW if is_steady else f"worker {TEXTS[produced.worst]}"


def _own_loading_finding(case: Case) -> Finding | None:
    """On-CPU time of the launching thread in a dataset (no worker), or in receiving a worker's items."""
    grown = run_growth(case)
    kind = max((Doing.LOADING, Doing.PASSING), key=lambda kind: grown[kind].ns if kind in grown else 0)
    grown_kind = grown.get(kind)
    claims = claim_run_time(case, grown_kind)
    return _own_finding(case, kind, grown_kind, claims) if grown_kind and claims else None


def _own_finding(case: Case, kind: Doing, grown: SampledTime, claims: dict[Bucket, int]) -> Finding:
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
        summary=f"{case.who} spent {case.amount(lost)} {kind.value} in the launching thread{at(grown.line)}",
        claims=claims,
        line=grown.line,
        chain=(
            Link(
                text=f"the launching thread was {kind.value}{at(grown.line)}",
                seen_ns=int(grown.ns),
                structure=f"{grown.count} samples on its CPU with a data loader's frames, beyond the baseline",
                order=f"{case.when_idle}, before the next launch",
            ),
        ),
        fixes=(fix,),
        evidence={"samples": grown.count, "sub-cause": NO_WORKER if is_loading else "passing items between processes"},
    )


def _masked_finding(case: Case, masked: MaskedWorkers) -> Finding:
    """Data workers that the loop would wait for if nothing else slowed it down; it claims no lost time."""
    producer = (masked.worker.pid, masked.worker.name, 1)
    work = Production(doing=((masked.doing, 1),), producers=(producer,), line=masked.line)
    who, needed, best = (
        f"{masked.worker.name} [{masked.worker.pid}]",
        format_ns(masked.needed_ns),
        format_ns(masked.step_ns),
    )
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(case.process.pid),
        kind=FindingKind.EVENT,
        severity=severity_of(masked.ratio),
        summary=f"{who} needs {needed} per step of {case.who} (baseline {best}): hidden while another cause makes the "
        f"steps as slow, it alone would cost {format_percent(masked.ratio)} of wall time; it was "
        f"{TEXTS[masked.doing]}{at(masked.line)}",
        culprits=(Culprit(pid=masked.worker.pid, name=masked.worker.name),),
        line=masked.line,
        chain=(
            Link(
                text=f"for each step the worker was busy {needed}, without its waits for the loop and for a CPU",
                seen_ns=int(masked.needed_ns),
                expected_ns=int(masked.step_ns),
                structure="the intervals off the CPU of its main thread, and the steps of the same seconds",
                order="in the baseline it had time left and waited for the loop",
            ),
        ),
        fixes=(Fix(text="fix it together with the other cause: one alone gains nothing"), *fixes(case, work)),
        evidence={"worker was": masked.doing, "would cost (ratio)": round(masked.ratio, 4), "sub-cause": HIDDEN},
    )


RULE = Rule(
    cause=CAUSE,
    title="no input data was ready for the GPU",
    order=40,
    needs=("sync_intervals", "offcpu"),
    shows="the sleeps of the launching thread while the GPU was idle, followed through their wakers to a worker or "
    "producing thread, what it did meanwhile, and its line; sleeps between looks for an item while a thread of the "
    "process computes; without workers, the loading in the launching thread; "
    "workers whose step is longer than the loop's best while another cause makes the loop as slow",
    limits="waits below 100 µs are not followed; a worker in another container than the trainer's is not seen; lines "
    "need stacks",
    explain=explain,
)
