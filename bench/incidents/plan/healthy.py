"""Healthy workloads: the right answer is silence."""

from __future__ import annotations

from collections.abc import Iterator

from bench.incidents.scenario import Disturbance, Scenario, Sched, Schedule

QUIET = Schedule(before_s=0, with_s=13, after_s=0)

# What the trainer is started with. Each costs what it costs for as long as it is seen, and is meant to.
TRAINERS: dict[str, tuple[str, ...]] = {
    "train": (),
    "gpu-bound": ("--sync", "never"),
    "evaluates": ("--eval-every", "100"),
    "accumulates": ("--accumulate", "4"),
    "runs-ahead": ("--sync-every", "8"),
    "varies": ("--us", "15", "--sequence", "4", "--nbytes", "4194304", "--vary"),
    "graph": ("--graph",),
    "two-streams": ("--streams",),
    "bystanders": ("--bystanders", "2"),
    "pinned": ("--pin-memory",),
    "autograd-thread": ("--autograd-thread",),
    "two-workers": ("--workers", "2"),
    "event": ("--sync", "event"),
    "device": ("--sync", "device"),
    "memcpy": ("--sync", "memcpy"),
    "queries": ("--sync", "query"),
    "long-steps": ("--us", "400", "--layers", "12"),
}

# What is asked of the inference server (arguments of serve_load).
TRAFFIC: dict[str, tuple[str, ...]] = {
    "idle": ("--clients", "1", "--requests", "100000", "--rate", "1"),
    "seldom": ("--clients", "2", "--requests", "100000", "--rate", "10"),
    "full": ("--clients", "8", "--requests", "100000"),
}
DEVICE_BOUND = ("--decode-us", "24")  # else a slow machine's launches hold it up, which is no health
ACTOR = ("--clients", "1", "--requests", "100000", "--rate", "20", "--new-tokens", "1")  # one step, then wait for work
SCHEDS: tuple[Sched, ...] = ("block", "spin", "yield")


def healthy_scenarios() -> Iterator[Scenario]:
    """Each trainer and each traffic; the most usual ones in every way of waiting."""
    for name, arguments in TRAINERS.items():
        for sched in SCHEDS if name in {"train", "runs-ahead", "varies"} else SCHEDS[:1]:
            label = f"alone-{name}" if name == "train" else name
            yield _healthy(f"{label}-{sched}", arguments=arguments, sched=sched)
    for name, traffic in TRAFFIC.items():
        yield Scenario(
            name=f"serve-{name}",
            group="healthy",
            workload="serve",
            arguments=DEVICE_BOUND,
            traffic=traffic,
            schedule=QUIET,
        )
    yield Scenario(
        name="serve-bursty",
        group="healthy",
        workload="serve",
        arguments=DEVICE_BOUND,
        traffic=TRAFFIC["full"],
        disturbances=(Disturbance(kind="traffic_stops", dose=0.0),),
        schedule=Schedule(before_s=2, with_s=11, after_s=0, on_s=0.7, off_s=0.4),
    )
    yield Scenario(name="actor", group="healthy", workload="serve", traffic=ACTOR, schedule=QUIET)
    yield Scenario(name="first-calls", group="healthy", schedule=QUIET, is_cold=True, allowed=frozenset({"cold-start"}))
    yield Scenario(name="ddp", group="healthy", workload="ddp", schedule=QUIET)
    yield Scenario(
        name="busy-host",
        group="healthy",
        disturbances=(Disturbance(kind="idle_hogs", dose=0.0),),
        schedule=Schedule(before_s=0, with_s=13, after_s=0, is_from_start=True),
    )


def _healthy(name: str, *, arguments: tuple[str, ...], sched: Sched) -> Scenario:
    return Scenario(name=name, group="healthy", arguments=arguments, sched=sched, schedule=QUIET)
