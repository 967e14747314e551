"""What each counter of dropped data means, in words for the user, and the reader of the kernel's counters."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.decode.btf import Btf

# by lower-case name of `enum drop` (bpf/events.h); a test compares the two lists
MEANINGS: dict[str, str] = {
    "call_records_ring_full": "recorded calls dropped: the agent read too slowly (counts and sums are exact)",
    "sync_intervals_ring_full": "sync intervals dropped: the agent read too slowly",
    "offcpu_ring_full": "off-CPU intervals dropped: the agent read too slowly (thread-state time is exact)",
    "host_events_ring_full": "host events dropped: the agent read too slowly",
    "lifecycle_ring_full": "process starts or exits dropped: the agent read too slowly",
    "offcpu_buffer_full": "off-CPU intervals dropped: a thread's buffer was full (thread-state time is not affected)",
    "cells_full": "calls counted without their caller: too many call sites",
    "cells_exhausted": "calls not counted: the table of sums was full",
    "kernel_cells_full": "launches not counted per kernel: too many kernels",
    "process_slots_full": "processes not traced, at least at first: too many traced processes at once",
    "library_unreadable": "mapped libraries not probed: their file cannot be read",
    "memory_files_given_up": "times that a process's command line, mappings or memory could not be read in time",
    "root_files_given_up": "times that a process's job, pod or GPU could not be read in time",
    "library_files_given_up": "times that a mapped library could not be read in time: reading it took too long or hung",
    "library_searches_given_up": "searches of the disk for libraries given up: a file system did not answer",
    "native_files_given_up": "files or function names not read: reading them took too long or hung",
    "native_stacks_given_up": "native stacks not unwound: unwinding their process took too long",
    "python_stacks_given_up": "Python stacks not read in their process's memory: that took too long",
    "thread_storage_failed": "calls without thread-state time: no memory for the thread's counters",
    "streams_full": "launches and copies without a stream: the process uses more than 16 streams",
    "event_position_unknown": "waits for events whose record call was not seen",
    "frame_stale": "in-flight calls that never returned: longjmp or an exception left them",
    "stacks_ring_full": "calls and samples with part of their stack missing: the ring buffer was not read in time",
    "python_code_ring_full": "Python code objects sent again later: the ring buffer was full",
    "python_code_unreadable": "Python frames without file and line: their code object was no longer in memory",
    "stack_parts_missing": "stacks stored with a part missing: it did not arrive",
    "stacks_not_resolved": "stacks that could not be resolved: too many at once, not read in time, or a damaged file",
    "kernel_names_ring_full": "names of GPU kernels dropped: the agent read too slowly",
    "kernel_handles_full": "GPU kernels without a name: the table of handles was full",
    "halts_not_read": "checks of processes that stopped making calls, skipped: too many, failed, or late",
    "gpu_samples_missed": "GPU samples not taken: NVML or a GPU did not answer in time, or the answer was not read",
    "incident_commands_queue_full": "runs of --on-incident skipped: too many were waiting",
    "incident_commands_not_run": "runs of --on-incident skipped: the recording ended, or nothing could be started",
    "incident_commands_failed": "runs of --on-incident that failed: their exit code was not 0",
    "incident_commands_timed_out": "runs of --on-incident killed: they took too long",
    "kernel_names_not_resolved": "GPU kernels without a name: too many at once, or a damaged file",
    "samples_ring_full": "on-CPU samples dropped: the agent read too slowly",
    "sample_stack_not_copied": "on-CPU samples without a stack: too many places in threads without Python frames",
    "allocations_full": "allocations not tracked to their free: too many in use at once (memory in use is not exact)",
    "allocation_sites_full": "allocations summed without their caller: too many call sites",
    "allocations_unpaired": "allocations or frees seen only in part (GPU memory in use is not exact)",
    "marks_ring_full": "progress marks of a stream dropped: the agent read too slowly",
    "steps_ring_full": "steps dropped: the agent read too slowly",
    "sequence_ring_full": "calls not searched for a repeating step: the agent read too slowly",
    "frame_overflow": "calls without thread-state time: in-flight calls on more than two stacks of a thread",
    "return_unmatched": "returns without a known entry",
    "snapshot_torn": "thread-state counters that changed while they were read, three times in a row",
    "snapshot_not_running": "calls whose thread did not seem to run: their thread-state time could not be corrected",
    "switch_in_missed": "switch-ins not seen, corrected from the kernel's own record of the thread",
    "switch_out_missed": "switch-outs not seen",
    "switch_count_mismatch": "context switches seen that differ from the kernel's own count",
    "wakeup_missed": "wake-ups not seen",
    "clock_negative": "intervals that ended before they began",
    "repaired_ns": "time that corrections moved to the right thread state",
    "culprits_full": "waits without a culprit: too many pairs of processes",
    "culprit_unknown_ns": "time on the run queue without a culprit",
    "culprit_negative": "attributions postponed because they were negative",
    "throttle_clock_odd": "throttled waits counted whole, because the kernel's throttle time did not match",
    "sync_interval_race": "syncs of one stream that ended at the same time in two threads",
    "user_read_failed": "arguments that could not be read from the process",
    "block_io_unmatched": "block I/O completed whose start was not seen",
    "communicators_full": "NCCL calls without a communicator or sequence: too many communicators or peers",
    "communicator_ring_full": "facts about NCCL communicators dropped: the agent read too slowly",
    "communicator_handle_unknown": "NCCL communicators whose handle was not set when their call returned",
    "datatype_unknown": "NCCL calls without bytes: a datatype that this agent does not know",
    "records_not_understood": "records from the kernel that raised an error in the agent: a bug in ingero",
    "parts_not_understood": "parts of a second's work that raised an error in the agent: a bug in ingero",
    "loop_stood_still_ns": "time during which the agent's loop was stuck for more than 3 s; the log says where",
    "host_start_unmatched": "reclaim, compaction or socket calls whose start was not seen",
}


class DropReader:
    """Reads the kernel's counters of dropped data, by name."""

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
