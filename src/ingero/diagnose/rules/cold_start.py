"""The first steps of a process were slow because everything was used for the first time."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.calls import growth
from ingero.diagnose.cases import Case
from ingero.diagnose.model import Finding, FindingKind, Fix, Part
from ingero.diagnose.rule import Rule
from ingero.ops import Kind
from ingero.units import format_ns

CAUSE = "cold-start"
FIRST_NS = 10_000_000_000  # of a process's GPU work: contexts, modules, first allocations, autotuning
_INSIDE = ("run", "sleep", "io", "kernel_lock")
_FIRST_USE = Kind.LOAD | Kind.LAUNCH | Kind.ALLOC | Kind.CAPTURE | Kind.CONTEXT


def find(case: Case) -> Iterator[Finding]:
    """Lost time at the begin of a process that was seen to begin, inside calls that were slow the first time."""
    lane = case.evidence.lanes[case.process.process]
    first_ns = int(lane["a_ns"][0])
    is_young = case.process.start_ns >= case.evidence.window.begin_ns - FIRST_NS
    begins = case.window.begin_ns - first_ns < FIRST_NS // 10
    if case.kind is not FindingKind.INCIDENT or not is_young or not begins or case.window.duration_ns > FIRST_NS:
        return
    grown = growth(case, _FIRST_USE)
    claims = case.take((Part.EMPTY, Part.ENQUEUE), _INSIDE, grown.grown_ns) if grown else {}
    if not grown or not claims:
        return
    lost = sum(claims.values())
    slow = grown.largest
    ratio = (slow.ns / slow.count) / (slow.usual_ns / slow.usual_count) if slow.count and slow.usual_ns else None
    yield Finding(
        cause=CAUSE,
        resource="first use",
        root=str(case.process.pid),
        summary=f"{case.who} took {format_ns(lost)} longer for its first steps: {grown.text}",
        claims=claims,
        line=case.line_of(slow),
        chain=(
            grown.link(
                text=f"{slow.totals.name} loaded code or made a context the first time it was used",
                structure="the calls' exact sums in the first seconds of the process",
                order="later calls of the same kind are fast",
            ),
        ),
        fixes=(
            Fix(text="warm up before taking requests", command="CUDA_MODULE_LOADING=EAGER"),
            Fix(text="keep compiled kernels", command="TORCHINDUCTOR_CACHE_DIR=<volume> CUDA_CACHE_PATH=<volume>"),
        ),
        evidence={"times slower": round(ratio, 1) if ratio else None},
    )


RULE = Rule(
    cause=CAUSE,
    title="first use of contexts, modules and memory",
    order=46,
    needs=("epochs", "op_stats"),
    shows="the first calls of a process that began while it was recorded, against its later ones",
    limits="a process that ran before the recording began has no first steps in it",
    find=find,
)
