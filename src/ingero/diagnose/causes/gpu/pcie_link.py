"""The PCIe link to the GPU became slower: fewer lanes, or a lower generation."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cuda_calls.copy_direction import LINK_FIX
from ingero.diagnose.causes.gpu import pcie
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.process_gpus import gpu_name
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.units import format_bytes

CAUSE = "pcie-link"
_MAX_RATE_RATIO = 0.9  # of the rate before
_MAX_TIMES_EXPECTED = 1.5  # times the expected difference: copies reach more or less of both rates
_MIN_SHARE_OF_LOST_TIME = 0.1  # of the GPU's lost time, before the link is named


def explain(case: Case) -> Iterator[Finding]:
    """GPU time that a step's bytes take longer over a link that the driver reports as slower than before."""
    if case.kind is not FindingKind.INCIDENT:
        return
    now, before = pcie.link_of(case, [case.window]), pcie.link_of(case, case.all_baseline_windows)
    if not now or not before or now.bytes_per_ns > _MAX_RATE_RATIO * before.bytes_per_ns:
        return
    size = pcie.copied_bytes(case)
    longer_ns = size * (1 / now.bytes_per_ns - 1 / before.bytes_per_ns) if now.bytes_per_ns else 0.0
    total_ns = longer_ns * case.sync_interval_count
    if total_ns < _MIN_SHARE_OF_LOST_TIME * case.total((Part.GPU,), (GPU_EXECUTION,)):
        return
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), _MAX_TIMES_EXPECTED * total_ns)
    lost = sum(claims.values())
    if not lost:
        return
    root, name = gpu_name(case.evidence, case.process, case.device)
    yield Finding(
        cause=CAUSE,
        resource="link",
        root=root,
        summary=f"{case.who} lost {case.amount(lost)} because the link to {name} is of {now.text}, "
        f"before {before.text}: {format_bytes(int(size))} are copied over it per step",
        claims=claims,
        chain=(
            Link(
                text=f"{format_bytes(int(size))} a step over a link of {now.text}, before {before.text}",
                seen_ns=lost,
                expected_ns=int(total_ns),
                structure="generation and lanes of the link at its fastest, by the driver, and the bytes of the copies",
                order="the GPU was ready later after the same launches and bytes",
            ),
        ),
        fixes=(
            LINK_FIX,
            Fix(
                text="check for link errors, and reseat the card or its riser",
                command="sudo dmesg | grep -iE 'aer|pcie|nvrm'; sudo lspci -vvv | grep -E 'LnkSta|LnkCap'",
            ),
            Fix(text="or copy less: keep constant data on the GPU, use smaller types"),
        ),
        evidence={"bytes per step": int(size), "link": now.text, "link before": before.text},
    )


RULE = Rule(
    cause=CAUSE,
    title="the link between host and GPU became slower",
    order=73,
    needs=("sync_intervals", "enqueues", "op_stats", "gpu_samples"),
    shows="generation and lanes of the PCIe link now and before, and the bytes of a step's copies",
    limits="a link that is slow for another reason (a switch that others use, errors that are repeated) keeps its "
    "generation and lanes; then gpu-slower names the bytes that are copied. A link that never came up whole has no "
    "faster time to compare with",
    explain=explain,
)
