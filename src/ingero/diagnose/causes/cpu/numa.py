"""Which CPUs are near the GPU of a process: what it is pinned to stays among them, or the reader is told why not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.process_gpus import gpu_name
from ingero.units import parse_cpu_list

CpuSet = frozenset[int]


@dataclass(frozen=True, slots=True)
class NearCpus:
    """cpus: near the GPU, or near the thread itself where its GPU is not known; where: in words, "" on one node."""

    cpus: CpuSet
    where: str


def near_cpus(case: Case, every: CpuSet) -> NearCpus:
    """Of all CPUs those that a fix may use for the case's process; all of them on a machine with one node."""
    reader = case.evidence.reader
    nodes = {one.node: one for one in reader.numa_nodes()} if reader.is_recorded("raw_numa_nodes") else {}
    if len(nodes) < 2:
        return NearCpus(every, "")
    uuid, _ = gpu_name(case.evidence, case.process, case.device)
    home = next((one for one in nodes.values() if uuid in one.gpus), None)
    if home:
        mine = parse_cpu_list(home.cpus) & every
        return NearCpus(mine, f"NUMA node {home.node}, its GPU's") if mine else NearCpus(every, "")
    ran = _node_of_thread(case, {node: parse_cpu_list(one.cpus) & every for node, one in nodes.items()})
    return (
        NearCpus(ran[1], f"NUMA node {ran[0]}, where it runs (its GPU's node is unknown)")
        if ran
        else NearCpus(every, "")
    )


def _node_of_thread(case: Case, cpus: dict[int, CpuSet]) -> tuple[int, CpuSet] | None:
    """The node on which the threads of its path were put off a CPU most often."""
    if not case.evidence.has_offcpu:
        return None
    rows = case.evidence.offcpu_in(case.window)
    rows = rows[rows["process"] == case.process.process]
    seen = {node: int(np.isin(rows["cpu"], list(mine)).sum()) for node, mine in cpus.items() if mine}
    most = max(seen, key=lambda node: seen[node], default=None)
    return (most, cpus[most]) if most is not None and seen[most] else None
