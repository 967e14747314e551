"""NUMA nodes from a made-up /sys: of one, two and three nodes."""

from __future__ import annotations

from pathlib import Path

from ingero.discover.gpus import Gpu
from ingero.discover.numa import NumaNode, numa_nodes


def gpu(uuid: str, pci_bus_id: str) -> Gpu:
    return Gpu(index=0, uuid=uuid, name="H100", memory_bytes=1, pci_bus_id=pci_bus_id, max_sm_clock_mhz=None)


def a_sys(root: Path, cpus: dict[int, str], gpus: dict[str, str]) -> Path:
    for node, text in cpus.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{text}\n")
    (root / "devices/system/node/possible").write_text("0-3\n")
    for name, node_text in gpus.items():
        folder = root / "bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node_text}\n")
    return root


def test_gpus_are_told_by_the_node_of_their_slot(tmp_path: Path) -> None:
    """NVML writes eight digits of the domain and capitals, sysfs four and small letters."""
    sys = a_sys(tmp_path, {0: "0-15,32-47", 1: "16-31,48-63"}, {"0000:3b:00.0": "0", "0001:c1:00.0": "1"})
    gpus = [gpu("GPU-a", "00000000:3B:00.0"), gpu("GPU-b", "00000001:C1:00.0")]
    assert numa_nodes(gpus, sys) == (
        NumaNode(0, "0-15,32-47", ("GPU-a",)),
        NumaNode(1, "16-31,48-63", ("GPU-b",)),
    )


def test_a_machine_with_one_node_has_none_to_tell(tmp_path: Path) -> None:
    assert numa_nodes([gpu("GPU-a", "00000000:3B:00.0")], a_sys(tmp_path, {0: "0-3"}, {})) == ()
    assert numa_nodes([], tmp_path / "no such place") == ()


def test_a_gpu_whose_firmware_does_not_say_is_on_no_node(tmp_path: Path) -> None:
    sys = a_sys(tmp_path, {0: "0-1", 1: "2-3", 2: ""}, {"0000:3b:00.0": "-1"})
    assert numa_nodes([gpu("GPU-a", "00000000:3B:00.0"), gpu("GPU-b", "?")], sys) == (
        NumaNode(0, "0-1", ()),
        NumaNode(1, "2-3", ()),
    )
