"""Time lost compiling GPU code, here or in a process that was waited for, or loading it, during the run."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import claim_inside_calls, grown_calls
from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import claim_run_time, is_more, run_growth, sample_count
from ingero.diagnose.causes.data.producers import production
from ingero.diagnose.causes.host_code.extra_computing import MAX_CPU_SLOWDOWN
from ingero.diagnose.causes.host_code.thread_waits import asleep_meanwhile
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Link, Part
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.stack_samples import Doing, at, compiles, matching_share, sampled_time
from ingero.ops import Kind

CAUSE = "recompilation"
_MIN_SHARE_OF_SAMPLES = 0.7  # of the sleeping samples, before they prove a wait for a compiler
_FIXES = (
    Fix(text="use fixed shapes, or compile dynamic ones once", command="torch.compile(model, dynamic=True)"),
    Fix(text="show what recompiles", command="TORCH_LOGS=recompiles"),
)


def explain(case: Case) -> Iterator[Finding]:
    """A compiler at work in the launching thread, waits for one elsewhere, and module loads beyond the baseline's."""
    if waiting := _waiting(case):
        yield waiting
    if compiling := _compiling(case):
        yield compiling
    if loading := _loading(case):
        yield loading


def _waiting(case: Case) -> Finding | None:
    """Waits for another thread or process, at a compiler's place."""

    def is_other(segment: PathSegment) -> bool:
        return segment.depth > 0 and segment.state != "stopped"

    waits = [wait for wait in case.waits if is_other(wait)]
    asleep = asleep_meanwhile(case, waits)
    share = matching_share(asleep, compiles)
    claims = case.claimable_on_path(is_other, share) if share >= _MIN_SHARE_OF_SAMPLES else {}
    if not claims:
        return None
    made = production(case, waits)
    lost, where = sum(claims.values()), sampled_time([group for group in asleep if compiles(group.stack)])
    return Finding(
        cause=CAUSE,
        resource="modules",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} while {made.who} compiled GPU code for it{at(where.line)}",
        claims=claims,
        culprits=made.culprits(lost),
        line=where.line,
        chain=(
            Link(
                text=f"the launching thread waited for {made.who}{at(where.line)}",
                seen_ns=lost,
                structure="the compiler's frames in its stack, and who woke it",
                order="a kernel must be compiled before it is launched",
            ),
        ),
        fixes=_FIXES,
        evidence={"samples": where.count},
    )


def _compiling(case: Case) -> Finding | None:
    """On-CPU time of the launching thread in a compiler, more than a slower CPU makes of the baseline's."""
    now, before, scale = case.host_sample_groups.of(Doing.COMPILING)
    if not is_more(sample_count(now), sample_count(before), MAX_CPU_SLOWDOWN * scale):
        return None
    grown = run_growth(case).get(Doing.COMPILING)
    claims: dict[Bucket, int] = claim_run_time(case, grown)
    if grown is None or not claims:
        return None
    return Finding(
        cause=CAUSE,
        resource="modules",
        root=str(case.process.pid),
        summary=f"{case.who} spent {case.amount(sum(claims.values()))} compiling GPU code{at(grown.line)}",
        claims=claims,
        line=grown.line,
        chain=(
            Link(
                text=f"the launching thread was in a compiler{at(grown.line)}",
                seen_ns=int(grown.ns),
                structure=f"{grown.count} samples on its CPU with a compiler's frames, beyond the baseline",
                order="a kernel must be compiled before it is launched",
            ),
        ),
        fixes=_FIXES,
        evidence={"samples": grown.count},
    )


def _loading(case: Case) -> Finding | None:
    grown = grown_calls(case, Kind.LOAD)
    claims = claim_inside_calls(case, (Part.IDLE, Part.LAUNCH), grown) if grown else {}
    if not grown or not claims:
        return None
    lost = sum(claims.values())
    return Finding(
        cause=CAUSE,
        resource="modules",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} loading GPU code during the run: {grown.text}",
        claims=claims,
        line=case.line_of(grown.largest),
        chain=(grown.link(order="a kernel must be loaded before it is launched"),),
        fixes=_FIXES,
        evidence={"loads per step": round(grown.count, 3)},
    )


RULE = Rule(
    cause=CAUSE,
    title="GPU code was compiled or loaded during the run",
    order=34,
    needs=("sync_intervals", "op_stats"),
    shows="module and library loads per step against the baseline, with the line that caused them; the time that the "
    "launching thread computed in a compiler, or waited for a thread or process that compiled for it",
    limits="compilers are known by the frames of PyTorch, Triton, JAX and Numba: another one shows as host-bound",
    explain=explain,
)
