"""Rows about GPUs, which of them each process sees, and which calls may have been missed that chose one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.rows import Sink
from ingero.capture.targets import Targets
from ingero.discover.gpus import Gpu, visible_uuids
from ingero.discover.libraries import LibraryCopy
from ingero.ops import Library
from ingero.store import tables


class GpuRows:
    """Writes `raw_gpus` once and `raw_process_gpus` for each target."""

    def __init__(self, sink: Sink, gpus: Sequence[Gpu]) -> None:
        self._sink, self._gpus = sink, gpus
        rows = tables.GPUS.rows(
            len(gpus),
            session=sink.session,
            gpu_index=[gpu.index for gpu in gpus],
            uuid=[gpu.uuid for gpu in gpus],
            name=[gpu.name for gpu in gpus],
            pci_bus_id=[gpu.pci_bus_id for gpu in gpus],
            memory_bytes=[gpu.memory_bytes for gpu in gpus],
        )
        sink.append(tables.GPUS, rows)

    @property
    def default_device(self) -> int:
        """The device of a call whose thread has not been seen to choose one: -1 (unknown) unless there is but one."""
        return 0 if len(self._gpus) == 1 and not self._gpus[0].mig_uuids else -1

    def target(self, process: int, environ: Mapping[str, str], *, is_containerized: bool) -> None:
        """Writes which GPU stands behind each device ordinal of a process, as far as that can be told."""
        uuids = visible_uuids(self._gpus, environ, is_containerized=is_containerized)
        known = [(ordinal, uuid) for ordinal, uuid in enumerate(uuids) if uuid is not None]
        rows = tables.PROCESS_GPUS.rows(
            len(known), process=process, ordinal=[one[0] for one in known], uuid=[one[1] for one in known]
        )
        self._sink.append(tables.PROCESS_GPUS, rows)


class UnseenCalls:
    """Tells the kernel side since when every call of a process is seen.

    A thread without a seen choice is on device 0 only if none of its calls was missed: a library copy that the process
    used before it was probed casts doubt on all threads that were born until then.
    """

    def __init__(self, kernel: KernelSide) -> None:
        processes = kernel.maps["processes"]
        rows: np.ndarray[Any, Any] = np.frombuffer(
            processes.memory(), kernel.layouts.dtype("process"), processes.max_entries
        )
        self._unseen_ns = rows["unseen_ns"]

    def note(self, copies: Iterable[LibraryCopy], probed_ns: Mapping[int, int], targets: Targets) -> None:
        """copies: in use now, with their users; probed_ns: when each (by number) was probed."""
        for copy in copies:
            since_ns = probed_ns.get(copy.number)
            if since_ns is None or copy.file.library is Library.NCCL:
                continue
            for pid in copy.pids:
                target = targets.of_pid(pid)
                if target and self._unseen_ns[target.slot] < since_ns:
                    self._unseen_ns[target.slot] = since_ns
