"""A critical-path thread was runnable while the job's own threads and workers had the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import CpuUser, contention_finding
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix
from ingero.diagnose.lost_time.time_ranges import NORMAL_VARIATION_RATIO
from ingero.diagnose.samples.process_roles import data_workers, max_concurrent

CAUSE = "self-oversubscription"


def explain(case: Case) -> Iterator[Finding]:
    """Run-queue time while the process's own threads or its workers ran."""
    workers = max_concurrent(data_workers(case.evidence, case.process), case.window)
    fewer = Fix(text=f"or fewer workers than its {workers}", command=f"DataLoader(num_workers={workers // 2})")
    finding = contention_finding(
        case,
        CAUSE,
        CpuUser.OWN,
        text="{who} lost {lost} waiting for a CPU while its job's own threads and workers ran: {cpu_users}",
        fixes=(
            Fix(
                text="run fewer threads than CPUs",
                command="OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 torch.set_num_threads(1)",
            ),
            *([fewer] if workers > 1 else []),
        ),
        min_wall_ratio=NORMAL_VARIATION_RATIO,  # threads of one job delay each other in healthy minutes, too
    )
    if finding:
        yield finding


RULE = Rule(
    cause=CAUSE,
    title="the job's own threads and workers were using the CPU",
    order=28,
    needs=("sync_intervals", "culprits", "offcpu", "scheduling", "cpu_seconds"),
    shows="the run-queue time of the critical-path threads, and which threads of the job ran meanwhile",
    limits="their time is known per process; the named thread is the one that ran longest during an individually "
    "recorded wait of the critical path",
    explain=explain,
)
