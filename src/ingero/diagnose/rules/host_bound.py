"""The thread that feeds the GPU computed on the CPU, in the program's own code."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.apart import computing_apart
from ingero.diagnose.cases import Case
from ingero.diagnose.colder import colder_ns
from ingero.diagnose.host_time import claim_run
from ingero.diagnose.model import Finding, Fix, Link
from ingero.diagnose.more_work import more_computing
from ingero.diagnose.rule import Rule

CAUSE = "host-bound"


def find(case: Case) -> Iterator[Finding]:
    """On-CPU time outside calls on the path, where samples say at which line."""
    apart = computing_apart(case)
    grown = apart or more_computing(case)
    claims = claim_run(case, grown, but_ns=colder_ns(case))
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
        is_apart=apart is not None,
        line=grown.line,
        chain=(
            Link(
                text=f"the thread that feeds the GPU was on a CPU outside calls, {grown.line}",
                seen_ns=int(grown.ns),
                expected_ns=0,
                structure=f"{grown.count} samples on its CPU beyond those of the reference",
                order=f"{case.when_starving}, before the next launch",
            ),
        ),
        fixes=(
            Fix(text="move this work into data workers, or out of the step", command="DataLoader(num_workers=N)"),
            Fix(text="or see what it does in detail", command=f"py-spy top --pid {case.process.pid}"),
        ),
        evidence={"samples": grown.count, "sampled (ns)": int(grown.ns)},
    )


RULE = Rule(
    cause=CAUSE,
    title="the program's own code on the host took the time",
    order=60,
    needs=("sync_intervals", "stack_samples"),
    shows="on-CPU clocks of the feeding thread outside calls, and its line from samples beyond those of the reference",
    limits="a line is named from five samples on (about 50 ms); without stacks such time is unexplained. What a loop "
    "computes at its best is told from a quarter of its time on, in functions that no call comes from from a tenth. "
    "As far as short calls took longer on the CPU, too, its caches were colder, and that is nobody's. "
    "A loop that asks for work in system calls that answer at once (select, poll, epoll, sched_yield) is idle; one "
    "that asks a queue in memory alone looks like work",
    find=find,
)
