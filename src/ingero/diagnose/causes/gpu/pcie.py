"""The PCIe link between host and GPU: bytes copied per step, and its bandwidth as the driver reports it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.process_gpus import gpu_samples_of
from ingero.store.records import Window

# GB/s of one lane by generation, after the coding of the link. Source: PCI Express Base Specification, section 1.2
_LANE_BYTES_PER_NS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_REACHED_RATIO = 0.8  # of that, for copies of pinned memory: packets have headers


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link at its fastest in a time range: an idle GPU lowers the generation."""

    generation: int
    lanes: int

    @property
    def bytes_per_ns(self) -> float:
        """Bandwidth that copies reach."""
        return _REACHED_RATIO * _LANE_BYTES_PER_NS.get(self.generation, 0.0) * self.lanes

    @property
    def text(self) -> str:
        """For people: "generation 4 with 16 lanes"."""
        return f"generation {self.generation} with {self.lanes} lanes"


def link_of(case: Case, windows: Iterable[Window]) -> Link | None:
    """The link to the case's GPU in these time ranges; None where the driver does not report it."""
    links = [
        Link(sample.pcie_generation, sample.pcie_lanes)
        for sample in gpu_samples_of(case.evidence, case.process, case.device, windows)
        if sample.pcie_generation and sample.pcie_lanes
    ]
    return max(links, key=lambda link: link.bytes_per_ns, default=None)


def copied_bytes(case: Case) -> float:
    """Mean bytes copied per sync interval of the case."""
    return float(case.sync_intervals["bytes"].mean()) if len(case.sync_intervals) else 0.0
