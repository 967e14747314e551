"""All kinds of disturbances with their right answers; `doses.py` sets their strength."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.incidents.neighbors import NoisyNeighbor, SecondProgram, SlowMount, UnrelatedRetransmits, UnrelatedWriters
from bench.incidents.plan.doses import (
    COLLECTION_MS,
    DDP_STEP_MS,
    DEMAND_US,
    LOST_PACKETS,
    MIB,
    PIPE_MS_PER_MIB,
    RETRIES,
    STARVED_LOSS,
    STEP_MS,
    gil_duty,
    hog,
    launch_us,
    lock_ms,
    more_ms,
    pcie_gbps,
    slow_worker_ms,
    storm_duty,
    throttled,
)
from bench.incidents.recipes import Nothing, Pulses, Stopped, Together, WithArguments
from bench.incidents.scenario import INJECTED, Expected, Kind, Place
from ingero.demo.faults.cpu import LOWEST_PRIORITY, CpuHog, NiceTrainer, PinOneCpu
from ingero.demo.faults.device import DeviceKnob
from ingero.demo.faults.disk import IoStorm
from ingero.demo.faults.host import Knob
from ingero.demo.faults.memory import MemoryLimit, OomKill, PageFaultStorm
from ingero.demo.faults.network import TcpLoss
from ingero.demo.faults.quota import CfsQuota

WORKER = ("pt_data_worker",)


def names(*causes: str) -> frozenset[str]:
    """A set of causes."""
    return frozenset(causes)


def one(*causes: str, why: str = "") -> Expected:
    """An expected cause without a culprit and without a line."""
    return Expected(causes=names(*causes), why=why)


BOTH_END_IN_ONE_SYNC = "copies that do not block end in the same sync as the kernels: which was slow is not visible"
NEEDS_A_BETTER_TIME = "a device that was always like this has no better time to be compared with"
STARVED_BY_HOG = "the hogs starve the worker, the worker starves the device: both links of one chain"
WORKER_IS_BLOCKED = "the worker waits for it, the device for the worker: both links of one chain"

# Kinds that are easily taken for each other; both sides of each pair are in the plan, and the score says who was.
PAIRS: tuple[tuple[str, str], ...] = (
    ("gpu_throttle", "longer_sequences"),
    ("gpu_slow", "pcie_slow"),
    ("cfs_quota", "cpu_hog"),
    ("slow_mount", "io_storm"),
    ("gil_hog", "lock_hog"),
    ("slow_worker", "tcp_loss"),
    ("slow_worker", "busy_worker"),
    ("traffic_stops", "slow_worker"),
)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # CPU
        "cpu_hog": Kind(
            recipe=hog,
            expected=Expected(causes=names("cpu-contention"), culprits=(INJECTED,)),
            allowed=names("data-starvation"),  # so many hogs starve the worker, too
            drifts=True,
        ),
        "cpu_hog_nice": Kind(
            recipe=lambda _dose, _sched: CpuHog(nice=LOWEST_PRIORITY),
            expected=Expected(causes=names("cpu-contention"), culprits=(INJECTED,)),
        ),
        "worker_cpu_starved": Kind(
            recipe=lambda dose, sched: hog(dose, sched, STARVED_LOSS, cpu_ms=5),
            expected=Expected(causes=names("cpu-contention", "data-starvation"), why=STARVED_BY_HOG),
        ),
        "nice_trainer": Kind(
            recipe=lambda _dose, _sched: NiceTrainer(),
            expected=Expected(causes=names("priority"), culprits=(INJECTED,)),
        ),
        "pin_one_cpu": Kind(recipe=lambda _dose, _sched: PinOneCpu(), expected=one("cpu-affinity")),
        "cfs_quota": Kind(
            recipe=lambda dose, sched: CfsQuota(quota_us=round(DEMAND_US[sched] * (1 - dose))),
            expected=one("cpu-throttled"),
        ),
        "noisy_neighbor": Kind(
            recipe=lambda dose, sched: NoisyNeighbor(hog(dose, sched)),
            expected=Expected(causes=names("noisy-neighbor"), culprits=(INJECTED,)),
        ),
        "own_threads": Kind(
            recipe=lambda dose, _sched: Knob(native_threads=max(2, round(8 * dose))),
            arguments=("--native-threads", "8"),
            expected=Expected(causes=names("self-oversubscription"), culprits=("OMP",)),
        ),
        # Data
        "slow_worker": Kind(
            recipe=lambda dose, _sched: Knob(worker_sleep_ms=slow_worker_ms(dose)),
            expected=Expected(
                causes=names("data-starvation"),
                culprits=WORKER,
                place=Place(file="dataset.py", function="wait_for_storage"),
                facts={"worker was": "asleep"},
            ),
            drifts=True,
        ),
        "busy_worker": Kind(
            recipe=lambda dose, _sched: Knob(worker_cpu_ms=slow_worker_ms(dose)),
            expected=Expected(
                causes=names("data-starvation"),
                culprits=WORKER,
                place=Place(file="dataset.py", function="decode"),
                facts={"worker was": "on-cpu"},
            ),
            drifts=True,
        ),
        "big_items": Kind(
            recipe=lambda dose, _sched: Knob(item_bytes=slow_worker_ms(dose) / PIPE_MS_PER_MIB * MIB),
            expected=Expected(
                causes=names("ipc-bound", "data-starvation"),
                why="the worker's time goes into the pipe to the trainer",
            ),
        ),
        "io_storm": Kind(
            recipe=lambda dose, _sched: IoStorm(duty=storm_duty(dose)),
            expected=Expected(causes=names("data-starvation", "block-io"), why=WORKER_IS_BLOCKED),
            allowed=names("cpu-contention"),  # writers take CPU time, too, to copy what they write
        ),
        "slow_mount": Kind(
            recipe=lambda dose, _sched: SlowMount(STEP_MS / (1 - dose) - 1.0),
            arguments=("--cpu-ms", "0.5"),  # the mount costs each item 5 ms as it is: more would starve a healthy loop
            expected=Expected(causes=names("network-filesystem-wait", "data-starvation"), why=WORKER_IS_BLOCKED),
        ),
        "tcp_loss": Kind(
            recipe=lambda dose, _sched: TcpLoss(share=LOST_PACKETS * dose),
            expected=Expected(causes=names("network-retransmit", "data-starvation"), why=WORKER_IS_BLOCKED),
        ),
        # The interpreter and the training thread
        "gil_hog": Kind(
            recipe=lambda dose, _sched: Knob(gil_duty=gil_duty(dose)),
            arguments=("--gil-hog", "0"),
            expected=Expected(causes=names("gil"), culprits=("gil-hog",)),
        ),
        "lock_hog": Kind(
            recipe=lambda dose, _sched: Knob(lock_ms=lock_ms(dose)),
            arguments=("--lock-hog",),
            expected=Expected(
                causes=names("lock-contention"),
                culprits=("lock-hog",),
                place=Place(file="background.py", function="write_metrics"),  # of the holder: there it can be shorter
            ),
        ),
        "host_metrics": Kind(
            recipe=lambda dose, _sched: Knob(metrics_ms=more_ms(dose)),
            expected=Expected(
                causes=names("host-bound"), place=Place(file="background.py", function="compute_metrics")
            ),
            drifts=True,
        ),
        "garbage": Kind(
            recipe=lambda dose, _sched: Knob(collect_every=max(1, round(COLLECTION_MS / more_ms(dose)))),
            arguments=("--heap", "200000"),
            expected=Expected(
                causes=names("garbage-collection", "host-bound"),
                why="a collection is host time; which one it is only the interpreter's own functions tell",
                place=Place(file="callbacks.py", function="collect_garbage"),
            ),
        ),
        "sleep_in_loop": Kind(
            recipe=lambda dose, _sched: Knob(stall_ms=more_ms(dose)),
            expected=Expected(causes=names("sleep-in-loop"), place=Place(file="callbacks.py", function="stall")),
            drifts=True,
        ),
        "spike": Kind(
            recipe=lambda dose, _sched: Knob(stall_ms=50 * more_ms(dose), stall_every=50),
            expected=Expected(
                causes=names("periodic-spike", "sleep-in-loop"),
                why="every 50th step sleeps: the period and the sleep are both true",
                place=Place(file="callbacks.py", function="stall"),
            ),
        ),
        "item": Kind(
            recipe=lambda _dose, _sched: Knob(item_every=1),
            arguments=("--sync-every", "8"),
            knobs=lambda dose: {"metrics_ms": min(4.5, more_ms(dose))},
            expected=Expected(causes=names("unexpected-sync"), place=Place(file="callbacks.py", function="log_loss")),
        ),
        "checkpoint": Kind(
            recipe=lambda dose, _sched: Together(
                WithArguments("--checkpoint", "{scratch}/checkpoint"),
                Knob(checkpoint_every=max(5, round(100 / more_ms(dose)))),
            ),
            expected=Expected(
                causes=names("block-io", "periodic-spike"),
                why="64 MiB written and waited for every so many steps: the disk and the period are both true",
                place=Place(file="callbacks.py", function="save_checkpoint"),
            ),
        ),
        "sigstop": Kind(recipe=lambda dose, _sched: Pulses(dose), expected=one("stopped")),
        # Memory
        "mem_reclaim": Kind(
            recipe=lambda _dose, _sched: MemoryLimit(thrash=False),
            expected=one("memory-pressure"),
        ),
        "mem_thrash": Kind(
            recipe=lambda _dose, _sched: MemoryLimit(thrash=True),
            expected=one("memory-pressure"),
            allowed=names("cgroup-oom"),  # a limit so tight may end in a kill; only the kernel tells of one
        ),
        "oom": Kind(
            recipe=lambda _dose, _sched: OomKill(),
            expected=Expected(causes=names("cgroup-oom"), is_event=True),
        ),
        "pgfault_storm": Kind(
            recipe=lambda dose, _sched: PageFaultStorm(per_cpu=max(1, round(4 * dose))),
            expected=Expected(
                causes=names("cpu-contention", "major-page-faults"),
                why="the faulters take the CPU; that they fault is what they do with it",
                culprits=(INJECTED,),
            ),
        ),
        # The device, the bus, the driver
        "gpu_throttle": Kind(
            recipe=lambda dose, _sched: throttled(dose),
            expected=Expected(causes=names("gpu-throttled")),
            drifts=True,
        ),
        "gpu_slow": Kind(
            recipe=lambda dose, _sched: DeviceKnob(kernel_scale=1 / (1 - dose)),
            expected=Expected(causes=names("gpu-slower")),
            drifts=True,
        ),
        "gpu_contention": Kind(
            recipe=lambda dose, _sched: Together(DeviceKnob(kernel_scale=1 / (1 - dose)), SecondProgram()),
            expected=Expected(causes=names("gpu-contention"), culprits=(INJECTED,)),
        ),
        "pcie_slow": Kind(
            recipe=lambda dose, _sched: DeviceKnob(pcie_gbps=pcie_gbps(dose)),
            arguments=("--nbytes", str(16 * MIB)),
            expected=one("memcpy-bound", "gpu-slower", why=BOTH_END_IN_ONE_SYNC),
            drifts=True,
        ),
        "malloc_storm": Kind(
            recipe=lambda dose, _sched: DeviceKnob(malloc_us=60 + 1000 * more_ms(dose, 8)),
            arguments=("--churn",),
            expected=Expected(causes=names("allocation-churn"), place=Place(file="train.py", function="churn")),
            drifts=True,
        ),
        "retries": Kind(
            recipe=lambda dose, _sched: Together(
                Knob(reshape_bytes=64 * MIB),
                DeviceKnob(mem_limit_bytes=176 * MIB, malloc_us=1000 * more_ms(dose) / RETRIES),
            ),
            expected=Expected(
                causes=names("allocator-retry", "allocation-churn"),
                why="each failed allocation empties the cache: both are true",
                place=Place(file="callbacks.py", function="reshape"),
            ),
        ),
        "leak": Kind(
            recipe=lambda _dose, _sched: Knob(leak_bytes=2 * MIB),
            expected=Expected(
                causes=names("gpu-memory-leak"),
                place=Place(file="callbacks.py", function="keep_activation"),
                is_event=True,
            ),
        ),
        "gpu_oom": Kind(
            recipe=lambda _dose, _sched: Together(Knob(leak_bytes=8 * MIB), DeviceKnob(mem_limit_bytes=2 << 30)),
            expected=Expected(
                causes=names("gpu-out-of-memory"),
                place=Place(file="callbacks.py", function="keep_activation"),
                is_event=True,
            ),
            allowed=names("gpu-memory-leak", "allocator-retry"),
            ends_workload=True,
        ),
        "launch_slow": Kind(
            recipe=lambda dose, _sched: DeviceKnob(launch_us=launch_us(dose)), expected=one("launch-bound"), drifts=True
        ),
        "slow_modules": Kind(
            recipe=lambda _dose, _sched: DeviceKnob(module_load_us=300_000),
            expected=Expected(causes=names("cold-start"), is_event=True),
        ),
        "gpu_hang": Kind(
            recipe=lambda _dose, _sched: DeviceKnob(hang=1),
            expected=Expected(causes=names("hung-call"), is_event=True),
        ),
        # Several ranks
        "nccl_straggler": Kind(
            recipe=lambda dose, _sched: Knob(rank=1, worker_sleep_ms=slow_worker_ms(dose, DDP_STEP_MS)),
            workload="ddp",
            expected=Expected(
                causes=names("nccl-straggler", "data-starvation"),
                why="rank 1 starves for data, rank 0 waits for rank 1: both links of one chain",
            ),
            allowed=names("data-starvation"),
        ),
        "nccl_hang": Kind(
            recipe=lambda _dose, _sched: Stopped(rank=1),
            workload="ddp",
            expected=Expected(
                causes=names("nccl-hang", "stopped"),
                why="rank 1 is stopped, rank 0 hangs in the collective that it never joins",
                is_event=True,
            ),
            allowed=names("stopped", "hung-call"),
        ),
        # Harmless
        "longer_sequences": Kind(
            recipe=lambda _dose, _sched: Knob(sequence=2.0),
            arguments=("--us", "15", "--sequence", "4", "--nbytes", str(4 * MIB)),
            expected=None,
        ),
        "hidden_stall": Kind(
            recipe=lambda _dose, _sched: Knob(stall_ms=3.0), arguments=("--sync-every", "20"), expected=None
        ),
        "hog_elsewhere": Kind(recipe=lambda _dose, _sched: CpuHog(per_cpu=0.5, cpus={1}), expected=None),
        "other_io": Kind(recipe=lambda _dose, _sched: UnrelatedWriters(), expected=None),
        "other_retransmits": Kind(
            recipe=lambda _dose, _sched: UnrelatedRetransmits(), expected=None, allowed=names("network-retransmit")
        ),
        "traffic_stops": Kind(recipe=lambda _dose, _sched: Stopped(), workload="serve", expected=None),
        "idle_hogs": Kind(recipe=lambda _dose, _sched: CpuHog(is_idle=True, per_cpu=1), expected=None),
        "nothing": Kind(recipe=lambda _dose, _sched: Nothing(), expected=None),
    }
)
