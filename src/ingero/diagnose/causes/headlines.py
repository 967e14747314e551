"""Common names of GPU problems and the causes that cover each, for docs/detections.md."""

from __future__ import annotations

from collections.abc import Mapping

HEADLINES: Mapping[str, tuple[str, ...]] = {
    "NCCL hang or deadlock": ("nccl-hang", "nccl-mismatch", "nccl-straggler", "hung-call", "host-hang"),
    "data starvation": (
        "data-starvation",
        "worker-restarts",
        "block-io",
        "io-throttled",
        "network-filesystem-wait",
        "network-retransmit",
        "ipc-bound",
    ),
    "CUDA out of memory and fragmentation": ("gpu-out-of-memory", "gpu-memory-fragmentation", "allocator-retry"),
    "KV-cache pressure": ("kv-cache-pressure",),
    "CPU bottleneck in serving": ("host-bound", "gil", "cpu-contention", "cpu-throttled", "launch-bound"),
    "several processes on one GPU": ("gpu-contention", "driver-lock"),
    "GPU memory leak": ("gpu-memory-leak",),
    "scheduling and orchestration, as visible on this host": (
        "cpu-throttled",
        "io-throttled",
        "cpu-affinity",
        "noisy-neighbor",
        "priority",
        "cgroup-oom",
        "host-oom",
        "stopped",
    ),
}

VERDICTS: Mapping[str, str] = {
    "GPU-bound: no host-side cause": "no lost time, GPU busy at least 90% of wall time, and the host waiting for it "
    "at least half of that",
    "its launch queue was full": "added to the verdict above: in most steps the launch queue was full, so launches "
    "waited for the GPU; such a slow launch is not a cause (queue-full)",
    "a busy GPU is not proven": "no lost time, but the host was launching for most of each step",
    "host-bound, GPU-bound": "for a process whose steps were found by repetition: its thread was blocked on the GPU "
    "at most 8%, or at least 30%, of step time; GPU idle time is given as bounds, where known",
    "no repeated step was found": "launches, but no sync of the main stream and no repetition among its calls: lost "
    "time cannot be measured",
    "unexplained": "all causes together explain less than 80% of the lost time; the incident says where the rest was "
    "lost, what is known in part, and what data was missing",
}
