"""All scenarios, put together from kinds, doses, ways of waiting and schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.incidents.plan.healthy import healthy_scenarios
from bench.incidents.plan.kinds import KINDS, NEEDS_A_BETTER_TIME
from bench.incidents.plan.making import disturbed
from bench.incidents.plan.unsynced import unsynced_scenarios
from bench.incidents.scenario import Disturbance, Scenario, Sched, Schedule

DOSES = (0.01, 0.03, 0.05, 0.10, 0.20, 0.50)
SCHEDS: tuple[Sched, ...] = ("block", "spin", "yield")
FROM_START = Schedule(before_s=0, with_s=10, after_s=0, is_from_start=True)
DRIFTING = Schedule(before_s=5, with_s=10, after_s=2, drifts=True)
LEAKING = Schedule(before_s=5, with_s=45, after_s=2)  # shorter, it may be a model that is being loaded
INTERMITTENT = Schedule(before_s=5, with_s=8, after_s=2, on_s=1, off_s=1)

# Kinds whose dose is set; the others have the one that their recipe gives them (a share of wall time, about).
DOSED = (
    "cpu_hog", "worker_cpu_starved", "cfs_quota", "noisy_neighbor", "own_threads", "slow_worker", "busy_worker",
    "big_items", "io_storm", "slow_mount", "tcp_loss", "gil_hog", "lock_hog", "host_metrics", "garbage",
    "sleep_in_loop", "spike",
    "item", "checkpoint", "sigstop", "pgfault_storm", "gpu_throttle", "gpu_slow", "pcie_slow", "malloc_storm",
    "retries", "launch_slow", "nccl_straggler",
)  # fmt: skip
FIXED = {
    "cpu_hog_nice": 0.02, "nice_trainer": 0.80, "pin_one_cpu": 0.30, "mem_reclaim": 0.01, "mem_thrash": 0.07,
    "oom": 0.0, "gpu_contention": 0.50, "leak": 0.01, "gpu_oom": 0.0, "gpu_hang": 1.0, "nccl_hang": 1.0,
}  # fmt: skip
FROM_START_TOO = ("cpu_hog", "slow_worker", "sleep_in_loop", "gil_hog", "host_metrics", "gpu_throttle", "launch_slow")
AT_THE_DEVICE = frozenset({"gpu_throttle", "gpu_slow", "pcie_slow", "launch_slow", "malloc_storm"})
DRIFTING_TOO = ("cpu_hog", "slow_worker", "host_metrics", "gpu_throttle", "pcie_slow", "launch_slow")
INTERMITTENT_TOO = ("cpu_hog", "slow_worker", "sleep_in_loop", "gil_hog", "gpu_throttle", "pcie_slow")
IN_EVERY_SCHED = ("cpu_hog", "slow_worker", "gpu_throttle", "sleep_in_loop", "cfs_quota", "gil_hog", "pcie_slow")
RUN_AHEAD = ("cpu_hog", "slow_worker", "gpu_throttle", "host_metrics", "sleep_in_loop")
TWO_AT_ONCE = (
    ("cpu_hog", "gpu_throttle"), ("slow_worker", "gpu_throttle"), ("sleep_in_loop", "gpu_slow"),
    ("cpu_hog", "pcie_slow"), ("sleep_in_loop", "slow_worker"), ("host_metrics", "gpu_throttle"),
)  # fmt: skip
HARMLESS = ("longer_sequences", "hidden_stall", "hog_elsewhere", "other_io", "other_retransmits", "traffic_stops")

# The subset of `make test`: the ways a stall can come about, one of each, and four times nothing.
FAST = frozenset(
    {
        "cpu_hog-50-spin", "slow_worker-50-block", "busy_worker-50-block", "cfs_quota-50-block",
        "gpu_throttle-50-block", "pcie_slow-50-block", "sleep_in_loop-50-block", "sigstop-20-block",
        "launch_slow-50-block", "gil_hog-50-block", "alone-train-block", "hidden_stall-block",
        "longer_sequences-block", "serve-idle", "slow_worker-50-block-batchcopy", "gpu_throttle-50-block-nosync",
        "host_metrics-50-block-pipeline", "sleep_in_loop-20-block-nosync-hidden", "alone-nosync-block",
    }
)  # fmt: skip


def all_scenarios() -> tuple[Scenario, ...]:
    """Every scenario, controls not included."""
    made = [*_faults(), *_schedules(), *_two_at_once(), *_harmless(), *healthy_scenarios(), *unsynced_scenarios()]
    names = [one.name for one in made]
    assert len(set(names)) == len(names), "two scenarios of one name"
    return tuple(replace(one, is_fast=one.name in FAST) for one in made)


def control_of(scenario: Scenario) -> Scenario:
    """The scenario without its disturbances, shared by all scenarios that differ only in these."""
    varying = {one.kind for one in scenario.disturbances if KINDS[one.kind].knobs(one.dose)}
    doses = [f"{one.kind}{round(100 * one.dose)}" for one in scenario.disturbances if one.kind in varying]
    prepared = sorted({one.kind for one in scenario.disturbances if _needs_preparation(one.kind)})
    own = [one.strip("-") for one in scenario.arguments]
    parts = ["alone", scenario.workload, *own, *prepared, *doses, scenario.sched]
    if scenario.cpus:
        parts.append("cpu" + "".join(map(str, sorted(scenario.cpus))))
    name = "-".join(parts).replace("/", "_")
    return replace(
        scenario,
        name=name,
        group="control",
        schedule=Schedule(before_s=5, with_s=10, after_s=2),
        expected=(),
        hidden=(),
        allowed=frozenset(),
        is_control=True,
        is_fast=False,
    )


def _needs_preparation(kind: str) -> bool:
    """Whether a kind of disturbance needs its workload to be prepared or started differently."""
    return kind in _PREPARED or bool(KINDS[kind].arguments)


# Kinds whose recipe prepares something for the workload, beside those with arguments.
_PREPARED = frozenset(
    {
        "worker_cpu_starved", "pin_one_cpu", "noisy_neighbor", "io_storm", "slow_mount", "tcp_loss", "mem_reclaim",
        "mem_thrash",        "checkpoint",
    }
)  # fmt: skip


def _faults() -> Iterator[Scenario]:
    for kind in DOSED:
        for dose in DOSES:
            yield disturbed(kind, dose, "block")
    for kind, dose in FIXED.items():
        made = disturbed(kind, dose, "block")
        yield replace(made, schedule=LEAKING) if kind == "leak" else made
    for kind in IN_EVERY_SCHED:
        for sched in SCHEDS[1:]:
            for dose in (0.10, 0.20, 0.50):
                yield disturbed(kind, dose, sched)


def _schedules() -> Iterator[Scenario]:
    for kind in FROM_START_TOO:
        blind = NEEDS_A_BETTER_TIME if kind in AT_THE_DEVICE else ""
        for dose in (0.20, 0.50):
            yield disturbed(kind, dose, "block", "start", FROM_START, blind=blind)
    for kind in DRIFTING_TOO:
        yield disturbed(kind, 0.50, "block", "drifting", DRIFTING)
    for kind in INTERMITTENT_TOO:
        yield disturbed(kind, 0.50, "block", "intermittent", INTERMITTENT)
    for kind in RUN_AHEAD:
        for dose in (0.20, 0.50):
            yield disturbed(kind, dose, "block", "ahead", arguments=("--sync-every", "8"))
    cold = Schedule(before_s=0, with_s=10, after_s=0, is_from_start=True)
    yield replace(disturbed("slow_modules", 0.0, "block", "cold", cold), is_cold=True)
    serving = disturbed("cpu_hog", 0.50, "block", "serving")
    # On a slow machine the launches of its short kernels hold it up without any hog, too (healthy.DEVICE_BOUND).
    serving = replace(serving, allowed=serving.allowed | {"launch-bound"})
    yield replace(serving, workload="serve", traffic=("--clients", "4", "--requests", "100000"))


def _two_at_once() -> Iterator[Scenario]:
    for first, second in TWO_AT_ONCE:
        for dose in (0.20, 0.50):
            kinds = [KINDS[first], KINDS[second]]
            yield Scenario(
                name=f"{first}+{second}-{round(100 * dose)}-block",
                group="two at once",
                disturbances=(Disturbance(kind=first, dose=dose), Disturbance(kind=second, dose=dose)),
                expected=tuple(kind.expected for kind in kinds if kind.expected),
            )


def _harmless() -> Iterator[Scenario]:
    for kind in HARMLESS:
        for sched in SCHEDS:
            made = disturbed(kind, 0.0, sched)
            name = f"{kind}-{sched}"
            if kind == "hog_elsewhere":
                # Without a worker: it and a trainer on one CPU take that from each other, 8 to 12% of the time where
                # the trainer spins, and that is worth telling.
                made = replace(made, cpus=frozenset({0}), arguments=("--workers", "0", "--cpu-ms", "0.1"))
            if kind == "traffic_stops":
                made = replace(made, traffic=("--clients", "2", "--requests", "100000"))
            yield replace(made, name=name, group="harmless")
