"""Rows about GPUs, which of them each process sees, and since when no call that chose one was missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.capture.records.rows import Sink
from ingero.discover.gpus import Gpu, device_nodes, visible_uuids
from ingero.discover.libraries import LibraryCopy
from ingero.discover.rooted import RootFiles
from ingero.ops import Library
from ingero.store.writing import tables


class GpuRows:
    """Writes `raw_gpus` once and `raw_process_gpus` for each traced process, as far as it is proven."""

    def __init__(self, sink: Sink, gpus: Sequence[Gpu], files: RootFiles | None = None) -> None:
        self._sink, self._gpus, self._files = sink, gpus, files
        rows = tables.GPUS.rows(
            len(gpus),
            session=sink.session,
            gpu_index=[gpu.index for gpu in gpus],
            uuid=[gpu.uuid for gpu in gpus],
            name=[gpu.name for gpu in gpus],
            pci_bus_id=[gpu.pci_bus_id for gpu in gpus],
            memory_bytes=[gpu.memory_bytes for gpu in gpus],
            slices=[len(gpu.mig_uuids) for gpu in gpus],
        )
        sink.append(tables.GPUS, rows)
        self._visible: dict[int, tuple[str | None, ...]] = {}
        self._seen: dict[int, set[str]] = {}
        self._written: dict[int, dict[int, tuple[str, str]]] = {}

    @property
    def default_gpu(self) -> int:
        """The GPU of a call whose thread was not seen to choose one: -1 (unknown) unless there is only one."""
        return 0 if len(self._gpus) == 1 and not self._gpus[0].mig_uuids else -1

    def note_process(self, process: int, pid: int, environ: Mapping[str, str], *, is_containerized: bool) -> None:
        """Notes which GPUs a process can see; one that sees a single GPU uses that.

        Of several a program may hide some from itself, and number the rest anew, without a sign of it outside (Ray
        does): then only the driver's list of processes proves which it uses.
        """
        nodes = device_nodes(pid, self._gpus, self._files)
        uuids = visible_uuids(self._gpus, environ, is_containerized=is_containerized, nodes=nodes)
        self._visible[process] = uuids
        self._seen.pop(process, None)  # another program may use another
        self._write(process, {0: uuids[0]} if len(uuids) == 1 and uuids[0] else {})

    def is_known(self, process: int) -> bool:
        """Whether it is known which GPUs a process can see, from itself or from its parent."""
        return any(uuid is not None for uuid in self._visible.get(process, ()))

    def on_fork(self, child: int, parent: int) -> None:
        """Copies the GPUs of the parent to a child, until the child itself is examined."""
        if (uuids := self._visible.get(parent)) is not None:
            self._visible.setdefault(child, uuids)
            self._write(child, {0: uuids[0]} if len(uuids) == 1 and uuids[0] else {})

    def seen(self, processes: Mapping[int, Mapping[str, str]]) -> None:
        """Takes the driver's list: by process its GPUs, each with its MIG slice, "" for none."""
        for process, slices in processes.items():
            known = self._seen.setdefault(process, set())
            if slices.keys() <= known and process in self._written:
                continue
            known.update(slices)
            visible = self._visible.get(process, ())
            if len(known) == 1:
                (alone,) = known
                proven = {-1: alone} | ({0: alone} if visible == (alone,) else {})
            else:  # of several it is the environment that puts them in order
                is_right = known <= set(visible)
                proven = {ordinal: uuid for ordinal, uuid in enumerate(visible) if uuid in known} if is_right else {}
            self._write(process, {ordinal: uuid for ordinal, uuid in proven.items() if uuid}, slices)

    def forget(self, process: int) -> None:
        """Forgets a process that has ended."""
        for kept in (self._visible, self._seen, self._written):
            kept.pop(process, None)

    def _write(self, process: int, proven: Mapping[int, str], slices: Mapping[str, str] | None = None) -> None:
        """Writes the GPUs that are proven now, and withdraws those that no longer are."""
        now = {ordinal: (uuid, (slices or {}).get(uuid, "")) for ordinal, uuid in proven.items()}
        before = self._written.get(process, {})
        changed = {ordinal: one for ordinal, one in now.items() if before.get(ordinal) != one}
        changed |= {ordinal: ("", "") for ordinal in before if ordinal not in now}
        self._written[process] = now
        rows = tables.PROCESS_GPUS.rows(
            len(changed),
            process=process,
            ordinal=list(changed),
            uuid=[uuid for uuid, _ in changed.values()],
            slice=[name for _, name in changed.values()],
        )
        self._sink.append(tables.PROCESS_GPUS, rows)


class UnseenCalls:
    """Tells the kernel side since when all calls of a process are traced.

    A thread without a seen choice is on device 0 only if none of its calls was missed: a library copy that the process
    used before it was probed casts doubt on all threads that were born until then.
    """

    def __init__(self, kernel: KernelSide) -> None:
        processes = kernel.maps["processes"]
        rows: np.ndarray[Any, Any] = np.frombuffer(
            processes.memory(), kernel.layouts.dtype("process"), processes.max_entries
        )
        self._unseen_ns = rows["unseen_ns"]

    def note(
        self, copies: Iterable[LibraryCopy], probed_ns: Mapping[int, int], traced_processes: TracedProcesses
    ) -> None:
        """Notes library copies. copies: in use now, with their users; probed_ns: when each (by number) was probed."""
        for copy in copies:
            since_ns = probed_ns.get(copy.number)
            if since_ns is None or copy.file.library is Library.NCCL:
                continue
            for pid in copy.pids:
                traced_process = traced_processes.of_pid(pid)
                if traced_process and self._unseen_ns[traced_process.slot] < since_ns:
                    self._unseen_ns[traced_process.slot] = since_ns
