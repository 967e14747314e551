"""What people ask for by name, and the causes that answer; for docs/detections.md."""

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
    "scheduling and orchestration, as far as this host shows them": (
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
    "GPU-bound: no host-side cause": "no time was lost, the GPU was busy 90% of the time or more, and the host was "
    "seen to wait for it half of the time or more",
    "its queue was full": "with the above: in most steps about as many launches were waiting as a stream holds, so "
    "that launches waited for the GPU; a launch that is slow for that is no cause (queue-full)",
    "not proven that the GPU was busy": "no time was lost, but the host enqueued for most of each step",
    "host-bound, GPU-bound": "of a process whose step was found by what its calls repeat: its thread was blocked for "
    "the GPU at most 8%, or at least 30%, of the steps' time; how long the GPU was idle is known within bounds, or not",
    "no step was found": "launches, no call that ends a step by waiting for the stream it works on, and nothing that "
    "its calls repeat: lost time cannot be measured",
    "unexplained": "time was lost, and what all causes together own of it is less than 80%; it comes with where the "
    "time is, with what is partly known, and with what the recording could not show of that part",
}
