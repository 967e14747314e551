"""What each loss counter means, in words for the user, and the reader of the kernel's counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.decode.btf import Btf

# by lower-case name of `enum drop` (bpf/events.h); a test compares the two lists
MEANINGS: dict[str, str] = {
    "call_records_ring_full": "recorded calls dropped: the agent drained too slowly (counts and sums are not affected)",
    "sync_intervals_ring_full": "sync intervals dropped: the agent drained too slowly",
    "offcpu_ring_full": "off-CPU intervals dropped: the agent drained too slowly (clocks are not affected)",
    "host_events_ring_full": "host events dropped: the agent drained too slowly",
    "lifecycle_ring_full": "process starts or ends dropped: the agent drained too slowly",
    "offcpu_buffer_full": "off-CPU intervals dropped: more than a thread's buffer holds (clocks are not affected)",
    "cells_full": "calls counted without their caller: too many call sites",
    "cells_exhausted": "calls not counted: no room left for sums",
    "kernel_cells_full": "launches not counted per kernel: too many kernels",
    "process_slots_full": "processes not traced, at least at first: too many targets at a time",
    "library_unreadable": "mapped libraries not probed: their file cannot be read",
    "root_files_given_up": "times that what says who a process is (job, pod, GPU) was not read in time",
    "library_files_given_up": "times that a mapped library was not read in time: it costs more than it may, or hangs",
    "native_files_given_up": "files or names of functions not read: they cost more than they may, or hang",
    "native_stacks_given_up": "native stacks not unwound: their process costs more than it may",
    "thread_storage_failed": "calls not accounted: no memory for the thread's account",
    "streams_full": "enqueues without a stream: the process uses more than 16 streams",
    "event_position_unknown": "waits for events whose recording was not seen",
    "frame_stale": "open calls that never returned: longjmp or an exception crossed them",
    "stacks_ring_full": "calls and samples without a part of their stack: nobody took it out of the ring in time",
    "python_code_ring_full": "Python code objects sent again later: the ring was full",
    "python_code_unreadable": "Python frames without file and line: their code was not in memory any more",
    "stack_parts_missing": "stacks stored without one of their parts: it did not arrive",
    "stacks_not_resolved": "stacks that could not be resolved: too many at once, not taken in time, or a damaged file",
    "kernel_names_ring_full": "names of GPU kernels dropped: the agent drained too slowly",
    "kernel_handles_full": "GPU kernels without a name: more handles than there is room for",
    "halts_not_read": "looks at processes that make no calls any more, not taken: too many, failed, or late",
    "gpu_samples_missed": "GPU samples not taken: NVML or a GPU did not answer in time, or nobody took the answer",
    "kernel_names_not_resolved": "GPU kernels without a name: too many at once, or a damaged file",
    "samples_ring_full": "on-CPU samples dropped: the agent drained too slowly",
    "sample_stack_not_copied": "on-CPU samples without a stack: too many places in threads without Python frames",
    "allocations_full": "allocations not followed to their free: too many live at a time (what is live is not exact)",
    "allocation_sites_full": "allocations summed without their caller: too many call sites",
    "allocations_unpaired": "allocations or frees seen in part only (what GPU memory is live is not exact)",
    "marks_ring_full": "marks of a stream's progress dropped: the agent drained too slowly",
    "steps_ring_full": "steps dropped: the agent drained too slowly",
    "sequence_ring_full": "calls not looked at for the step they repeat: the agent drained too slowly",
    "frame_overflow": "calls not accounted: open calls on more than two stacks of a thread",
    "return_unmatched": "returns without a known entry",
    "snapshot_torn": "accounts read while they changed, three times in a row",
    "snapshot_not_running": "calls whose thread seemed not to run, and whose account could not be repaired",
    "switch_in_missed": "switch-ins not seen, repaired from the kernel's own notes of the thread",
    "switch_out_missed": "switch-outs not seen",
    "switch_count_mismatch": "switches seen that differ from the kernel's own count",
    "wakeup_missed": "wake-ups not seen",
    "clock_negative": "intervals that ended before they began",
    "repaired_ns": "time that repairs moved to the clock it belongs to",
    "culprits_full": "waits without a culprit: too many pairs of processes",
    "culprit_unknown_ns": "time on the run queue without a culprit",
    "culprit_negative": "charges put off because they were negative",
    "throttle_clock_odd": "throttled waits taken whole, because the kernel's throttle clock did not fit",
    "sync_interval_race": "drains of one stream that ended at the same moment in two threads",
    "user_read_failed": "arguments that could not be read from the process",
    "block_io_unmatched": "block I/O completed whose start was not seen",
    "communicators_full": "NCCL calls without a communicator or sequence: too many communicators or peers",
    "communicator_ring_full": "facts about NCCL communicators dropped: the agent drained too slowly",
    "communicator_handle_unknown": "NCCL communicators whose handle was not there when their call returned",
    "datatype_unknown": "NCCL calls without bytes: a datatype that this agent does not know",
    "records_not_understood": "records of the kernel side that raised an error in the agent, which is a bug of it",
    "parts_not_understood": "parts of a second's work that raised an error in the agent, which is a bug of it",
    "loop_stood_still_ns": "time in which the agent's loop stood still for more than 3 s; the log says where",
    "host_start_unmatched": "reclaim, compaction or socket calls whose start was not seen",
}


class DropReader:
    """The kernel's loss counters by name."""

    def __init__(self, drops: Map, layouts: Btf) -> None:
        names = [name.removeprefix("DROP_").lower() for name in layouts.enum("drop")]
        self._names = names[1:-1]  # without NONE and COUNT
        self._counters: np.ndarray[Any, np.dtype[np.uint64]] = np.frombuffer(
            drops.memory(), np.uint64, drops.max_entries
        )
        self._before = self._counters.copy()

    def read(self) -> dict[str, int]:
        """Growth since the last reading, of the counters that grew."""
        now = self._counters.copy()
        growth, self._before = now - self._before, now
        return {name: int(growth[index]) for index, name in enumerate(self._names, 1) if growth[index]}

    def total(self) -> dict[str, int]:
        """Sums since the start, of the counters that are not 0."""
        return {name: int(self._before[i]) for i, name in enumerate(self._names, 1) if self._before[i]}
