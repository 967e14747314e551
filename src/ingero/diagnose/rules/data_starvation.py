"""The device was empty because a data-loading worker had nothing ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Bucket, Culprit, Finding, Fix, Link, Part
from ingero.diagnose.rule import Rule
from ingero.diagnose.waits import GIL, Segment
from ingero.units import format_percent

CAUSE = "data-starvation"

_DOING = {
    ("run", "none"): "on-cpu",
    (GIL, "none"): "on-cpu",
    ("runq", "none"): "runnable",
    ("throttled", "none"): "throttled",
    ("io", "block"): "disk",
    ("sleep", "timer"): "asleep",
    ("sleep", "network"): "network",
}
_TEXTS = {
    "on-cpu": "computing",
    "runnable": "waiting for a CPU",
    "throttled": "throttled by a CPU quota",
    "disk": "reading from disk",
    "asleep": "asleep on a timer",
    "network": "waiting for the network",
    "waiting": "waiting for something else",
}


def find(case: Case) -> Iterator[Finding]:
    """Sleep with an empty device that ended in a worker, by what the worker was doing."""
    paths = case.empty_paths
    total = sum(one.duration_ns for one in paths)
    workers = [one for one in paths if one.pid != case.process.pid and one.pid in case.family]
    if not total or not workers:
        return
    left = sum(case.take((Part.EMPTY,), ("sleep",)).values())
    claims = case.take((Part.EMPTY,), ("sleep",), left * sum(one.duration_ns for one in workers) / total)
    if claims:
        yield _finding(case, workers, claims)


def _finding(case: Case, workers: list[Segment], claims: dict[Bucket, int]) -> Finding:
    doing: Counter[str] = Counter()
    by_worker: Counter[int] = Counter()
    for one in workers:
        doing[_DOING.get((one.state, one.waker_kind), "waiting")] += one.duration_ns
        by_worker[one.pid] += one.duration_ns
    worst = doing.most_common(1)[0][0]
    names = {one.pid: case.thread_name(one) for one in workers}
    lost, victim = sum(claims.values()), case.process
    scale = lost / max(by_worker.total(), 1)
    culprits = [Culprit(pid=pid, name=names[pid], lost_ns=int(ns * scale)) for pid, ns in by_worker.most_common()]
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(victim.pid),
        summary=f"{case.who} waited {case.amount(lost)} for data with an empty device; {names[culprits[0].pid]} "
        f"[{culprits[0].pid}] was {_TEXTS[worst]} {format_percent(doing[worst] / doing.total())} of that",
        claims=claims,
        culprits=tuple(culprits),
        chain=tuple(
            Link(
                text=f"the worker was {_TEXTS[name]}",
                seen_ns=int(ns * scale),
                structure="it woke the thread that feeds the device",
                order="what it did from the begin of the wait until it delivered",
            )
            for name, ns in doing.most_common(3)
        ),
        fixes=(Fix(text="more workers, deeper prefetch", command="DataLoader(num_workers=N, prefetch_factor=4)"),),
        evidence={f"worker {name} (ns)": int(ns * scale) for name, ns in doing.items()}
        | {"worker was": worst, "workers": len(by_worker)},
    )


RULE = Rule(
    cause=CAUSE,
    title="no data was ready for the device",
    order=40,
    needs=("epochs", "offcpu"),
    shows="the sleeps of the feeding thread with an empty device, followed through whoever ended them to a worker",
    limits="waits below 100 us are not followed; a worker in another container than the trainer's is not seen",
    find=find,
)
