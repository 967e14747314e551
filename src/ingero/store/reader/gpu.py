"""GPU samples of NVML, and the GPU memory that call sites held."""

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
    """Queries for GPUs and their memory."""

    def process_gpus(self) -> dict[tuple[int, int], str]:
        """The GPU (uuid) by (process, device ordinal), where it is proven.

        Ordinal -1: any GPU that the process uses.
        """
        sql = "SELECT process, ordinal, uuid FROM raw_process_gpus WHERE uuid <> ''"
        return {(process, ordinal): uuid for process, ordinal, uuid in self._rows(sql, table="raw_process_gpus")}

    def gpu_slices(self) -> tuple[set[str], dict[tuple[int, str], str]]:
        """The GPUs (uuid) divided into MIG slices, and the slice of a process by (process, uuid)."""
        sliced = self._rows("SELECT DISTINCT uuid FROM raw_gpus WHERE slices > 0", table="raw_gpus")
        sql = "SELECT process, uuid, slice FROM raw_process_gpus WHERE slice <> ''"
        slices = self._rows(sql, table="raw_process_gpus")
        return {uuid for (uuid,) in sliced}, {(process, uuid): name for process, uuid, name in slices}

    def numa_nodes(self) -> list[machine.NumaNode]:
        """The NUMA nodes of the host; none if it has only one, or if that is not recorded."""
        sql = "SELECT DISTINCT numa_node, cpus, gpus FROM raw_numa_nodes ORDER BY numa_node"
        rows = self._rows(sql, table="raw_numa_nodes")
        return [machine.NumaNode(node=node, cpus=cpus, gpus=tuple(json.loads(gpus))) for node, cpus, gpus in rows]

    def gpu_samples(self, window: Window) -> list[machine.GpuUse]:
        """The samples of the GPUs, second by second."""
        return [machine.gpu_use(row) for row in self._rows(machine.GPU_SAMPLES_SQL, window, table="raw_gpu_samples")]

    def memory_sites(self, window: Window, *, process: int | None = None) -> list[MemorySite]:
        """The GPU memory that call sites held, most at the end first."""
        return self._records(MemorySite, memory_queries.SITES, window, table="raw_allocations", process=process)

    def memory_seconds(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """The GPU memory that processes held, in order of time: `arrays.MEMORY_SECOND_DTYPE`.

        One row per change of a level, and one each minute; first the older rows with the levels at the begin.
        """
        rows = self._each(memory_queries.SECONDS, window, table="raw_memory_seconds", process=process)
        return arrays.memory_seconds(rows)

    def memory_site_levels(self, window: Window) -> npt.NDArray[np.void]:
        """The GPU memory that call sites held, by time, with rows as `memory_seconds`: `arrays.SITE_LEVEL_DTYPE`."""
        rows = self._each(call_queries.SITE_LEVELS, window, table="raw_allocations", process=None)
        return arrays.site_levels(rows)
