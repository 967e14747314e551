"""GPUs as NVML saw them, and what call sites held of their memory."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from ingero.store import machine
from ingero.store.arrays import arrays
from ingero.store.reader import call_queries, memory_queries
from ingero.store.reader.questions import Questions
from ingero.store.records import MemorySite, Window


class GpuQuestions(Questions):
    """Questions about GPUs and their memory."""

    def process_gpus(self) -> dict[tuple[int, int], str]:
        """Which GPU (uuid) a device ordinal of a process means, where that is proven: by (process, ordinal).

        Ordinal -1: whichever it uses.
        """
        sql = "SELECT process, ordinal, uuid FROM raw_process_gpus WHERE uuid <> ''"
        return {(process, ordinal): uuid for process, ordinal, uuid in self._rows(sql, table="raw_process_gpus")}

    def gpu_slices(self) -> tuple[set[str], dict[tuple[int, str], str]]:
        """The GPUs (uuid) that are divided into MIG slices, and by (process, uuid) the slice that it is in."""
        sliced = self._rows("SELECT DISTINCT uuid FROM raw_gpus WHERE slices > 0", table="raw_gpus")
        sql = "SELECT process, uuid, slice FROM raw_process_gpus WHERE slice <> ''"
        slices = self._rows(sql, table="raw_process_gpus")
        return {uuid for (uuid,) in sliced}, {(process, uuid): name for process, uuid, name in slices}

    def numa_nodes(self) -> list[machine.NumaNode]:
        """The NUMA nodes of the machine; none where it has but one, or that is not recorded."""
        sql = "SELECT DISTINCT numa_node, cpus, gpus FROM raw_numa_nodes ORDER BY numa_node"
        rows = self._rows(sql, table="raw_numa_nodes")
        return [machine.NumaNode(node=node, cpus=cpus, gpus=tuple(json.loads(gpus))) for node, cpus, gpus in rows]

    def gpu_samples(self, window: Window) -> list[machine.GpuUse]:
        """What the GPUs were doing, second by second."""
        return [machine.gpu_use(row) for row in self._rows(machine.GPU_SAMPLES_SQL, window, table="raw_gpu_samples")]

    def memory_sites(self, window: Window, *, process: int | None = None) -> list[MemorySite]:
        """What call sites held of GPU memory, those first that held most at the end."""
        return self._records(MemorySite, memory_queries.SITES, window, table="raw_allocations", process=process)

    def memory_seconds(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """What processes held, in order of time: `arrays.MEMORY_SECOND_DTYPE`.

        A row where a level changed, and each minute; first those, older than the window, that it begins with.
        """
        rows = self._each(memory_queries.SECONDS, window, table="raw_memory_seconds", process=process)
        return arrays.memory_seconds(rows)

    def memory_site_levels(self, window: Window) -> npt.NDArray[np.void]:
        """What call sites held, in order of time: `arrays.SITE_LEVEL_DTYPE`; rows as those of `memory_seconds`."""
        rows = self._each(call_queries.SITE_LEVELS, window, table="raw_allocations", process=None)
        return arrays.site_levels(rows)
