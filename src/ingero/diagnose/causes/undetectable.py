"""What cannot be detected from the host, with the reason; for docs/detections.md."""

from __future__ import annotations

UNDETECTABLE: dict[str, str] = {
    "which GPU kernel became slower": "the host sees when a sync returns, not what ran before it; that "
    "needs CUPTI or a profiler on the GPU itself",
    "occupancy, memory bandwidth and tensor-core use of a kernel": "performance counters of the GPU are read "
    "through CUPTI or NVML's profiling API only",
    "a copy that does not block and became slower, apart from a slower kernel on the same stream": "both end in the "
    "same sync; with an event between them they are distinguished",
    "fragmentation inside a framework's own cache": "it hands out parts of blocks without a call of the driver",
    "what a KV cache holds": "its blocks are allocated once; only their allocation and failures of it are calls",
    "ranks on nodes whose recordings were not merged": "a collective's other ends are not in the file",
    "work that another tenant launched through MPS, or on the virtual GPU of another VM": "its calls happen in a "
    "process that is not on this host, or not this one's to see",
    "scheduling and admission decisions of a cluster": "they are made elsewhere; their effects on this host (quota, "
    "eviction, restarts) are seen",
    "CPU time that a hypervisor took inside a running slice": "it is visible as steal time of a CPU, not of a "
    "thread: see cpu-steal",
}
