"""CPUs and GPUs by NUMA node.

Source: Documentation/ABI/stable/sysfs-devices-node (cpulist), ABI/testing/sysfs-bus-pci (numa_node).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.gpus import Gpu

SYS = Path("/sys")
_NODE = re.compile(r"node(\d+)")
_PCI = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")
_MAX_NODES = 1024
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node. cpus: a list such as 0-15,32-47; gpus: uuids."""

    node: int
    cpus: str
    gpus: tuple[str, ...]


def numa_nodes(gpus: Sequence[Gpu], sys: Path = SYS) -> tuple[NumaNode, ...]:
    """The NUMA nodes of this host with CPUs or GPUs; none if there is only one, or nodes are not visible."""
    cpus = _cpus_of_nodes(sys)
    if len(cpus) < 2:
        return ()
    homes = {gpu.uuid: _node_of(gpu.pci_bus_id, sys) for gpu in gpus}
    found = (
        NumaNode(node, cpus[node], tuple(uuid for uuid, home in homes.items() if home == node)) for node in sorted(cpus)
    )
    return tuple(one for one in found if one.cpus or one.gpus)


def _cpus_of_nodes(sys: Path) -> Mapping[int, str]:
    found: dict[int, str] = {}
    try:
        folders = sorted((sys / "devices/system/node").iterdir())
    except OSError:
        return found
    for folder in folders[: 2 * _MAX_NODES]:
        match = _NODE.fullmatch(folder.name)
        if match:
            found[int(match[1])] = _text(folder / "cpulist")
    return found


def _node_of(pci_bus_id: str, sys: Path) -> int | None:
    """The node of a PCI device; None if the firmware does not say (-1), or the device is unknown."""
    match = _PCI.fullmatch(pci_bus_id)
    if not match:
        return None
    name = f"{int(match[1], 16):04x}:{match[2].lower()}"  # NVML writes eight digits of the domain, sysfs four
    text = _text(sys / "bus/pci/devices" / name / "numa_node")
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
