"""Time lost loading modules: kernels were compiled or loaded during the run."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import claim_inside_calls, grown_calls
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix, Part
from ingero.ops import Kind

CAUSE = "recompilation"


def explain(case: Case) -> Iterator[Finding]:
    """Module loads that the baseline does not have."""
    grown = grown_calls(case, Kind.LOAD)
    claims = claim_inside_calls(case, (Part.IDLE, Part.LAUNCH), grown) if grown else {}
    if not grown or not claims:
        return
    lost = sum(claims.values())
    yield Finding(
        cause=CAUSE,
        resource="modules",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} loading GPU code during the run: {grown.text}",
        claims=claims,
        line=case.line_of(grown.largest),
        chain=(grown.link(order="a kernel must be loaded before it is launched"),),
        fixes=(
            Fix(text="use fixed shapes, or compile dynamic ones once", command="torch.compile(model, dynamic=True)"),
            Fix(text="show what recompiles", command="TORCH_LOGS=recompiles"),
        ),
        evidence={"loads per step": round(grown.count, 3)},
    )


RULE = Rule(
    cause=CAUSE,
    title="GPU code was loaded during the run",
    order=48,
    needs=("sync_intervals", "op_stats"),
    shows="module and library loads per step against the baseline, with the line that caused them",
    limits="the compiler's own time before the load shows as host-bound Python or native code",
    explain=explain,
)
