"""In an imported profile: the GPU did nothing but copy from and to the host."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.causes.cuda_calls import memcpy_bound
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import GPU_ACTIVITIES
from ingero.diagnose.findings import Finding, Fix, Link, Part
from ingero.diagnose.profile.findings import bottleneck, is_worth_reporting, time_base_words
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.words import percent, process_label
from ingero.units import format_bytes

CAUSE = memcpy_bound.CAUSE


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose GPU copied for a tenth of their steps while no kernel ran; waits for a copy do not count."""
    for report in evidence.profiles.reports:
        if is_worth_reporting(report, round(report.copy_only_ratio * report.judged_ns), BOTTLENECK_RATIO):
            yield _finding(report)


def _finding(report: ProfileReport) -> Finding:
    lost_ns = round(report.copy_only_ratio * report.judged_ns)
    return bottleneck(
        report,
        cause=CAUSE,
        resource="copies",
        lost_ns=lost_ns,
        part=Part.GPU,
        summary=f"{process_label(report.process)} copied between host and GPU {percent(report.copy_only_ratio)} "
        f"{time_base_words(report)}, while no kernel ran; {format_bytes(report.copied_bytes)} in all of the profile",
        links=(
            Link(
                text="only copies between host and GPU ran",
                seen_ns=lost_ns,
                structure="the copies' own times on the GPU, as the profiler measured them; waits before them are none",
            ),
        ),
        fixes=(
            Fix(text="use pinned memory, and overlap copies with kernels", command="DataLoader(pin_memory=True)"),
            Fix(text="or keep repeatedly copied data on the GPU"),
        ),
        evidence={"only copies (ratio)": round(report.copy_only_ratio, 4), "copied (bytes)": report.copied_bytes},
    )


RULE = Rule(
    cause=CAUSE,
    title="time was lost in copies between host and GPU (imported profiles)",
    order=70,
    needs=(GPU_ACTIVITIES,),
    shows="the time on the GPU of copies between it and the host in which no kernel ran, as measured",
    limits="copies from GPU to GPU are work; a call that waited before its copy began is reported as a wait",
    find_events=find_events,
)
