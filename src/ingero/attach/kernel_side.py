"""The kernel side as one resource: objects loaded with shared maps, clocks started, calls and host events attached."""

from __future__ import annotations

import enum
import logging
import os
import resource
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np

from ingero.attach.cpu_samples import CpuSamples
from ingero.attach.freed_code import FreedCodeProbes
from ingero.attach.host_events import HOST_PROGRAMS, HostEvents, HostProgram
from ingero.attach.kernel_constants import scheduler_constants
from ingero.attach.libbpf import AttachType, BpfError, BpfObject, Helper, Map, has_helper, possible_cpus
from ingero.attach.objects import object_path
from ingero.attach.probes import PROGRAMS, UPROBE_TYPES, CallProbes, CallSite, ProbeMode, in_object
from ingero.attach.safety import are_return_probes_safe
from ingero.decode.btf import Btf, btf_of
from ingero.discover.kernel import read_kernel
from ingero.discover.python_walkers import CHOSEN_USERSPACE, KERNEL_WALKER, PyWalker, Walker
from ingero.discover.readiness import require, scheduler_clocks
from ingero.ops import memory_kinds
from ingero.program import command

logger = logging.getLogger(__name__)

MAX_PROCESSES = 1024  # as in bpf/events.h
SLOT_SHIFT = 54  # where the slot begins in the keys that have one (bpf/events.h)
CELL_OP_SHIFT = 46  # where an operation's id, and one more, begins in the key of a cell (bpf/cells.h)
NO_SLOT = 0xFFFF
_BPF_NOEXIST = 1  # linux/bpf.h
_START_STEP_NS = 10_000_000  # /proc tells starts in clock ticks
_STACK_RINGS = ("python_code_bytes", "python_stacks_bytes", "native_stacks_bytes", "samples_bytes")
_MIN_RING_BYTES = 4096  # a page
_DECIDING_STACKS = 8192  # 2 MB
_LIFE_PROGRAMS = ("thread_exits", "process_execs")


class Admission(enum.IntEnum):
    """Which processes are traced from their first traced call on (`enum admission_mode`)."""

    NOBODY = 0
    ANYBODY = 1
    USER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSizes:
    """Sizes of kernel memory, all powers of two.

    cells: (process, operation, caller) sums, 1.2 KB each, all of it memory from the start: 256 processes of 32 call
    sites. kernels: launch counts per function.
    allocations: live at a time, 110 bytes each; eight GPUs of 80 GB in pieces of 5 MB.
    calls_bytes: the ring of recorded calls; 8 MB hold 36,000 records, one second of a burst without a drain.
    kernel_names_bytes: 4 MB hold 14,000 names; the ring is emptied each time that a sixteenth of it has filled.
    sequence_bytes: 2 MB hold 32,000 calls, more than one process may write while its step is sought.
    A mapped ring counts as the agent's memory from the start, so each is as large as its bursts were seen to need.
    """

    cells: int = 1 << 13
    kernels: int = 1 << 14
    allocations: int = 1 << 17
    calls_bytes: int = 8 << 20
    sync_intervals_bytes: int = 4 << 20
    steps_bytes: int = 1 << 20
    marks_bytes: int = 1 << 18
    sequence_bytes: int = 2 << 20
    offcpu_bytes: int = 4 << 20
    host_bytes: int = 2 << 20
    lifecycle_bytes: int = 1 << 20
    python_code_bytes: int = 2 << 20
    python_stacks_bytes: int = 2 << 20
    native_stacks_bytes: int = 8 << 20
    samples_bytes: int = 1 << 18
    kernel_names_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableObject:
    """A program or object that could not be used, and why."""

    name: str
    reason: str


class KernelSide:
    """Owns all BPF objects and links of a recording; closing detaches all, calls before clocks.

    sampling_rate: 1 in so many ordinary calls is recorded; 0: about 10 a second of each kind.
    host_programs: what watches the host. py_walker: who is to read Python frames; `walker` tells who does.

    Raises:
        NotReadyError: this kernel, or what it lets this process do, is not enough.
        BpfError: the scheduler or call programs cannot be loaded at all.
    """

    def __init__(
        self,
        sizes: KernelSizes,
        *,
        record_all: bool = False,
        sampling_rate: int = 0,
        host_programs: Sequence[HostProgram] = HOST_PROGRAMS,
        with_stacks: bool = False,
        py_walker: PyWalker = PyWalker.AUTO,
        mode: ProbeMode | None = None,
    ) -> None:
        require(scheduler_clocks(read_kernel()))
        self.layouts: Btf = btf_of(object_path("layouts"))
        self.unavailable: list[UnavailableObject] = []
        self.is_running = False
        if not with_stacks:
            sizes = replace(sizes, **dict.fromkeys(_STACK_RINGS, _MIN_RING_BYTES))
        self._sizes, self._host_programs, self._with_stacks = sizes, host_programs, with_stacks
        self._resources = ExitStack()
        self._links, self._host_links = ExitStack(), ExitStack()
        self._has_clocks = False
        self.samples: CpuSamples | None = None
        try:
            self._scheduler = self._load("scheduler", constants=scheduler_constants())
            self.maps: dict[str, Map] = dict(self._scheduler.maps)
            processes = self.maps["processes"]
            self._processes = np.frombuffer(processes.memory(), self.layouts.dtype("process"), processes.max_entries)
            self._fill_slots()
            constants = {
                "record_all": struct.pack("<I", record_all),
                "sampling_rate": struct.pack("<I", sampling_rate),
                "with_stacks": struct.pack("<I", with_stacks),
                "has_bpf_loop": struct.pack("<I", has_helper(Helper.LOOP)),
                "walks_python": struct.pack("<I", py_walker is not PyWalker.USERSPACE),
                "calls_ring_bytes": struct.pack("<Q", sizes.calls_bytes),
                "python_code_ring_bytes": struct.pack("<Q", sizes.python_code_bytes),
                "python_stacks_ring_bytes": struct.pack("<Q", sizes.python_stacks_bytes),
                "native_stacks_ring_bytes": struct.pack("<Q", sizes.native_stacks_bytes),
                "samples_ring_bytes": struct.pack("<Q", sizes.samples_bytes),
                "cell_count": struct.pack("<I", sizes.cells),
                "kernel_count": struct.pack("<I", sizes.kernels),
                "memory_kinds": memory_kinds(),
                "sequence_ring_bytes": struct.pack("<Q", sizes.sequence_bytes),
            }
            self.calls, self.mode = self._load_walking(constants, mode, py_walker)
            self.maps.update(self.calls.maps)
            if self.mode is ProbeMode.PERF_EVENT:
                _allow_open_files()
            self.probes = CallProbes(self.calls, self.mode)
            self.communicator_probes = self._load_naming("nccl", "identity of NCCL communicators")
            ring_bytes = {"kernel_names_ring_bytes": struct.pack("<Q", sizes.kernel_names_bytes)}
            self.kernel_name_probes = self._load_naming("kernel_names", "names of GPU kernels", ring_bytes)
            self.freed_code = self._load_freed_code()
            self._own_maps = dict(self.maps)
            self._sample_constants = _sample_constants(constants) if with_stacks else None
        except BaseException:
            self.close()
            raise

    def _load(
        self,
        name: str,
        *,
        constants: dict[str, bytes] | None = None,
        programs: tuple[str, ...] | None = None,
        uprobe_types: dict[str, AttachType] | None = None,
    ) -> BpfObject:
        sizes = self._sizes
        loaded = BpfObject(
            object_path(name),
            shared=getattr(self, "maps", {}),
            constants=constants,
            programs=programs,
            uprobe_types=uprobe_types,
            max_entries={
                "cells": sizes.cells,
                "cell_keys": sizes.cells,
                "kernels": sizes.kernels,
                "allocations": sizes.allocations,
                "calls": sizes.calls_bytes,
                "sync_intervals": sizes.sync_intervals_bytes,
                "steps": sizes.steps_bytes,
                "marks": sizes.marks_bytes,
                "sequence": sizes.sequence_bytes,
                "offcpu": sizes.offcpu_bytes,
                "host": sizes.host_bytes,
                "lifecycle": sizes.lifecycle_bytes,
                "python_code": sizes.python_code_bytes,
                "python_stacks": sizes.python_stacks_bytes,
                "native_stacks": sizes.native_stacks_bytes,
                "samples": sizes.samples_bytes,
                "kernel_names": sizes.kernel_names_bytes,
                "deciding": _DECIDING_STACKS if self._with_stacks else 1,
                "cpus": possible_cpus(),
            },
        )
        self._resources.callback(loaded.close)
        return loaded

    def _load_walking(
        self, constants: dict[str, bytes], mode: ProbeMode | None, asked: PyWalker
    ) -> tuple[BpfObject, ProbeMode]:
        """Loads the call programs with the Python frame walker; without it if the kernel refuses that."""
        self.walker = Walker(is_kernel=False, reason=CHOSEN_USERSPACE) if asked is PyWalker.USERSPACE else KERNEL_WALKER
        known = len(self.unavailable)
        try:
            return self._load_calls(constants, mode)
        except BpfError as error:
            if asked is PyWalker.EBPF and self._with_stacks:
                raise BpfError(
                    str(error), hint="--py-walker=auto records without the walk where that is refused"
                ) from error
            if asked is not PyWalker.AUTO or not self._with_stacks:
                raise
            constants["walks_python"] = struct.pack("<I", False)
            refused = self.unavailable[known:]
            del self.unavailable[known:]
            loaded = self._load_calls(constants, mode)
            why = refused[-1].reason if refused else error
            reason = f"the kernel accepts the programs only without the Python walk: {why}"
            self.walker = Walker(is_kernel=False, reason=reason)
            self.unavailable.append(UnavailableObject(name="Python frames walked in the kernel", reason=reason))
            return loaded

    def _load_calls(self, constants: dict[str, bytes], wanted: ProbeMode | None) -> tuple[BpfObject, ProbeMode]:
        """Loads the call programs in the best mode that the kernel accepts, unless one is asked for."""
        modes = [wanted] if wanted else [ProbeMode.SESSION, ProbeMode.MULTI, ProbeMode.PERF_EVENT]
        for mode in modes:
            try:
                # before 6.6 programs of any attach type load: only a link tells whether there is such a kind
                is_safe = bool(wanted) or mode is ProbeMode.PERF_EVENT or _are_returns_safe(mode)
                loaded = self._load_probes("api_calls", mode, constants, _LIFE_PROGRAMS)
            except BpfError as error:
                self.unavailable.append(UnavailableObject(name=mode.value, reason=str(error)))
                continue
            if is_safe:
                return loaded, mode
            self.unavailable.append(
                UnavailableObject(name="return probes", reason="a process under seccomp would be killed")
            )
            loaded.close()
            return self._load_calls(constants, ProbeMode.ENTRY_ONLY)
        raise BpfError(
            f"no kind of probe can be loaded: {self.unavailable[-1].reason}",
            hint=f"`{command('check')}` names what is missing",
        )

    def _load_probes(
        self, name: str, mode: ProbeMode, constants: dict[str, bytes] | None, others: Sequence[str] = ()
    ) -> BpfObject:
        """Loads an object's programs for calls in this mode, and the named other ones."""
        programs = (*map(in_object, PROGRAMS[mode]), *others)
        types = {in_object(program): kind for program, kind in UPROBE_TYPES[mode].items()}
        return self._load(name, constants=constants, programs=programs, uprobe_types=types)

    def _load_naming(self, name: str, tells: str, constants: dict[str, bytes] | None = None) -> CallProbes | None:
        """Loads programs that name objects of calls (communicators, kernels); calls are recorded without them, too."""
        try:
            loaded = self._load_probes(name, self.mode, constants)
        except BpfError as error:
            self.unavailable.append(UnavailableObject(name=tells, reason=str(error)))
            return None
        self.maps.update({name: entry for name, entry in loaded.maps.items() if name not in self.maps})
        return CallProbes(loaded, self.mode)

    def _load_freed_code(self) -> FreedCodeProbes | None:
        """Loads the freed-code probes. None: no Python walks here, or each code object is read again."""
        if not self._with_stacks or not self.walker.is_kernel:
            return None
        try:
            loaded = FreedCodeProbes(self.maps, self.layouts)
        except BpfError as error:
            logger.debug("freed code objects are not counted: %s", error)
            return None
        self._resources.callback(loaded.close)
        return loaded

    def _fill_slots(self) -> None:
        for slot in reversed(range(MAX_PROCESSES)):
            self.maps["free_slots"].push(struct.pack("<I", slot))

    def start(self) -> None:
        """Attaches the clocks and the host events, if they are not attached.

        Raises:
            BpfError: a scheduler program cannot be attached.
        """
        if self.is_running:
            return
        self.start_clocks()
        host = self._host_links.enter_context(HostEvents(self._own_maps, programs=self._host_programs))
        # the descriptors of its maps end with it: those of maps that are ours as well must not take the place of ours
        self.maps.update({name: entry for name, entry in host.maps.items() if name not in self._own_maps})
        self._host_links.callback(self._forget_host_maps)
        unavailable = [
            UnavailableObject(name=one.program.program, reason=f"{one.program.without}: {one.reason}")
            for one in host.unavailable
        ]
        self.unavailable += [one for one in unavailable if one not in self.unavailable]
        self._start_samples()
        self.is_running = True

    def _start_samples(self) -> None:
        """Starts the samples; without them only stacks outside calls are missing."""
        if self._sample_constants is None:
            return
        try:
            if self.samples is None:
                self.samples = self._resources.enter_context(CpuSamples(self._own_maps, self._sample_constants))
            self.samples.attach()
        except BpfError as error:
            unavailable = UnavailableObject(name="on-CPU samples", reason=f"lines outside calls are not seen: {error}")
            self.unavailable += [unavailable] if unavailable not in self.unavailable else []

    def start_clocks(self) -> None:
        """Attaches the clocks alone, if not attached; thread-state times are counted from here on.

        Raises:
            BpfError: a scheduler program cannot be attached.
        """
        if self._has_clocks:
            return
        for loaded in (self.calls, self._scheduler):
            for name, section in loaded.sections().items():
                if section.startswith("tp_btf/"):
                    self._links.callback(loaded.program(name).attach().close)
        self._has_clocks = True

    def _forget_host_maps(self) -> None:
        for name in self.maps.keys() - self._own_maps.keys():
            del self.maps[name]

    def pause(self, *, keep_clocks: bool = False) -> None:
        """Detaches what `start` attached: without traced processes it would cost every context switch for nothing.

        keep_clocks: all but the scheduler programs, where a process may be admitted at any time: the account of its
            first call would be wrong without them.
        """
        if self.samples:
            self.samples.detach()
        self._host_links.close()
        for name in self.maps.keys() - self._own_maps.keys():
            del self.maps[name]  # their descriptors have ended
        self.is_running = False
        if not keep_clocks:
            self._links.close()
            self._has_clocks = False

    def attach_calls(self, sites: list[CallSite], owner: object = None) -> dict[CallSite, str]:
        """Probes sites; returns those that could not be probed, with the reason. owner: for `probes.detach`."""
        return {failed.site: failed.reason for failed in self.probes.attach(sites, owner)}

    def set_admission(self, mode: Admission, uid: int = 0) -> None:
        """Sets which processes are traced from their first traced call on. uid: for Admission.USER."""
        rule = np.zeros(1, self.layouts.dtype("admission"))
        rule["mode"], rule["uid"], rule["agent_pid"] = mode, uid, os.getpid()
        self.maps["admission"].update(struct.pack("<I", 0), rule.tobytes())

    def attach_communicators(self, sites: list[CallSite], owner: object) -> dict[CallSite, str]:
        """Probes the calls that create, rank or end communicators; returns failed sites with the reason."""
        if self.communicator_probes is None:
            return {}
        return {failed.site: failed.reason for failed in self.communicator_probes.attach(sites, owner)}

    def attach_kernel_names(self, sites: list[CallSite], owner: object) -> dict[CallSite, str]:
        """Probes the calls that name kernels; returns failed sites with the reason."""
        if self.kernel_name_probes is None:
            return {}
        return {failed.site: failed.reason for failed in self.kernel_name_probes.attach(sites, owner)}

    def detach_file(self, owner: object) -> None:
        """Detaches the probes of a file, by the owner they were attached under."""
        self.probes.detach(owner)
        for naming in (self.communicator_probes, self.kernel_name_probes):
            if naming:
                naming.detach(owner)

    def detach_calls(self) -> None:
        """Detaches all probes of calls, in parallel, as each waits for the kernel."""
        probes = [one for one in (self.probes, self.communicator_probes, self.kernel_name_probes) if one]
        with ThreadPoolExecutor(len(probes), "ingero-detach") as threads:
            list(threads.map(CallProbes.close, probes))

    def enroll(self, pid: int, start_boottime_ns: int) -> int | None:
        """Starts tracing a running process: its calls, then the states of all its threads. None: no slot is left.

        It may have become one in the kernel meanwhile: then it has the slot that it got there.
        """
        slot = self.take_slot(pid, start_boottime_ns)
        if slot is None:
            return self._slot_of(pid)
        try:
            self.admit(pid, slot)
        except BpfError:
            self.set_process(slot, 0, 0)
            self.maps["free_slots"].push(struct.pack("<I", slot))
            slot = self._slot_of(pid)
            owner = self.process_at(slot) if slot is not None else None
            if slot is None or owner is None or owner[1] // _START_STEP_NS != start_boottime_ns // _START_STEP_NS:
                self.release(pid)  # an earlier process had the pid, and its end was not seen
                return self.enroll(pid, start_boottime_ns)
        self.enroll_threads({pid: slot})
        return slot

    def _slot_of(self, pid: int) -> int | None:
        found = self.maps["targets"].lookup(struct.pack("<I", pid))
        return int(struct.unpack("<I", found)[0]) if found else None

    def enroll_threads(self, slots: Mapping[int, int]) -> None:
        """Starts counting states of all threads of traced processes, by pid; later threads start at birth."""
        enrolling = self.maps["enrolling"]
        for pid, slot in slots.items():
            enrolling.update(struct.pack("<I", pid), struct.pack("<I", slot))
        self._scheduler.program("enroll_threads").read_iterator()
        for pid in slots:
            enrolling.delete(struct.pack("<I", pid))

    def take_slot(self, pid: int, start_boottime_ns: int) -> int | None:
        """Takes a slot for a process that is not traced yet; None if none is left."""
        taken = self.maps["free_slots"].pop()
        if taken is None:
            return None
        slot = int(struct.unpack("<I", taken)[0])
        self.set_process(slot, pid, start_boottime_ns)
        return slot

    def admit(self, pid: int, slot: int) -> None:
        """Counts the calls of a process from now on, thread states from each thread's first call or birth.

        Raises:
            BpfError: it is traced already.
        """
        self.maps["targets"].update(struct.pack("<I", pid), struct.pack("<I", slot), _BPF_NOEXIST)

    def set_process(self, slot: int, pid: int, start_boottime_ns: int) -> None:
        """Writes the row of a slot; pid 0 clears it."""
        layout = self.layouts.dtype("process")
        row = bytearray(layout.itemsize)
        fields = layout.fields
        assert fields is not None
        struct.pack_into("<Q", row, fields["start_boottime_ns"][1], start_boottime_ns)
        struct.pack_into("<I", row, fields["pid"][1], pid)
        self.maps["processes"].update(struct.pack("<I", slot), bytes(row))

    def process_at(self, slot: int) -> tuple[int, int] | None:
        """(pid, start in ns of CLOCK_BOOTTIME) of the process that has a slot; None if it is free."""
        row = self.maps["processes"].lookup(struct.pack("<I", slot)) if slot < MAX_PROCESSES else None
        if row is None:
            return None
        process = np.frombuffer(row, self.layouts.dtype("process"))[0]
        return (int(process["pid"]), int(process["start_boottime_ns"])) if process["pid"] else None

    def image_at(self, slot: int, pid: int) -> int | None:
        """The number of the program that a process runs (image_of() in bpf/maps.h); None: the slot is another's."""
        row = self._processes[slot]
        image = int(row["start_boottime_ns"]) + int(row["execs"])
        return image if row["pid"] == pid else None

    def change_settings(self, **fields: int | Sequence[int]) -> None:
        """Sets fields of `struct settings`; the others keep their values."""
        settings, key = self.maps["settings"], struct.pack("<I", 0)
        row = np.frombuffer(settings.lookup(key) or b"", self.layouts.dtype("settings")).copy()
        for name, value in fields.items():
            row[name] = value
        settings.update(key, row.tobytes())

    def release(self, pid: int, slot: int | None = None) -> None:
        """Stops tracing a process; its slot stays taken until `recycle`.

        slot: only if it has this one; a later process with the same pid may have another.
        """
        held = self._slot_of(pid)
        if held is not None and slot in (None, held):
            self._processes["is_released"][held] = 1  # threads whose accounts name the slot do not ask `targets` again
            self.maps["targets"].delete(struct.pack("<I", pid))

    def recycle(self, slot: int) -> None:
        """Frees a slot whose process has ended and whose sums have been read."""
        gpu_streams = self.maps["gpu_streams"]
        empty = bytes(gpu_streams.value_bytes)
        per_process = gpu_streams.max_entries // MAX_PROCESSES
        for index in range(slot * per_process, (slot + 1) * per_process):
            gpu_streams.update(struct.pack("<I", index), empty)
        for name in ("python_layouts", "step_accounts"):
            entries = self.maps[name]
            entries.update(struct.pack("<I", slot), bytes(entries.value_bytes))
        self.set_process(slot, 0, 0)
        self.maps["free_slots"].push(struct.pack("<I", slot))

    @property
    def are_stacks_off(self) -> bool:
        """Whether the overhead limiter has switched stacks off."""
        return any(self.maps["stacks_off"].lookup(struct.pack("<I", 0)) or b"")

    def read_threads(self) -> bytes:
        """Reads one `struct thread_dump` per traced thread; empties their off-CPU buffers into the ring."""
        return self._scheduler.program("dump_threads").read_iterator()

    def close(self) -> None:
        """Detaches calls (driver before runtime), then the rest, and unloads."""
        if hasattr(self, "kernel_name_probes"):
            self.detach_calls()
        self._host_links.close()
        self._links.close()
        self._resources.close()

    def __enter__(self) -> KernelSide:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _are_returns_safe(mode: ProbeMode) -> bool:
    return are_return_probes_safe(UPROBE_TYPES[mode][PROGRAMS[mode][0]])


def _sample_constants(constants: Mapping[str, bytes]) -> dict[str, bytes]:
    rings = ("python_code", "python_stacks", "native_stacks", "samples")
    return {
        name: constants[name] for name in ("has_bpf_loop", "walks_python", *(f"{ring}_ring_bytes" for ring in rings))
    }


def _allow_open_files() -> None:
    """Raises the limit of open files: perf-event uprobes take two each, and a runtime with its driver has 500."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
