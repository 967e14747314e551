"""The scenarios on programs that do not wait for their main stream once a step: each fault, and what hides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.incidents.plan.kinds import KINDS, NEEDS_A_BETTER_TIME
from bench.incidents.plan.making import disturbed
from bench.incidents.plan.programs import GPU_PACED, HOST_BOUND, INFERENCE, PROGRAMS, Program
from bench.incidents.plan.settings import setting
from bench.incidents.scenario import Disturbance, Scenario, Sched, Schedule

DOSES = (0.20, 0.50)
LOW_DOSES = (0.05, 0.10)
QUIET = Schedule(before_s=0, with_s=13, after_s=0)
FROM_START = Schedule(before_s=0, with_s=10, after_s=0, is_from_start=True)
INTERMITTENT = Schedule(before_s=5, with_s=8, after_s=2, on_s=1, off_s=1)
LEAKING = Schedule(before_s=5, with_s=45, after_s=2)  # shorter, it may be a model that is being loaded

EVERYWHERE = (
    "slow_worker", "busy_worker", "gpu_throttle", "gpu_slow", "sleep_in_loop", "host_metrics", "cpu_hog", "gil_hog",
)  # fmt: skip
WIDELY = ("nosync", "batchcopy", "copystream")
ON_THESE = (
    "big_items", "io_storm", "slow_mount", "tcp_loss", "worker_cpu_starved", "lock_hog", "garbage", "spike",
    "checkpoint", "sigstop", "pcie_slow", "launch_slow", "gpu_contention", "cfs_quota", "pgfault_storm", "item",
)  # fmt: skip
AT_LOW_DOSES = ("slow_worker", "gpu_throttle", "sleep_in_loop", "launch_slow")
OF_THE_HOST = (
    "cpu_hog", "noisy_neighbor", "own_threads", "cfs_quota", "gil_hog", "lock_hog", "host_metrics", "garbage",
    "sleep_in_loop", "spike", "checkpoint", "sigstop",
)  # fmt: skip
OF_INFERENCE = (
    "cpu_hog", "gpu_throttle", "gpu_slow", "sleep_in_loop", "host_metrics", "gil_hog", "lock_hog", "sigstop",
)  # fmt: skip
FIXED = {
    "nice_trainer": 0.80, "mem_reclaim": 0.01, "mem_thrash": 0.07, "oom": 0.0, "leak": 0.01, "gpu_oom": 0.0,
    "gpu_hang": 1.0, "retries": 0.50, "malloc_storm": 0.50,
}  # fmt: skip
STARTING = ("slow_worker", "sleep_in_loop", "gpu_throttle", "host_metrics")
IN_EVERY_SCHED = ("slow_worker", "gpu_throttle", "sleep_in_loop", "gil_hog", "cpu_hog")
SCHEDS: tuple[Sched, ...] = ("spin", "yield")
DDP = ("--watchdog", "--sync-every", "100")

# What hides, whatever it would cost a loop that waits: (kind, dose) and the programs.
HIDDEN = (
    ("sleep_in_loop", 0.20, ("nosync", "batchcopy", "itemmid", "copystream", "pipeline", "eval", "shapes")),
    ("host_metrics", 0.20, ("nosync", "batchcopy", "itemmid", "copystream", "pipeline", "eval", "shapes")),
    ("sleep_in_loop", 0.10, ("tokens",)),
    ("lock_hog", 0.10, ("nosync", "batchcopy", "pipeline")),
    ("pcie_slow", 0.10, ("copystream",)),
    ("gpu_slow", 0.20, tuple(HOST_BOUND)),
    ("gpu_throttle", 0.20, tuple(HOST_BOUND)),
)
HARMLESS = ("longer_sequences", "other_io", "other_retransmits", "hog_elsewhere")

# Healthy variants beside the programs themselves: (name, program, further arguments).
VARIANTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("nosync-pinned", "nosync", ("--pin-memory",)),
    ("nosync-streams", "nosync", ("--streams",)),
    ("nosync-varies", "nosync", ("--us", "15", "--sequence", "4", "--nbytes", "4194304", "--vary")),
    ("nosync-bystanders", "nosync", ("--bystanders", "2")),
    ("nosync-two-workers", "nosync", ("--workers", "2")),
    ("nosync-long-steps", "nosync", ("--us", "400", "--layers", "12")),
    ("copystream-pageable", "copystream", ("--pageable",)),
    ("batchcopy-looks", "batchcopy", ("--sync", "pageable", "--sync-every", "10")),
    ("accumulate-shapes", "accumulate", ("--shapes", "2")),
)


def unsynced_scenarios() -> Iterator[Scenario]:
    """Faults at doses that get through, faults that do not, harmless disturbances, and nothing at all."""
    yield from _faults()
    yield from _of_host_and_inference()
    yield from _fixed()
    yield from _schedules()
    yield from _hidden()
    yield from _harmless()
    yield from _healthy()


def _faults() -> Iterator[Scenario]:
    for name in GPU_PACED:
        for kind in (*EVERYWHERE, *(ON_THESE if name in WIDELY else ())):
            for dose in (*(LOW_DOSES if kind in AT_LOW_DOSES and name in WIDELY[:2] else ()), *DOSES):
                yield _on(name, kind, dose)
    for sched in SCHEDS:
        for kind in IN_EVERY_SCHED:
            yield _on("nosync", kind, 0.50, sched)
        for kind in (*IN_EVERY_SCHED, "pcie_slow"):  # a thread that polls does not show when it began to copy
            yield _on("batchcopy", kind, 0.50, sched)


def _of_host_and_inference() -> Iterator[Scenario]:
    for name in HOST_BOUND:
        for kind in OF_THE_HOST if name != "pipeline-host" else OF_THE_HOST[:4]:
            for dose in DOSES:
                yield _on(name, kind, dose)
    for name in INFERENCE:
        for kind in OF_INFERENCE:
            for dose in DOSES:
                yield _on(name, kind, dose)


def _fixed() -> Iterator[Scenario]:
    for kind, dose in FIXED.items():
        made = _on("nosync", kind, dose)
        yield replace(made, schedule=LEAKING) if kind == "leak" else made
    for kind, doses in (("nccl_straggler", DOSES), ("nccl_hang", (1.0,))):
        for dose in doses:
            yield replace(disturbed(kind, dose, "block", "nosync", arguments=DDP), program="nosync")


def _schedules() -> Iterator[Scenario]:
    for kind in STARTING:
        for name in ("nosync", "batchcopy"):
            blind = NEEDS_A_BETTER_TIME if kind == "gpu_throttle" else ""
            yield _on(name, kind, 0.50, label="start", schedule=FROM_START, blind=blind)
            yield _on(name, kind, 0.50, label="intermittent", schedule=INTERMITTENT)


def _hidden() -> Iterator[Scenario]:
    for kind, dose, programs in HIDDEN:
        for name in programs:
            made = _plain(name, kind, dose, label="hidden")
            yield replace(made, group="harmless", expected=(), hidden=made.expected)


def _harmless() -> Iterator[Scenario]:
    for kind in HARMLESS:
        for name in ("nosync", "batchcopy"):
            made = replace(_plain(name, kind, 0.0), name=f"{kind}-block-{name}", group="harmless")
            if kind == "hog_elsewhere":
                made = replace(
                    made, cpus=frozenset({0}), arguments=(*made.arguments, "--workers", "0", "--cpu-ms", "0.1")
                )
            yield made


def _healthy() -> Iterator[Scenario]:
    for name, program in PROGRAMS.items():
        for sched in ("block", *(SCHEDS if name in {"nosync", "batchcopy", "tokens"} else ())):
            yield _quiet(f"alone-{name}-{sched}", name, program, sched=sched)
    for label, name, more in VARIANTS:
        yield _quiet(f"{label}-block", name, PROGRAMS[name], more)
    alone = _quiet("ddp-nosync-block", "nosync", PROGRAMS["nosync"])
    yield replace(alone, workload="ddp", arguments=DDP)
    yield replace(alone, name="nosync-graph-block", arguments=("--graph", "--sync-every", "100"))


def _quiet(label: str, name: str, program: Program, more: tuple[str, ...] = (), sched: Sched = "block") -> Scenario:
    return Scenario(
        name=label,
        group="healthy",
        workload=program.workload,
        arguments=(*program.arguments, *more),
        sched=sched,
        schedule=QUIET,
        program=name,
        own=program.own,
    )


def _on(
    name: str,
    kind: str,
    dose: float,
    sched: Sched = "block",
    label: str = "",
    schedule: Schedule = Schedule(),  # noqa: B008 it is frozen
    *,
    blind: str = "",
) -> Scenario:
    """A kind on a program, so strong that the dose gets through."""
    made = _plain(name, kind, dose, sched, label, schedule, blind=blind)
    return replace(made, disturbances=(Disturbance(kind=kind, dose=setting(PROGRAMS[name], kind, dose)),))


def _plain(
    name: str,
    kind: str,
    dose: float,
    sched: Sched = "block",
    label: str = "",
    schedule: Schedule = Schedule(),  # noqa: B008 it is frozen
    *,
    blind: str = "",
) -> Scenario:
    """A kind on a program, as strong as for the default loop."""
    program = PROGRAMS[name]
    arguments = (*program.arguments, *(("--sync-every", "100") if "--sync-every" in KINDS[kind].arguments else ()))
    made = disturbed(
        kind, dose, sched, "-".join(part for part in (name, label) if part), schedule, arguments=arguments, blind=blind
    )
    return replace(made, workload=program.workload, program=name, own=program.own, group=label or "unsynced")
