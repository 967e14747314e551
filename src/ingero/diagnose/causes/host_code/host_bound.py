"""The launching thread computed on the CPU, in the program's own code."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import claim_run_time
from ingero.diagnose.causes.cpu.cold_caches import cold_cache_ns
from ingero.diagnose.causes.host_code.extra_computing import extra_computing_time
from ingero.diagnose.causes.host_code.side_computing import computing_outside_loop
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix, Link

CAUSE = "host-bound"


def explain(case: Case) -> Iterator[Finding]:
    """On-CPU time on the critical path outside calls, where samples name a line."""
    outside_loop = computing_outside_loop(case)
    grown = outside_loop or extra_computing_time(case)
    claims = claim_run_time(case, grown, but_ns=cold_cache_ns(case))
    if not grown or not claims or grown.line is None:
        return
    lost = sum(claims.values())
    waited = " while the GPU waited" if case.knows_idle else ""
    yield Finding(
        cause=CAUSE,
        resource="host code",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} computing on the CPU{waited}, {grown.line}",
        claims=claims,
        is_outside_loop=outside_loop is not None,
        line=grown.line,
        chain=(
            Link(
                text=f"the launching thread was on a CPU outside calls, {grown.line}",
                seen_ns=int(grown.ns),
                expected_ns=0,
                structure=f"{grown.count} samples on its CPU beyond those of the baseline",
                order=f"{case.when_starving}, before the next launch",
            ),
        ),
        fixes=(
            Fix(text="move this work into data workers, or out of the step", command="DataLoader(num_workers=N)"),
            Fix(text="or profile it in detail", command=f"py-spy top --pid {case.process.pid}"),
        ),
        evidence={"samples": grown.count, "sampled (ns)": int(grown.ns)},
    )


RULE = Rule(
    cause=CAUSE,
    title="time was lost in the program's own host code",
    order=60,
    needs=("sync_intervals", "stack_samples"),
    shows="running time of the launching thread outside calls, and its line from samples beyond those of the baseline",
    limits="a line is named from five samples (about 50 ms) upward; without stacks such time is unexplained. Computing "
    "in the baseline is reported from a quarter of its time on (a tenth in functions that make no call). Where short "
    "calls took longer on the CPU, too, caches were colder, which is attributed to nothing. A loop that asks for work "
    "in system calls that answer at once (select, poll, epoll, sched_yield) is idle; one that asks a queue in memory "
    "alone looks like work",
    explain=explain,
)
