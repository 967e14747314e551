"""The link between host and GPU became slower: it came up with fewer lanes, or at a lower generation."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cuda_calls.copy_direction import LINK
from ingero.diagnose.causes.gpu import pcie
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.process_gpus import gpu_name
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.units import format_bytes

CAUSE = "pcie-link"
_SLOWER = 0.9  # of what it could do before
_AT_MOST = 1.5  # times what the bytes take longer by the rates of both links: copies reach more or less of them
_LEAST = 0.1  # of the device's lost time, before the link is named


def find(case: Case) -> Iterator[Finding]:
    """Device time that the bytes of a step take longer over a link that its driver calls slower than before."""
    if case.kind is not FindingKind.INCIDENT:
        return
    now, before = pcie.link_of(case, [case.window]), pcie.link_of(case, case.all_baselines)
    if not now or not before or now.bytes_per_ns > _SLOWER * before.bytes_per_ns:
        return
    size = pcie.copied_bytes(case)
    longer_ns = size * (1 / now.bytes_per_ns - 1 / before.bytes_per_ns) if now.bytes_per_ns else 0.0
    total_ns = longer_ns * case.sync_interval_count
    if total_ns < _LEAST * case.total((Part.GPU,), (DEVICE,)):
        return
    claims = case.take((Part.GPU,), (DEVICE,), _AT_MOST * total_ns)
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
            LINK,
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
    find=find,
)
