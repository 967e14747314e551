"""In recordings of older versions: a process repeatedly left the CPU for its own disk requests."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.legacy.call_gaps import NO_STATE, ends_soon_after
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link
from ingero.ops import IoOp, Source
from ingero.units import format_ns, format_percent

CAUSE = "block-io"
WITHIN_NS = 200_000  # from the end of a request to the end of an off-CPU interval
MIN_INTERVALS = 20  # off-CPU intervals of the process
MIN_SHARE = 0.8  # of the process's off-CPU intervals


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose off-CPU intervals end with a read or write of their own."""
    if not evidence.reader.older_version:
        return
    requests = evidence.events(evidence.window, (Source.IO,))
    for process in evidence.processes.values():
        intervals = evidence.reader.offcpu_rows(evidence.window)
        intervals = intervals[intervals["process"] == process.process]
        own = requests[requests["process"] == process.process]
        soon = ends_soon_after(intervals, own, WITHIN_NS)
        if len(intervals) < MIN_INTERVALS or soon.mean() < MIN_SHARE:
            continue
        waited = int(intervals["duration_ns"][soon].sum())
        kinds = {int(IoOp.READ): "reads", int(IoOp.WRITE): "writes"}
        kind = kinds.get(int(own["op"][0]), "requests") if (own["op"] == own["op"][0]).all() else "requests"
        yield Finding(
            cause=CAUSE,
            resource="disk",
            root=str(process.pid),
            kind=FindingKind.BOTTLENECK,
            window=evidence.window,
            summary=f"{process.name} [{process.pid}] was off the CPU for {format_ns(waited)} in synchronous {kind}: "
            f"{int(soon.sum())} of its {len(intervals)} intervals end within {format_ns(WITHIN_NS)} of one",
            culprits=(Culprit(pid=process.pid, name=process.name, lost_ns=waited),),
            chain=(
                Link(
                    text=f"intervals off the CPU end with the process's own disk {kind}",
                    seen_ns=waited,
                    structure=f"{format_percent(float(soon.mean()))} of them, by time; {NO_STATE}",
                    order="the request was done first",
                ),
            ),
            fixes=(Fix(text="read ahead in another thread, or keep the data in memory"),),
            evidence={"off-CPU (ns)": waited, "intervals": len(intervals), "with a request": int(soon.sum())},
        )


RULE = Rule(
    cause=CAUSE,
    title="I/O wait on a disk (recordings of older versions)",
    order=95,
    needs=("offcpu", "events"),
    shows="off-CPU intervals that end within 200 µs of a block request of the same process",
    limits=NO_STATE,
    find_events=find_events,
)
