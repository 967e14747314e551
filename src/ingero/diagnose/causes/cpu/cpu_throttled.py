"""The kernel took the CPU away because the control group had used up its quota."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cgroup_commands import group_of, set_cpus
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS
from ingero.diagnose.causes.cpu.longest_wait import worst_part
from ingero.diagnose.causes.cpu.scheduling import SchedulerFacts
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.events import THREAD_STATES
from ingero.store.records import Throttling
from ingero.units import format_count, format_ns, format_number

CAUSE = "cpu-throttled"
_THROTTLED = THREAD_STATES.index("throttled")


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
    threads = _threads(case)
    by = f" by {threads} threads of its own" if threads > 1 else ""
    times = f", in {format_count(periods)} periods" if periods else ""
    yield Finding(
        cause=CAUSE,
        resource="cpu quota",
        root=place or str(case.process.cgroup_id or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because its CPU quota{limit} was used up{by}{times}",
        claims=claims,
        chain=(
            Link(
                text="the kernel throttled the critical-path thread",
                seen_ns=lost,
                expected_ns=0,
                structure="throttled time of its own run queue",
                order="from the time the quota was used up to the next period",
            ),
        ),
        fixes=tuple(_fixes(case, quota, lost, threads, is_container=bool(place))),
        evidence={
            "own threads throttled": threads,
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
        """In words: "0.3 CPUs (30.0 ms in each 100 ms)"."""
        quota, period = format_ns(self.quota_us * 1000), format_ns(self.period_us * 1000)
        return f"{format_number(self.cpus)} CPUs ({quota} in each {period})"


def _rows(case: Case) -> list[Throttling]:
    """The group's own counts; where it has none the limit is of a group above, and those of all groups are told."""
    rows = case.evidence.throttling(case.window)
    return [one for one in rows if one.cgroup_id == case.process.cgroup_id] or rows


def _threads(case: Case) -> int:
    """How many threads of the process and its workers ran out of it, as far as intervals off the CPU show."""
    if not case.evidence.has_offcpu:
        return 0
    rows = case.evidence.offcpu_in(worst_part(case))
    mine = rows[(rows["state"] == _THROTTLED) & np.isin(rows["process"], case.members)]
    return len(np.unique(mine["tid"]))


def _wanted_cpus(case: Case) -> float:
    """How many CPUs they would have used, had there been enough: they ran, or could have run but for a limit."""
    mine = (one.clocks for one in case.evidence.thread_state_totals(case.window) if one.process in case.members)
    return sum(one.run_ns + one.throttled_ns for one in mine) / max(case.window.duration_ns, 1)


def _fixes(case: Case, quota: Quota | None, lost_ns: int, threads: int, *, is_container: bool) -> Iterator[Fix]:
    # without the throttled time the same work would have used its CPU time in so much less of the wall time
    wanted = quota.cpus * case.wall_ns / max(case.wall_ns - lost_ns, 1) if quota else 0.0
    is_many = quota is not None and threads > max(quota.cpus, 1)
    if is_many and quota:
        count = max(int(quota.cpus), 1)
        yield Fix(
            text=f"run no more threads than the quota has CPUs: {threads} threads share {format_number(quota.cpus)}, "
            f"and would use up {format_number(_wanted_cpus(case), 2)} as well",
            command=f"OMP_NUM_THREADS={count}  # or torch.set_num_threads({count}); and MKL_NUM_THREADS, fewer workers",
        )
        cores = max((one.cpu_count for one in case.evidence.sessions), default=0) or threads
        wanted = max(wanted, min(_wanted_cpus(case), threads, cores))
    group = group_of(case.evidence, case.process.cgroup_id)
    command = set_cpus(group, wanted, period_us=quota.period_us) if quota else set_cpus(group)
    or_ = "or " if is_many else ""
    if is_container:
        yield Fix(text=f"{or_}raise the CPU limit, or remove it and keep the request", command=command)
    else:
        least = f" to at least {format_number(wanted, 2)} CPUs" if quota else ""
        yield Fix(text=f"{or_}raise the quota of its cgroup{least}", command=command)
    if not is_many:
        yield Fix(text="or run fewer threads at once: they share one quota", command="OMP_NUM_THREADS=1")


RULE = Rule(
    cause=CAUSE,
    title="throttled (CPU quota)",
    order=10,
    needs=("sync_intervals", "thread_state_seconds"),
    shows="the kernel's throttled time of the critical-path thread, the quota and its period, and in how many "
    "periods it was used up",
    limits="before Linux 6.18 a task throttled through a parent group shows in its own run queue's time",
    find=find,
)
