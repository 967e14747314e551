"""The kernel took the CPU away because the control group had used up its quota."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingero.diagnose.cases import Case
from ingero.diagnose.limit_commands import group_of, set_cpus
from ingero.diagnose.model import Finding, Fix, Link
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import HOST_PARTS
from ingero.diagnose.scheduler_facts import SchedulerFacts
from ingero.store.records import Throttling
from ingero.units import format_count

CAUSE = "cpu-throttled"


def find(case: Case) -> Iterator[Finding]:
    """Time of the throttled clock, and of a worker's that the process waited for."""
    claims = case.take(HOST_PARTS, ("throttled",)) | case.take_state("throttled")
    if not claims:
        return
    lost = sum(claims.values())
    place = case.evidence.container_of(case.process.cgroup_id)
    row = SchedulerFacts(case).in_force(case.process.pid, case.process.pid)
    quota = Quota(row.quota_us, row.period_us) if row and row.quota_us and row.period_us else None
    periods = sum(one.nr_throttled for one in _rows(case))
    limit = f" of {quota.text}" if quota else ""
    times = f", in {format_count(periods)} periods" if periods else ""
    yield Finding(
        cause=CAUSE,
        resource="cpu quota",
        root=place or str(case.process.cgroup_id or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because its CPU quota{limit} was used up{times}",
        claims=claims,
        chain=(
            Link(
                text="the kernel throttled the thread on the path",
                seen_ns=lost,
                expected_ns=0,
                structure="the throttled clock of its own run queue",
                order="from the moment the quota was used up to the next period",
            ),
        ),
        fixes=tuple(_fixes(case, quota, lost, is_container=bool(place))),
        evidence={
            "periods throttled": periods,
            "quota (us)": quota.quota_us if quota else None,
            "period (us)": quota.period_us if quota else None,
        },
    )


@dataclass(frozen=True, slots=True)
class Quota:
    """So much CPU time in each period."""

    quota_us: int
    period_us: int

    @property
    def cpus(self) -> float:
        """As a number of CPUs."""
        return self.quota_us / self.period_us

    @property
    def text(self) -> str:
        """In words: "0.3 CPUs (30 ms in each 100 ms)"."""
        return f"{self.cpus:.3g} CPUs ({self.quota_us / 1000:.3g} ms in each {self.period_us / 1000:.3g} ms)"


def _rows(case: Case) -> list[Throttling]:
    """The group's own counts; where it has none the limit is of a group above, and those of all groups are told."""
    rows = case.evidence.throttling(case.window)
    return [one for one in rows if one.cgroup_id == case.process.cgroup_id] or rows


def _fixes(case: Case, quota: Quota | None, lost_ns: int, *, is_container: bool) -> Iterator[Fix]:
    # without the throttled time the same work would have used its CPU time in so much less of the wall time
    wanted = quota.cpus * case.wall_ns / max(case.wall_ns - lost_ns, 1) if quota else 0.0
    group = group_of(case.evidence, case.process.cgroup_id)
    command = set_cpus(group, wanted, period_us=quota.period_us) if quota else set_cpus(group)
    if is_container:
        yield Fix(text="raise the CPU limit, or remove it and keep the request", command=command)
    else:
        least = f" to at least {wanted:.2g} CPUs" if quota else ""
        yield Fix(text=f"raise the quota of its control group{least}", command=command)
    yield Fix(text="or use less CPU time at once: fewer threads share one quota", command="OMP_NUM_THREADS=1")


RULE = Rule(
    cause=CAUSE,
    title="throttled by a CPU quota",
    order=10,
    needs=("epochs", "clock_seconds"),
    shows="the kernel's own throttled clock of the thread on the path, the quota and its period, and in how many "
    "periods it was used up",
    limits="before Linux 6.18 a task throttled through a parent group is seen by its own run queue's clock",
    find=find,
)
