"""Documentation of the published views and their columns, with an example query for each: source of docs/schema.md.

Comments of schema.sql and views.sql are not repeated here; `documentation` combines both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import apsw

from ingero import given_up
from ingero.store.sql_text import sql_text
from ingero.store.views import TABLES, query
from ingero.store.vocabulary import STATE_COLUMNS

# What one row is.
_ROWS: Mapping[str, str] = {
    "sessions": "One run of `ingero trace`: when, where, on what, with which options.",
    "node_clocks": "What the clock of a node was worth when its recording was fetched (`ingero fleet bundle`).",
    "processes": "One process that was traced, or seen as somebody's culprit or waker.",
    "process_names": "The newest name of each process id.",
    "events": "One recorded call or host event, sampled: all slow and rare calls, plus a random sample "
    "(all with `--record-all`).",
    "cuda_events": "One recorded call of the CUDA runtime or driver.",
    "communicators": "One NCCL communicator of one rank.",
    "nccl_events": "One recorded NCCL call.",
    "nccl_waits": "One recorded collective, send or receive with the wait that followed it.",
    "containers": "One cgroup, with its container, pod or job where it is one.",
    "tenants": "Everything a cgroup did with the GPU, in one row.",
    "gpus": "One GPU.",
    "gpu_memory": "Memory for a GPU that one call site holds, has allocated and freed, in one second.",
    "gpu_memory_seconds": "Memory for a GPU that one process holds of one kind, in one second.",
    "memory_kinds": "What a number of the column memory_kind of raw rows means.",
    "stack_samples": "One look at where a thread was outside GPU calls: on a CPU, or sleeping at a line of Python.",
    "cpu_seconds": "What one CPU did in one second.",
    "gpu_samples": "What the driver said about one GPU in one second.",
    "scheduling": "How the scheduler is set to treat a thread, when first seen and at each change.",
    "host_flags": "What a bit of the column flags of host events means.",
    "throttle_reasons": "What a bit of the column throttle_reasons of gpu_samples means.",
    "process_gpus": "One device ordinal of one process.",
    "op_stats": "All calls of one process to one operation from one library in one second (or minute: `period_s`).",
    "copies": "All copies of one process by one call between host and GPU in one second (or minute: `period_s`).",
    "kernel_launches": "All launches of one kernel by one process in one second (or minute: `period_s`).",
    "offcpu": "One interval of 0.1 ms or more that a traced thread spent off the CPU, or of any length from its birth "
    "to its first run: a sleep of no length, ended by the thread that made it.",
    "sync_intervals": "The time from one sync of a stream to the next, and what the GPU and the threads did in it.",
    "steps": "One step: what a program repeats, from one call of its step marker to the next.",
    "progress_marks": "One time at which the host saw how far a stream of the GPU was.",
    "gpu_activities": "One kernel, copy or memset on a GPU.",
    "user_ranges": "One range of time that a program or its framework gave a name.",
    "thread_state_seconds": "What all threads of one process did in one second (or minute: `period_s`).",
    "culprits": "Who ran while the threads of a process waited for a CPU.",
    "drops": "Something that was lost, sampled out or could not be read, counted.",
    "overhead_levels": "One step of the agent to keep within its budget; the first row is what tracing costs here.",
    "pruned": "What `--max-db` has taken from the file.",
    "stack_traces": "One stack, stored once; `stack_hash` of a call leads here.",
    "system_snapshots": "The host in one second.",
    "incidents": "One stall with its cause.",
    "causal_chains": "One chain from cause to effect, as older versions stored them.",
    "sources": "Where operations come from; `id` is column `source`.",
    "ops": "The operations, with what their arguments are in `events`.",
    "nccl_datatypes": "Element types of NCCL.",
    "nccl_reduce_ops": "Reductions of NCCL.",
    "thread_states": "What a thread can be doing; the columns of thread-state time have these names.",
    "waker_kinds": "What can end a sleep.",
    "call_flags": "Bits of `flags` in cuda_events and nccl_events, and of calls in events.",
    "sync_interval_flags": "Bits of `flags` in sync intervals.",
}

# Of a view with a column of codes.
_CODES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "overhead_levels": ("not_traced", {code: given.text for code, given in given_up.BY_CODE.items()}),
}

# Of a column, wherever it stands.
_COLUMNS: Mapping[str, str] = {
    "job_step": "step of the job, where the scheduler has such",
    "job": "the scheduler's job that it is of",
    "scheduler": "of the job: slurm, flux, pbs, lsf, htcondor, gridengine, ray",
    "rank_source": "who says the rank: communicator, a launcher, title (of a serving engine); or why there is none",
    "agent_cpu_ns": "CPU time of the agent since the last snapshot",
    "agent_pid": "the process that recorded",
    "is_python_whole": "whether no Python frame is missing; where one is, `note` says why",
    "boot_id": "one boot of the host; NULL: not known",
    "agent_rss_bytes": "memory of the agent",
    "aliases": "names that older versions used",
    "bit": "number of the bit, from 0",
    "bytes": "size of the transfer",
    "blocked_ns": "in calls that waited for the GPU: the sum of the four below",
    "call_ns": "begin of the call that enqueued it; NULL: not in the file",
    "caller": "return address of the call",
    "caller_library": "library that made the call",
    "cause": "name of the cause",
    "cgroup_id": "cgroup; join containers on it",
    "cmdline": "command line",
    "collective_bytes": "by NCCL collectives",
    "comm": "name of the thread",
    "comm_id_hash": "equal on all ranks of a communicator, on every node",
    "container_id": "id of the container; NULL: no container",
    "collectives": "NCCL calls that enqueue",
    "copied_bytes": "by copies",
    "copies": "copies and memsets",
    "count": "how many, exactly",
    "cpu": "CPU it ran on last",
    "cpu_pct": "older name of cpu_percent",
    "cpu_percent": "CPU use of the host",
    "cuda_op": "operation whose tail it explains",
    "culprit_cgroup_id": "cgroup of the culprit",
    "culprit_name": "who ran longest instead",
    "culprit_ns": "how long it did",
    "culprit_pid": "process id of who ran longest instead",
    "culprits": "JSON: which processes used it",
    "datatype": "number of the element type; names in nccl_datatypes",
    "datatype_name": "element type, e.g. ncclFloat32",
    "description": "what it is",
    "direction": "of a copy: host_to_gpu, gpu_to_host, gpu_to_gpu, host_to_host",
    "detail": "what the arguments cannot hold: addresses, file names",
    "detected_at": "when it was noticed",
    "device": "as gpu_id",
    "device_wait_ns": "of wait_ns, the GPU was still busy",
    "duration": "as duration_ns",
    "duration_ns": "how long it took",
    "end_ns": "when it ended; NULL: not yet",
    "errors": "of count, calls that returned an error",
    "evidence": "JSON",
    "exit_ns": "when it ended; NULL: it was alive when last seen",
    "explained_ratio": "share of the lost time that has a named cause",
    "first_seen_ns": "when it was first seen",
    "fixes": "JSON: what to do",
    "flags": "bits; their names are in call_flags, of host events in host_flags, "
    "of sync intervals in sync_interval_flags",
    "frames": "JSON, innermost frame first",
    "futex": "address in the program's memory that it waited at; NULL: another kind of sleep",
    "function": "address or handle of the kernel, where its name is not known",
    "gpu_to_host_bytes": "copied from the GPU to the host",
    "gpu_id": "CUDA's device ordinal in that process",
    "gpu_uuid": "the GPU behind gpu_id, as NVML names it; NULL: not proven",
    "gpu_wait_ns": "in calls that wait for the GPU",
    "graph": "handle of the graph that was launched",
    "group_id": "calls of one ncclGroupStart .. ncclGroupEnd",
    "handle": "event, graph, communicator or allocation; of a copy what host_memory says",
    "hash": "number of the stack",
    "host_memory": "of a copy: pinned or pageable; seems pageable: the call waited; NULL: not known",
    "host_to_gpu_bytes": "copied from the host to the GPU",
    "how": "how the step was found: repetition of calls, sync, both, user (marked by the program)",
    "id": "number of the row",
    "io_ns": "I/O wait",
    "ips": "JSON, hexadecimal addresses; empty where nothing of the native stack is known",
    "is_gpu_call": "1: in a call that may wait for the GPU",
    "is_interpreter_lock": "1: it waited for CPython's lock; 0: not known to; NULL: another kind of sleep",
    "is_own_request": "1: it slept in a system call that asks for something (write, send, open, close, fsync, flock)",
    "is_traced": "1: it was traced; 0: seen only as somebody's culprit or waker",
    "kernel": "version of the Linux kernel",
    "uninterruptible_ns": "uninterruptible (D state), not for I/O",
    "kernel_name": "demangled name of the GPU kernel",
    "last_seen_ns": "when it was last seen",
    "launches": "kernel and graph launches",
    "library": "library that launched",
    "local_rank": "rank on its node",
    "lost_ns": "time lost to it",
    "lost_ratio": "share of the wall time lost",
    "marker_kernel": "the kernel whose launch is the step marker; NULL: the marker is not a launch",
    "marker_op": "the call that happens once a step and closes its breakdown",
    "max_db_bytes": "what --max-db was",
    "max_ns": "longest call",
    "mem_avail": "memory that is available, in MiB",
    "machine_id": "one installation, as a hash: distinguishes hosts of one name; NULL: not known",
    "mem_available_bytes": "memory that is available",
    "mem_pct": "older name of mem_percent",
    "mem_percent": "memory in use",
    "memory_bytes": "memory in all",
    "name": "its name",
    "namespace": "Kubernetes namespace",
    "node": "name of the host",
    "noted_at": "when that was last noted",
    "nranks": "ranks in the communicator",
    "ns": "time the culprit ran while the process waited, its waiting threads counted each",
    "op": "number of the operation in its source",
    "op_code": "number of the operation in its source",
    "op_name": "the exported symbol, e.g. cudaStreamSynchronize",
    "orchestrator": "kubernetes, slurm, ecs, docker ...",
    "owner": "what made the pod, as kubectl takes it; NULL: its name leaves that open",
    "parent_pid": "process id of the parent",
    "peer": "rank it sends to or receives from",
    "period_s": "seconds the row covers: 1 or, where the agent looked sooner or later, that; 60 once folded",
    "pid": "process id",
    "pod": "Kubernetes pod",
    "pod_name": "as pod",
    "queued": "calls that had enqueued something on the stream by then; NULL: not known",
    "position": "calls that had enqueued something on the stream, up to which it was done",
    "involuntary_switches": "times a thread was taken off its CPU while it could have run",
    "process": "number of the process in the file; unlike pids never used twice",
    "processes": "how many there were",
    "psi_cpu_some_ns": "some task was stalled for a CPU, in the elapsed_ns before",
    "psi_io_full_ns": "all tasks were stalled for I/O",
    "psi_io_some_ns": "some task was stalled for I/O",
    "psi_memory_full_ns": "all tasks were stalled for memory",
    "psi_memory_some_ns": "some task was stalled for memory",
    "rank": "rank in the job",
    "recommendations": "JSON: what to do",
    "recorded": "of count, calls with a row in events",
    "reduce_op": "number of the reduction; names in nccl_reduce_ops",
    "reduce_op_name": "reduction, e.g. ncclSum",
    "ret_code": "what the call returned; 0: success",
    "root": "root rank of the collective",
    "root_cause": "what began it",
    "rows": "how many rows",
    "run_ns": "on a CPU",
    "runq_after_wake_ns": "of duration_ns, woken but not yet running",
    "runq_ns": "could run, but others did",
    "seen_at": "when it was last seen",
    "sequence": "place among the communicator's collectives, equal on all ranks",
    "session": "number of the recording in the file (sessions.id)",
    "severity": "CRITICAL, HIGH, MEDIUM or LOW",
    "short_name": "kernel_name without template arguments and parameters",
    "sleep_ns": "sleeping",
    "slice": "GPU and compute instance of MIG that it is in; NULL: none, or not known",
    "slices": "MIG devices that it is divided into; 0: none",
    "slurm_job": "Slurm job",
    "source": "where the operation comes from (sources.id)",
    "stack_hash": "its stack (stack_traces.hash); 0: none",
    "started_at": "when it began",
    "state": "name of what the thread was doing (thread_states)",
    "step_ns": "as duration_ns",
    "step_type": "steps with the same text did the same work",
    "syncs": "synchronizations that returned in it",
    "stopped_at": "when it ended; NULL: still recording, or killed",
    "stopped_ns": "stopped by a signal",
    "stream": "CUDA stream handle; 0: the default stream",
    "sum_ns": "time of all calls",
    "summary": "one sentence",
    "swap_mb": "swap in use, in MiB",
    "swap_used_bytes": "swap in use",
    "switches": "context switches",
    "tail_ratio": "p99 divided by p50",
    "threads": "threads that had a clock",
    "throttled_ns": "throttled (CPU quota)",
    "tid": "thread id",
    "timeline": "JSON",
    "timestamp": "when it began",
    "uid": "user id",
    "until_at": "no row before this time is left",
    "affected": "JSON: which processes lost time",
    "wait_ns": "the whole wait",
    "wait_start_ns": "when the wait began",
    "wait_tid": "thread that waited",
    "waited_by": "stream, thread or process: how the wait was found",
    "waker_kind": "what ended the sleep (waker_kinds)",
    "waker_name": "name of the thread that ended the sleep",
    "waker_pid": "process id of the thread that ended the sleep",
    "waker_tid": "id of the thread that ended the sleep",
    "woken_ns": "the last wake-up in it",
    "world_size": "number of ranks of the job",
    "yielded_ns": "yielded: runnable after sched_yield",
    # of sync intervals
    "prev_sync_end_ns": "return of the sync before; NULL: there was none",
    "prev_sync_tid": "thread of the sync before",
    "sync_end_ns": "return of this sync; of a copy to the GPU that waited first, when it began to copy",
    "sync_tid": "thread of this sync",
    "idle_ns": "GPU idle: nothing was queued (first_launch_ns - prev_sync_end_ns); "
    "with the flag enqueues_unseen the host's part, from one sync's return to the next one's entry",
    "first_launch_ns": "first enqueue; with the flag enqueues_unseen it is not known, and sync_start_ns",
    "first_launch_tid": "thread of the first enqueue",
    "return_delay_ns": "sync return delay: GPU done, call not returned (sync_end_ns - gpu_done_ns)",
    "gpu_done_high_ns": "latest time at which the GPU can have been done",
    "gpu_done_low_ns": "earliest time at which the GPU can have been done",
    "gpu_done_ns": "the GPU was ready",
    "sync_start_ns": "entry of this sync",
    "busy_ns": "GPU busy: from the first enqueue until ready (gpu_done_ns - first_launch_ns); "
    "with the flag enqueues_unseen the wait",
}

# Where the meaning is another one in this view.
_IN_VIEW: Mapping[tuple[str, str], str] = {
    ("causal_chains", "id"): "name of the chain",
    ("communicators", "rank"): "rank in the communicator",
    ("communicators", "process"): "number of the process in the file",
    ("communicators", "last_at"): "when its latest collective was called, recorded or not; NULL: none, or not known",
    ("communicators", "last_op"): "name of that collective",
    ("communicators", "last_tid"): "the thread that called it",
    ("communicators", "last_bytes"): "bytes of that collective, as view nccl_events counts them",
    ("cuda_events", "op"): "the exported symbol, e.g. cudaLaunchKernel",
    ("culprits", "culprit_name"): "name of who ran",
    ("culprits", "culprit_pid"): "process id of who ran",
    ("culprits", "kind"): "what the process was doing meanwhile: runq or yielded",
    ("culprits", "switches"): "switches to it",
    ("sync_intervals", "launches"): "calls that enqueued something",
    ("steps", "launches"): "kernel and graph launches; NULL: they were not traced",
    ("incidents", "root"): "where it comes from",
    ("offcpu", "duration_ns"): "how long it was off",
    ("sync_intervals", "bytes"): "copied in the sync interval",
    ("sync_intervals", "duration_ns"): "the whole sync interval",
    ("sync_intervals", "op"): "number of the sync's operation",
    ("sync_intervals", "op_name"): "the sync, e.g. cudaStreamSynchronize",
    ("sync_intervals", "timestamp"): "when it ended (sync_end_ns)",
    ("events", "id"): "`node:number`, equal in merged files",
    ("cuda_events", "id"): "`node:number`, equal in merged files",
    ("nccl_events", "id"): "`node:number`, equal in merged files",
    ("nccl_datatypes", "bytes"): "size of an element",
    ("nccl_events", "op"): "the exported symbol, e.g. ncclAllReduce",
    ("nccl_events", "rank"): "rank in the communicator",
    ("nccl_waits", "op"): "the exported symbol, e.g. ncclAllReduce",
    ("nccl_waits", "rank"): "rank in the communicator",
    ("op_stats", "bytes"): "bytes of all calls",
    ("copies", "blocked_ns"): "in asynchronous copies that waited for the GPU, because their host memory is pageable",
    ("system_snapshots", "elapsed_ns"): "the time in which pressure and agent_cpu_ns have grown; NULL: not known",
    ("system_snapshots", "timestamp"): "when the host was read",
    ("node_clocks", "timestamp"): "when clocks were compared, by the clock of who fetched the recording",
    ("node_clocks", "reference"): "of whose clock, and when: offsets of one reference can be compared",
    ("node_clocks", "offset_ns"): "how far the node's clock was ahead; below 0: behind",
    ("pruned", "name"): "the view whose rows are gone",
    ("gpu_activities", "kind"): "kernel, memcpy, memset or sync",
    ("progress_marks", "blocked_ns"): "in calls that waited for the stream since its mark before",
    ("progress_marks", "kind"): "sync, copy or full_queue (a launch that waited for room)",
    ("progress_marks", "timestamp"): "when that was seen",
    ("steps", "start_ns"): "when it began",
    ("user_ranges", "kind"): "step, data_loading, range (record_function, NVTX, roctx) or operator",
    ("sessions", "duration_ns"): "length of the recording",
    ("sessions", "flags"): "the command line",
    ("sessions", "id"): "number of the recording in the file (column session elsewhere)",
}

EXAMPLES: Mapping[str, str] = {
    "sessions": "SELECT node, started_at, duration_ns, kernel, options FROM sessions",
    "node_clocks": "SELECT node, offset_ns / 1e6 AS ahead_ms, bound_ns / 1e6 AS known_to_ms FROM node_clocks",
    "processes": "SELECT pid, name, rank, cgroup_id, exit_code FROM processes WHERE is_traced",
    "process_names": "SELECT pid, name FROM process_names ORDER BY seen_at DESC",
    "events": "SELECT timestamp, pid, op_name, duration_ns, runq_ns, culprit_name FROM events "
    "ORDER BY duration_ns DESC LIMIT 10",
    "cuda_events": "SELECT op, max(duration_ns), max(runq_ns) FROM cuda_events GROUP BY op ORDER BY 2 DESC",
    "communicators": "SELECT comm_id_hash, pid, rank, nranks, collectives, note FROM communicators ORDER BY 1, rank",
    "nccl_events": "SELECT op, rank, sequence, bytes, duration_ns FROM nccl_events ORDER BY duration_ns DESC LIMIT 10",
    "nccl_waits": "SELECT comm_id_hash, sequence, op, rank, min(device_wait_ns) AS straggler_ns FROM nccl_waits "
    "GROUP BY comm_id_hash, sequence ORDER BY sequence",
    "containers": "SELECT container_id, pod, namespace, orchestrator FROM containers WHERE container_id IS NOT NULL",
    "tenants": "SELECT c.container_id, t.launches, t.gpu_wait_ns, t.runq_ns FROM tenants t "
    "LEFT JOIN containers c ON c.cgroup_id = t.cgroup_id ORDER BY t.gpu_wait_ns DESC",
    "gpus": "SELECT gpu_index, name, uuid, memory_bytes FROM gpus",
    "gpu_memory": "SELECT pid, op_name, memory_kind, max(peak_bytes), sum(allocated_bytes) - sum(freed_bytes) AS grown "
    "FROM gpu_memory GROUP BY pid, op_name, memory_kind ORDER BY grown DESC",
    "gpu_memory_seconds": "SELECT timestamp, pid, memory_kind, live_bytes FROM gpu_memory_seconds ORDER BY timestamp",
    "memory_kinds": "SELECT id, name FROM memory_kinds",
    "stack_samples": "SELECT pid, comm, state, stack_hash, sum(weight_ns) AS ns FROM stack_samples GROUP BY 1, 2, 3, 4 "
    "ORDER BY ns DESC LIMIT 10",
    "cpu_seconds": "SELECT cpu, sum(busy_ns), sum(idle_ns), sum(steal_ns) FROM cpu_seconds GROUP BY cpu",
    "gpu_samples": "SELECT gpu_index, avg(gpu_percent), min(sm_clock_mhz), max(memory_used_bytes) FROM gpu_samples "
    "GROUP BY gpu_index",
    "scheduling": "SELECT timestamp, pid, nice, policy, cpus_allowed, quota_us FROM scheduling ORDER BY timestamp",
    "host_flags": "SELECT bit, name FROM host_flags",
    "throttle_reasons": "SELECT bit, name FROM throttle_reasons",
    "process_gpus": "SELECT p.pid, p.gpu_id, g.name FROM process_gpus p JOIN gpus g ON g.uuid = p.gpu_uuid",
    "op_stats": "SELECT op_name, sum(count) AS calls, sum(sum_ns) / 1e6 AS total_ms, max(max_ns) FROM op_stats "
    "GROUP BY op_name ORDER BY total_ms DESC",
    "kernel_launches": "SELECT kernel_name, library, sum(count) AS launches FROM kernel_launches GROUP BY 1, 2 "
    "ORDER BY launches DESC LIMIT 20",
    "offcpu": "SELECT state, count(*), sum(duration_ns) FROM offcpu GROUP BY state ORDER BY 3 DESC",
    "sync_intervals": "SELECT pid, stream, count(*) AS syncs, sum(idle_ns) / 1e6 AS empty_ms, "
    "sum(busy_ns) / 1e6 AS busy_ms, sum(return_delay_ns) / 1e6 AS late_ms FROM sync_intervals GROUP BY pid, stream",
    "copies": "SELECT pid, op_name, sum(host_to_gpu_bytes), sum(gpu_to_host_bytes), sum(blocked_ns) / 1e6 AS ms "
    "FROM copies GROUP BY 1, 2 ORDER BY 5 DESC",
    "steps": "SELECT pid, step_type, count(*) AS steps, avg(step_ns) / 1e6 AS mean_ms, "
    "sum(blocked_ns) / 1e6 AS blocked_ms FROM steps GROUP BY pid, step_type",
    "progress_marks": "SELECT pid, stream, kind, count(*) FROM progress_marks GROUP BY 1, 2, 3",
    "gpu_activities": "SELECT kernel_name, count(*), sum(duration_ns) / 1e6 AS ms FROM gpu_activities "
    "WHERE kind = 'kernel' GROUP BY 1 ORDER BY 3 DESC LIMIT 20",
    "user_ranges": "SELECT kind, name, count(*), sum(duration_ns) / 1e6 AS ms FROM user_ranges GROUP BY 1, 2 "
    "ORDER BY 4 DESC LIMIT 20",
    "thread_state_seconds": "SELECT pid, sum(run_ns), sum(runq_ns), sum(throttled_ns) "
    "FROM thread_state_seconds GROUP BY pid",
    "culprits": "SELECT pid, culprit_name, culprit_pid, sum(ns) / 1e6 AS ms FROM culprits GROUP BY 1, 2, 3 "
    "ORDER BY ms DESC",
    "drops": "SELECT counter, reason, sum(count) FROM drops GROUP BY 1, 2 ORDER BY 3 DESC",
    "overhead_levels": "SELECT timestamp, level, overhead_ratio, agent_cpu_ratio, not_traced, reason "
    "FROM overhead_levels",
    "pruned": "SELECT name, kind, until_at, rows FROM pruned",
    "stack_traces": "SELECT s.frames, count(*) FROM events e JOIN stack_traces s ON s.hash = e.stack_hash "
    "GROUP BY s.hash ORDER BY 2 DESC LIMIT 5",
    "system_snapshots": "SELECT timestamp, cpu_percent, mem_available_bytes, psi_cpu_some_ns FROM system_snapshots "
    "ORDER BY psi_cpu_some_ns DESC LIMIT 10",
    "incidents": "SELECT timestamp, severity, cause, lost_ns, summary FROM incidents ORDER BY lost_ns DESC",
    "causal_chains": "SELECT detected_at, severity, summary, recommendations FROM causal_chains ORDER BY detected_at",
    "sources": "SELECT * FROM sources",
    "ops": "SELECT name, arg0, arg1, arg2, kind FROM ops WHERE kind <> ''",
    "nccl_datatypes": "SELECT * FROM nccl_datatypes",
    "nccl_reduce_ops": "SELECT * FROM nccl_reduce_ops",
    "thread_states": "SELECT * FROM thread_states",
    "waker_kinds": "SELECT * FROM waker_kinds",
    "call_flags": "SELECT f.name, count(*) FROM cuda_events e JOIN call_flags f ON e.flags >> f.bit & 1 GROUP BY 1",
    "sync_interval_flags": "SELECT f.name, count(*) FROM sync_intervals e "
    "JOIN sync_interval_flags f ON e.flags >> f.bit & 1 GROUP BY f.name",
}

_UNITS = (
    (re.compile(r"(.*_at|timestamp|gpu_done_(low_|high_)?ns|first_launch_ns|(.*_)?(start|end)_ns|(exit|woken|first_seen|last_seen)_ns)"),
     "unix ns"),
    (re.compile(r"(.*_)?ns|duration"), "ns"),
    (re.compile(r"(.*_)?bytes"), "bytes"),
    (re.compile(r".*_us"), "us"),
    (re.compile(r".*_s"), "s"),
    (re.compile(r".*_(percent|pct)"), "percent, 0 to 100"),
    (re.compile(r".*_ratio"), "ratio"),
    (re.compile(r".*_per_s"), "per second"),
)  # fmt: skip
_COMMENT_OF_VIEW = re.compile(r"((?:^-- .*\n)+)CREATE VIEW (\w+) AS", re.MULTILINE)
_TABLE = re.compile(r"^CREATE TABLE (\w+) \((.*?)^\)", re.MULTILINE | re.DOTALL)
_COMMENT_OF_COLUMN = re.compile(r"^ +(\w+) [^\n]*?-- ([^\n]*)$", re.MULTILINE)
_ABOUT_STORAGE = re.compile(r"string\b|-?\d+(:| = )|as raw_|raw_|NULL:|NULL =")  # a view shows it in another way
_CLOCKS_OF = {
    "host": "marker's thread outside calls that waited for the GPU",
    "blocked": "marker's thread inside them",
    "idle": "syncing thread, prev_sync_end_ns to first_launch_ns",
    "launch": "enqueuing thread",
    "sync": "syncing thread in it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A published column. unit: "" for a column without one."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published view or lookup table. notes: further remarks, "" for none.

    codes: name of a column that holds codes, and the meaning of each code.
    """

    name: str
    rows: str
    notes: str
    columns: tuple[Column, ...]
    example: str
    codes: tuple[str, Mapping[str, str]] | None = None


def documentation() -> tuple[Published, ...]:
    """The views in the order of views.sql, then the lookup tables."""
    comments = {name: _sentence(text) for text, name in _COMMENT_OF_VIEW.findall(sql_text("views.sql"))}
    return tuple(
        Published(
            name=name,
            rows=_ROWS.get(name, ""),
            notes=comments.get(name, ""),
            columns=tuple(
                Column(name=column, unit=_unit(column), meaning=_meaning(name, column)) for column in columns
            ),
            example=EXAMPLES.get(name, f"SELECT * FROM {name} LIMIT 10"),
            codes=_CODES.get(name),
        )
        for name, columns in _published().items()
    )


def _published() -> dict[str, list[str]]:
    db = apsw.Connection(":memory:")
    db.execute(sql_text("schema.sql"))
    db.execute(sql_text("views.sql"))
    found: dict[str, list[str]] = {}
    for name, column in db.execute(
        "SELECT s.name, c.name FROM sqlite_schema s, pragma_table_info(s.name) c WHERE s.type IN ('view', 'table') "
        "AND s.name NOT LIKE 'raw\\_%' ESCAPE '\\' ORDER BY s.type DESC, s.rowid, c.cid"
    ):
        found.setdefault(str(name), []).append(str(column))
    return found


def _unit(column: str) -> str:
    return next((unit for pattern, unit in _UNITS if pattern.fullmatch(column)), "")


def _meaning(view: str, column: str) -> str:
    part, _, clock = column.partition("_")
    if part in _CLOCKS_OF and clock in STATE_COLUMNS:
        return f"{_CLOCKS_OF[part]}: {_COLUMNS[clock]}"
    return _IN_VIEW.get((view, column)) or _COLUMNS.get(column) or _stored_comment(view, column)


def _stored_comment(view: str, column: str) -> str:
    """The comment in schema.sql on the column that this one is taken from, unless it is about how values are stored."""
    table = TABLES.get(view, view)
    renamed = re.search(rf"\b(\w+) AS {column}\b", query(view)) if view in TABLES else None
    comment = _comments().get((table, renamed[1] if renamed else column), "")
    return "" if _ABOUT_STORAGE.match(comment) else comment


@lru_cache(maxsize=1)
def _comments() -> Mapping[tuple[str, str], str]:
    return {
        (table, column): comment.strip()
        for table, body in _TABLE.findall(sql_text("schema.sql"))
        for column, comment in _COMMENT_OF_COLUMN.findall(body)
    }


def _sentence(comment: str) -> str:
    return " ".join(line.removeprefix("-- ") for line in comment.splitlines())
