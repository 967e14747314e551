"""CPU bandwidth control throttled the process: its cgroup had used up its quota."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS
from ingero.diagnose.causes.cpu.longest_wait import worst_part
from ingero.diagnose.causes.cpu.scheduling import SchedulerFacts
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.diagnose.limit_commands import cgroup_by_id, processes_of, set_cpus
from ingero.events import THREAD_STATES
from ingero.store.records import Throttling
from ingero.units import format_count, format_ns, format_number, format_percent

CAUSE = "cpu-throttled"
_THROTTLED_STATE = THREAD_STATES.index("throttled")
_MOST = 0.5  # of the quota used by others, before the job's own threads are not to blame


def explain(case: Case) -> Iterator[Finding]:
    """Throttled time of the process and of the worker that it waited for."""
    claims = case.claimable(HOST_PARTS, ("throttled",)) | case.claimable_in_state("throttled")
    if not claims:
        return
    lost = sum(claims.values())
    place = case.evidence.container_of(case.process.cgroup_id)
    row = SchedulerFacts(case).in_force(case.process.pid, case.process.pid)
    quota = Quota(row.quota_us, row.period_us) if row and row.quota_us and row.period_us else None
    rows = _throttling_rows(case)
    periods = sum(row.nr_throttled for row in rows)
    limit_text = f" of {quota.text}" if quota else ""
    threads = _throttled_threads(case)
    others = _share_of_others(case, quota, rows) if quota else 0.0
    threads_text = f" by {threads} threads of its own" if threads > 1 else ""
    is_by_others = others >= _MOST
    if is_by_others:
        threads_text = f", at least {format_percent(others)} of it by processes of its cgroup that are not traced"
    periods_text = f", in {format_count(periods)} periods" if periods else ""
    yield Finding(
        cause=CAUSE,
        resource="cpu quota",
        root=place or str(case.process.cgroup_id or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because its CPU quota{limit_text} was used "
        f"up{threads_text}{periods_text}",
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
        fixes=tuple(_fixes(case, quota, lost, None if is_by_others else threads, is_container=bool(place))),
        evidence={
            "own threads throttled": threads,
            "used by others (ratio, at least)": round(others, 4) or None,
            "periods throttled": periods,
            "quota (us)": quota.quota_us if quota else None,
            "period (us)": quota.period_us if quota else None,
        },
    )


@dataclass(frozen=True, slots=True)
class Quota:
    """A CFS quota: CPU time per period."""

    quota_us: int
    period_us: int

    @property
    def cpus(self) -> float:
        """The quota as a number of CPUs."""
        return self.quota_us / self.period_us

    @property
    def text(self) -> str:
        """For people: "0.3 CPUs (30.0 ms in each 100 ms)"."""
        quota, period = format_ns(self.quota_us * 1000), format_ns(self.period_us * 1000)
        return f"{format_number(self.cpus)} CPUs ({quota} in each {period})"


def _throttling_rows(case: Case) -> list[Throttling]:
    """The cgroup's own throttling counters; without any, those of all cgroups, as the limit is then an ancestor's."""
    rows = case.evidence.throttling(case.window)
    return [row for row in rows if row.cgroup_id == case.process.cgroup_id] or rows


def _throttled_threads(case: Case) -> int:
    """How many threads of the process and its workers were throttled, as far as off-CPU intervals show."""
    if not case.evidence.has_offcpu:
        return 0
    rows = case.evidence.offcpu_in(worst_part(case))
    throttled = rows[(rows["state"] == _THROTTLED_STATE) & np.isin(rows["process"], case.members)]
    return len(np.unique(throttled["tid"]))


def _share_of_others(case: Case, quota: Quota, rows: Sequence[Throttling]) -> float:
    """The least share of the quota of the throttled periods that processes used which were not traced, 0 to 1.

    Each such period used the quota up; no more of that than all of their running time is of the job and the other
    traced processes of the cgroup. 0.0 where the quota changed meanwhile.
    """
    group, window = case.process.cgroup_id, case.window
    mine = {
        one.process for one in case.evidence.processes.values() if one.pid in case.job or one.cgroup_id == group
    } | set(case.members)
    changes = SchedulerFacts(case).history(case.process.pid, case.process.pid)
    if any(window.begin_ns < one.time_ns < window.end_ns and one.quota_us != quota.quota_us for one in changes):
        return 0.0
    used_ns = sum(row.nr_throttled for row in rows if row.cgroup_id == group) * quota.quota_us * 1000
    own = [row.clocks.run_ns for row in case.evidence.thread_state_totals(window) if row.process in mine]
    return max(1 - sum(own) / used_ns, 0.0) if used_ns and own else 0.0


def _wanted_cpus(case: Case) -> float:
    """How many CPUs the job would have used without the quota: its running and its throttled time."""
    own_clocks = (row.clocks for row in case.evidence.thread_state_totals(case.window) if row.process in case.members)
    return sum(clocks.run_ns + clocks.throttled_ns for clocks in own_clocks) / max(case.window.duration_ns, 1)


def _fixes(case: Case, quota: Quota | None, lost_ns: int, threads: int | None, *, is_container: bool) -> Iterator[Fix]:
    """threads: of its own that were throttled; None: others used the quota."""
    # without throttling, the same CPU time would have been used in that much less wall time
    wanted = quota.cpus * case.wall_ns / max(case.wall_ns - lost_ns, 1) if quota else 0.0
    is_many = quota is not None and threads is not None and threads > max(quota.cpus, 1)
    if is_many and quota and threads:
        count = max(int(quota.cpus), 1)
        yield Fix(
            text=f"run no more threads than the quota has CPUs: {threads} threads share {format_number(quota.cpus)}, "
            f"and would use up {format_number(_wanted_cpus(case), 2)} as well",
            command=f"OMP_NUM_THREADS={count}  # or torch.set_num_threads({count}); and MKL_NUM_THREADS, fewer workers",
        )
        cores = max((session.cpu_count for session in case.evidence.sessions), default=0) or threads
        wanted = max(wanted, min(_wanted_cpus(case), threads, cores))
    group = cgroup_by_id(case.evidence, case.process.cgroup_id)
    command = set_cpus(group, wanted, period_us=quota.period_us) if quota else set_cpus(group)
    if threads is None:
        yield Fix(text="see who else uses its quota, and move that to a group of its own", command=processes_of(group))
    or_ = "or " if is_many or threads is None else ""
    if is_container:
        yield Fix(text=f"{or_}raise the CPU limit, or remove it and keep the request", command=command)
    else:
        least = f" to at least {format_number(wanted, 2)} CPUs" if quota else ""
        yield Fix(text=f"{or_}raise the quota of its cgroup{least}", command=command)
    if threads is not None and not is_many:
        yield Fix(text="or run fewer threads at once: they share one quota", command="OMP_NUM_THREADS=1")


RULE = Rule(
    cause=CAUSE,
    title="throttled (CPU quota)",
    order=10,
    needs=("sync_intervals", "thread_state_seconds"),
    shows="the kernel's throttled time of the critical-path thread, the quota and its period, in how many periods it "
    "was used up, and how much of that at least by processes that were not traced",
    limits="before Linux 6.18 a task throttled through a parent group shows in its own run queue's time",
    explain=explain,
)
