"""In recordings of older versions: the GPU had no work while data-loading workers were busy."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.legacy.call_gaps import NO_STATE, CallGaps, gpu_gaps
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link, severity_of
from ingero.ops import HostOp, Source
from ingero.store.records import OpTotals, Process
from ingero.units import format_ns, format_percent

CAUSE = "data-starvation"
MIN_PAUSE_NS = 1_000_000_000  # a shorter gap between GPU calls is not counted
MIN_PAUSES = 3  # gaps of a process
MIN_IDLE_RATIO = 0.5  # of the time between the first and the last call
_WORKER_NAMES = ("pt_data_worker", "pt_data_pin")


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes with gaps of seconds between their GPU calls, while data-loading workers ran."""
    if not evidence.reader.older_version:
        return
    totals = [totals for totals in evidence.reader.op_totals(evidence.window) if _is_switch(totals)]
    workers = {row.pid: row for row in totals if _name(evidence, row.process).startswith(_WORKER_NAMES)}
    for process in evidence.processes.values() if workers else ():
        gaps = gpu_gaps(evidence, process.process, MIN_PAUSE_NS)
        if gaps and gaps.count >= MIN_PAUSES and gaps.ratio >= MIN_IDLE_RATIO:
            yield _finding(evidence, process, gaps, totals, workers)


def _finding(
    evidence: Evidence, process: Process, gaps: CallGaps, totals: list[OpTotals], workers: dict[int, OpTotals]
) -> Finding:
    switches = sum(row.count for row in totals)
    own = sum(row.count for row in totals if row.process == process.process) / max(switches, 1)
    loading = max(sum(_name(evidence, row.process).startswith(_WORKER_NAMES[0]) for row in workers.values()), 1)
    busiest = sorted(workers.values(), key=lambda row: -row.count)
    return Finding(
        cause=CAUSE,
        resource="data",
        root=str(process.pid),
        kind=FindingKind.BOTTLENECK,
        window=evidence.window,
        severity=severity_of(gaps.ratio),
        summary=f"{process.name} [{process.pid}] made no GPU call for {format_percent(gaps.ratio)} of the time, in "
        f"{gaps.count} pauses of up to {format_ns(gaps.longest_ns)}; its data-loading workers were busy meanwhile",
        culprits=tuple(Culprit(pid=row.pid, name=_name(evidence, row.process), switches=row.count) for row in busiest),
        chain=(
            Link(
                text="between two batches nothing was sent to the GPU",
                seen_ns=gaps.idle_ns,
                expected_ns=0,
                structure=f"of {switches:,} context switches {format_percent(own)} are the process's own; {NO_STATE}",
                order="calls come in one burst when a batch is there",
            ),
        ),
        fixes=(
            Fix(
                text=f"use more workers than its {loading}, and persistent ones",
                command=f"DataLoader(num_workers={2 * loading}, persistent_workers=True)",
            ),
        ),
        evidence={"idle (ratio)": round(gaps.ratio, 4), "pauses": gaps.count, "own switches (ratio)": round(own, 4)},
    )


def _is_switch(totals: OpTotals) -> bool:
    return (totals.source, totals.op) == (int(Source.HOST), int(HostOp.SCHED_SWITCH))


def _name(evidence: Evidence, process: int) -> str:
    return evidence.processes[process].name if process in evidence.processes else ""


RULE = Rule(
    cause=CAUSE,
    title="no input data was ready for the GPU (recordings of older versions)",
    order=96,
    needs=("events",),
    shows="pauses between recorded GPU calls, and whose context switches the host counted meanwhile",
    limits=f"{NO_STATE}; calls that the recorder left out look like a pause",
    find_events=find_events,
)
