"""Which CPUs are on the NUMA node of a process's GPU, so that a suggested affinity stays near it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.process_gpus import gpu_name
from ingero.units import parse_cpu_list

CpuSet = frozenset[int]


@dataclass(frozen=True, slots=True)
class NearCpus:
    """CPUs near the GPU, or near the thread where its GPU is unknown. where: in words, "" on a single-node host."""

    cpus: CpuSet
    where: str


def near_cpus(case: Case, all_cpus: CpuSet) -> NearCpus:
    """The CPUs that a fix may pin the process to; all CPUs on a host with one NUMA node."""
    reader = case.evidence.reader
    nodes = {node.node: node for node in reader.numa_nodes()} if reader.is_recorded("raw_numa_nodes") else {}
    if len(nodes) < 2:
        return NearCpus(all_cpus, "")
    uuid, _ = gpu_name(case.evidence, case.process, case.device)
    gpu_node = next((node for node in nodes.values() if uuid in node.gpus), None)
    if gpu_node:
        near = parse_cpu_list(gpu_node.cpus) & all_cpus
        return NearCpus(near, f"NUMA node {gpu_node.node}, its GPU's") if near else NearCpus(all_cpus, "")
    thread_node = _node_of_thread(
        case, {node: parse_cpu_list(numa_node.cpus) & all_cpus for node, numa_node in nodes.items()}
    )
    return (
        NearCpus(thread_node[1], f"NUMA node {thread_node[0]}, where it runs (its GPU's node is unknown)")
        if thread_node
        else NearCpus(all_cpus, "")
    )


def _node_of_thread(case: Case, cpus: dict[int, CpuSet]) -> tuple[int, CpuSet] | None:
    """The NUMA node on which the process's threads were taken off a CPU most often, with its CPUs."""
    if not case.evidence.has_offcpu:
        return None
    rows = case.evidence.offcpu_in(case.window)
    rows = rows[rows["process"] == case.process.process]
    seen = {node: int(np.isin(rows["cpu"], list(node_cpus)).sum()) for node, node_cpus in cpus.items() if node_cpus}
    most = max(seen, key=lambda node: seen[node], default=None)
    return (most, cpus[most]) if most is not None and seen[most] else None
