"""The link between host and GPU: what goes over it in a step, and how fast it can be by what the driver says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.process_gpus import samples_of
from ingero.store.records import Window

# GB/s of one lane by generation, after the coding of the link. Source: PCI Express Base Specification, section 1.2
_GPU_STREAM_BYTES_PER_NS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_REACHED = 0.8  # of that, by copies of pinned memory: packets have heads


@dataclass(frozen=True, slots=True)
class Link:
    """As it was at its fastest in some time range: an idle GPU lowers the generation."""

    generation: int
    lanes: int

    @property
    def bytes_per_ns(self) -> float:
        """What copies reach."""
        return _REACHED * _GPU_STREAM_BYTES_PER_NS.get(self.generation, 0.0) * self.lanes

    @property
    def text(self) -> str:
        """In words: "generation 4 with 16 lanes"."""
        return f"generation {self.generation} with {self.lanes} lanes"


def link_of(case: Case, windows: Iterable[Window]) -> Link | None:
    """The link to the case's GPU in these time ranges; None where its driver does not say."""
    found = [
        Link(one.pcie_generation, one.pcie_lanes)
        for one in samples_of(case.evidence, case.process, case.device, windows)
        if one.pcie_generation and one.pcie_lanes
    ]
    return max(found, key=lambda one: one.bytes_per_ns, default=None)


def copied_bytes(case: Case) -> float:
    """What is copied in one of the case's sync intervals, on average."""
    return float(case.sync_intervals["bytes"].mean()) if len(case.sync_intervals) else 0.0
