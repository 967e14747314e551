-- The published SQL surface: names and columns that users' queries may rely on (docs/schema.md is generated from here).
-- A file has them for other programs; readers here make them anew as TEMP views, in older databases, too (views.py).
-- Where a column is named comm, older databases hold the text itself: hence coalesce(..., nullif(comm, 0)).
-- Names are looked up by scalar subqueries: SQLite runs only those a query asks for, but would run every outer join
-- (count(*) of a million events: 0.07 s against 3 s).

CREATE VIEW sessions AS
SELECT session AS id, uuid, node, started_ns AS started_at, stopped_ns AS stopped_at,
       coalesce(stopped_ns, last_seen_ns) - started_ns AS duration_ns, stop_reason, gpu_model, gpu_driver, cpu_model,
       cpu_count AS cpu_cores, memory_bytes, kernel, os_release, cuda_ver, python_ver, ingero_ver,
       pid_filter, flags, options, not_traced, nullif(agent_pid, 0) AS agent_pid,
       nullif(machine_id, '') AS machine_id, nullif(boot_id, '') AS boot_id
FROM raw_sessions;

CREATE VIEW node_clocks AS
SELECT c.session, (SELECT node FROM raw_sessions WHERE session = c.session) AS node, c.at_ns AS timestamp, c.offset_ns,
       c.bound_ns, c.reference
FROM raw_node_clocks c;

CREATE VIEW processes AS
SELECT p.process, p.session, (SELECT node FROM raw_sessions WHERE session = p.session) AS node, p.pid, p.start_ns,
       p.name, p.cmdline, p.uid, p.parent_pid, p.cgroup_id, p.rank, p.local_rank, p.world_size,
       nullif(p.rank_source, '') AS rank_source, nullif(p.slurm_job, '') AS slurm_job,
       nullif(p.scheduler, '') AS scheduler, nullif(p.job, '') AS job, nullif(p.job_step, '') AS job_step,
       (SELECT nullif(owner, '') FROM raw_cgroups WHERE cgroup_id = p.cgroup_id) AS owner, p.is_traced,
       p.first_seen_ns, p.last_seen_ns, p.exit_ns, p.exit_code
FROM raw_processes p;

CREATE VIEW process_names AS
SELECT p.pid, p.name, max(p.last_seen_ns) AS seen_at, s.node
FROM raw_processes p LEFT JOIN raw_sessions s ON s.session = p.session
WHERE p.name <> '' GROUP BY s.node, p.pid;

CREATE VIEW events AS
SELECT (SELECT iif(node = '', '', node || ':') || (e.id - seq_base) FROM raw_sessions WHERE session = e.session) AS id,
       (SELECT node FROM raw_sessions WHERE session = e.session) AS node, e.session, e.start_ns AS timestamp, e.pid,
       e.tid, e.process, e.source, e.op,
       (SELECT name FROM ops WHERE source_id = e.source AND op_id = e.op) AS op_name, e.duration_ns AS duration,
       e.duration_ns, e.arg0, e.arg1, e.arg2, e.stream, e.ret_code, e.stack_hash, e.cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = e.process) AS rank,
       (SELECT local_rank FROM raw_processes WHERE process = e.process) AS local_rank,
       (SELECT world_size FROM raw_processes WHERE process = e.process) AS world_size,
       coalesce((SELECT text FROM raw_strings WHERE string = e.comm), nullif(e.comm, 0)) AS comm,
       nullif(e.gpu_id, -1) AS gpu_id,
       (SELECT uuid FROM raw_process_gpus WHERE process = e.process AND ordinal IN (-1, e.gpu_id) AND uuid <> ''
        ORDER BY ordinal LIMIT 1) AS gpu_uuid,
       iif(e.source = 9, NULL, nullif(e.function, 0)) AS function,
       iif(e.function <> 0 AND e.source <> 9, (SELECT name FROM raw_kernels
           WHERE process = e.process AND function = e.function AND since_ns <= e.start_ns
           ORDER BY generation DESC LIMIT 1), NULL) AS kernel_name,
       nullif(e.caller, 0) AS caller,
       (SELECT text FROM raw_strings WHERE string = e.caller_library) AS caller_library,
       (SELECT text FROM raw_strings WHERE string = e.detail) AS detail, nullif(e.cpu, -1) AS cpu, e.run_ns,
       e.runq_ns, e.throttled_ns, e.yielded_ns, e.sleep_ns, e.io_ns, e.uninterruptible_ns, e.stopped_ns, e.residual_ns,
       e.involuntary_switches, e.switches, nullif(e.culprit_pid, 0) AS culprit_pid,
       (SELECT text FROM raw_strings WHERE string = e.culprit_name) AS culprit_name,
       nullif(e.culprit_ns, 0) AS culprit_ns, (SELECT name FROM waker_kinds WHERE id = e.waker_kind) AS waker_kind,
       nullif(e.waker_tid, 0) AS waker_tid, (SELECT text FROM raw_strings WHERE string = e.waker_name) AS waker_name,
       nullif(e.woken_ns, 0) AS woken_ns, e.flags, e.queue_ns
FROM raw_events e;

-- Calls of the CUDA runtime and driver, graphs included. kernel_name is NULL for calls that launch no kernel,
-- and where the name is not known (a handle that was made before tracing): `function` distinguishes such kernels.
CREATE VIEW cuda_events AS
SELECT (SELECT iif(node = '', '', node || ':') || (e.id - seq_base) FROM raw_sessions WHERE session = e.session) AS id,
       (SELECT node FROM raw_sessions WHERE session = e.session) AS node, e.session, e.start_ns AS timestamp, e.pid,
       e.tid, e.process, (SELECT name FROM ops WHERE source_id = e.source AND op_id = e.op) AS op, e.source,
       e.op AS op_code,
       iif(e.function <> 0, (SELECT name FROM raw_kernels
           WHERE process = e.process AND function = e.function AND since_ns <= e.start_ns
           ORDER BY generation DESC LIMIT 1), NULL) AS kernel_name, nullif(e.function, 0) AS function,
       e.duration_ns, e.arg0 AS bytes, e.arg1 AS handle,
       (SELECT CASE e.arg1 WHEN 1 THEN 'pinned' WHEN 2 THEN 'pageable' WHEN 3 THEN 'seems pageable' END FROM ops
        WHERE source_id = e.source AND op_id = e.op AND arg1 = 'host memory') AS host_memory,
       e.stream, e.ret_code, e.stack_hash, e.cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = e.process) AS rank,
       (SELECT local_rank FROM raw_processes WHERE process = e.process) AS local_rank,
       (SELECT world_size FROM raw_processes WHERE process = e.process) AS world_size,
       coalesce((SELECT text FROM raw_strings WHERE string = e.comm), nullif(e.comm, 0)) AS comm,
       nullif(e.gpu_id, -1) AS gpu_id,
       (SELECT uuid FROM raw_process_gpus WHERE process = e.process AND ordinal IN (-1, e.gpu_id) AND uuid <> ''
        ORDER BY ordinal LIMIT 1) AS gpu_uuid,
       (SELECT text FROM raw_strings WHERE string = e.caller_library) AS caller_library, e.run_ns, e.runq_ns,
       e.throttled_ns, e.yielded_ns, e.sleep_ns, e.io_ns, e.uninterruptible_ns, e.stopped_ns, e.flags
FROM raw_events e
WHERE +e.source IN (1, 4, 8);  -- the plus keeps it from an index: these are most of the rows

-- One rank's communicators. comm_id_hash is equal on all its ranks, on every node. What is NULL is not known; `note`
-- says why. collectives: how many were entered since created_at, recorded or not. last_...: the latest of these.
CREATE VIEW communicators AS
SELECT p.session, (SELECT node FROM raw_sessions WHERE session = p.session) AS node, p.pid, c.process, c.number,
       c.handle, c.comm_id_hash, c.rank, c.nranks, c.parent, nullif(c.origin, '') AS origin,
       c.created_ns AS created_at, nullif(c.destroyed_ns, 9223372036854775807) AS ended_at,
       nullif(c.ended_by, '') AS ended_by, c.collectives, c.note, nullif(c.last_ns, 0) AS last_at,
       nullif(c.last_tid, 0) AS last_tid,
       iif(c.last_ns > 0, (SELECT name FROM ops WHERE source_id = 9 AND op_id = c.last_op), NULL) AS last_op,
       iif(c.last_ns > 0, c.last_bytes, NULL) AS last_bytes
FROM raw_communicators c JOIN raw_processes p ON p.process = c.process;

-- rank and nranks are those of the communicator; NULL where its making was not seen. sequence: the how manyeth
-- collective of its communicator this is (of sends and receives: to or from that peer), equal on all ranks; counted
-- before anything is left out. bytes: count times element size, of the count that the call is given: ncclAllGather and
-- ncclGather what each rank sends, ncclReduceScatter and ncclScatter what each receives, ncclAlltoAll what goes to each
-- peer. group_id: calls of one thread with the same group_id belong to one ncclGroupStart .. ncclGroupEnd; they only
-- enqueue at its last ncclGroupEnd, so their own duration is not the time it took to enqueue them. stream: the stream
-- as view sync intervals names it (there a default stream has its device's number).
CREATE VIEW nccl_events AS
SELECT (SELECT iif(node = '', '', node || ':') || (e.id - seq_base) FROM raw_sessions WHERE session = e.session) AS id,
       (SELECT node FROM raw_sessions WHERE session = e.session) AS node, e.session, e.start_ns AS timestamp, e.pid,
       e.tid, e.process, (SELECT name FROM ops WHERE source_id = e.source AND op_id = e.op) AS op, e.source,
       e.op AS op_code, e.duration_ns, c.comm_id_hash, e.arg1 AS communicator, c.rank, c.nranks,
       nullif(e.function & 1099511627775, 0) AS sequence, t.id AS datatype, t.name AS datatype_name,
       nullif(e.arg2 >> 8 & 255, 0) - 1 AS reduce_op,
       (SELECT name FROM nccl_reduce_ops WHERE id = (e.arg2 >> 8 & 255) - 1) AS reduce_op_name,
       iif(e.op IN (7, 8), NULL, nullif(e.arg2 >> 16 & 16777215, 0) - 1) AS root,
       iif(e.op IN (7, 8), nullif(e.arg2 >> 16 & 16777215, 0) - 1, NULL) AS peer,
       iif(t.id IS NULL, NULL, e.arg0) AS bytes, nullif(e.arg2 >> 40 & 16777215, 0) AS group_id, e.stream,
       iif(e.stream IN (0, 1), 36028797018963969 | max(e.gpu_id, 0) << 56, e.stream) AS gpu_stream, e.ret_code,
       e.stack_hash, e.cgroup_id,
       coalesce((SELECT text FROM raw_strings WHERE string = e.comm), nullif(e.comm, 0)) AS comm,
       nullif(e.gpu_id, -1) AS gpu_id,
       (SELECT uuid FROM raw_process_gpus WHERE process = e.process AND ordinal IN (-1, e.gpu_id) AND uuid <> ''
        ORDER BY ordinal LIMIT 1) AS gpu_uuid,
       (SELECT text FROM raw_strings WHERE string = e.caller_library) AS caller_library, e.run_ns, e.runq_ns,
       e.throttled_ns, e.yielded_ns, e.sleep_ns, e.io_ns, e.uninterruptible_ns, e.stopped_ns, e.flags
FROM raw_events e
LEFT JOIN raw_communicators c ON c.process = e.process AND c.number = iif(e.function <> 0, e.function >> 40, (
    SELECT max(number) FROM raw_communicators m
    WHERE m.process = e.process AND m.handle = e.arg1 AND m.created_ns <= e.start_ns + e.duration_ns))
LEFT JOIN nccl_datatypes t ON t.id = iif(e.op IN (3, 4, 5, 6, 7, 8, 12, 13, 18, 19, 20), e.arg2 & 255, NULL)
WHERE e.source = 9;

-- What came of each recorded collective, send and receive: the next wait, begun after it, that ended a sync interval
-- (view sync intervals) of its own stream or was its own thread's (waited_by 'stream', 'thread'); where neither ever
-- waits, as the threads that torch runs the backward pass in, the next one of any thread for the same GPU ('process').
-- A wait for the whole device by another thread counts as the last. device_wait_ns is the part in which the GPU was
-- still busy: of the ranks of one (comm_id_hash, sequence), the straggler is the one with the least.
CREATE VIEW nccl_waits AS
SELECT n.session, n.node, n.timestamp, n.pid, n.tid, n.process, n.op, n.comm_id_hash, n.communicator, n.rank, n.nranks,
       n.sequence, n.bytes, n.group_id, n.stream, n.gpu_id, w.sync_end_ns - w.sync_start_ns AS wait_ns,
       max(w.gpu_done_ns - w.sync_start_ns, 0) AS device_wait_ns, w.sync_end_ns - max(w.gpu_done_ns, w.sync_start_ns) AS return_delay_ns,
       w.sync_start_ns AS wait_start_ns, w.sync_tid AS wait_tid,
       CASE WHEN w.id IS NULL THEN NULL WHEN w.stream = n.gpu_stream THEN 'stream' WHEN w.sync_tid = n.tid THEN 'thread'
       ELSE 'process' END AS waited_by
FROM nccl_events n
LEFT JOIN raw_sync_intervals w ON n.datatype IS NOT NULL AND w.id = coalesce(
    (SELECT id FROM raw_sync_intervals WHERE sync_end_ns > n.timestamp AND process = n.process AND sync_start_ns >= n.timestamp
     AND (sync_tid = n.tid OR stream = n.gpu_stream AND (source, op) NOT IN (VALUES (1, 6), (4, 4)))
     ORDER BY sync_end_ns, stream <> n.gpu_stream LIMIT 1),
    (SELECT id FROM raw_sync_intervals WHERE sync_end_ns > n.timestamp AND process = n.process
     AND max(device, 0) = max(coalesce(n.gpu_id, 0), 0) AND sync_start_ns >= n.timestamp ORDER BY sync_end_ns, stream <> n.gpu_stream LIMIT 1))
WHERE n.datatype IS NOT NULL;

-- One row per cgroup seen; container_id is NULL for those that are no container. cgroup_id is unique in the
-- file, also after merging nodes, so a join on it alone never crosses nodes. cgroup_path is NULL where a group was gone
-- before it could be looked up.
CREATE VIEW containers AS
SELECT cgroup_id, kernel_cgroup_id, node, nullif(container_id, '') AS container_id, nullif(pod, '') AS pod,
       nullif(pod, '') AS pod_name, nullif(namespace, '') AS namespace, nullif(orchestrator, '') AS orchestrator,
       nullif(runtime, '') AS runtime, nullif(pod_uid, '') AS pod_uid, nullif(slurm_job, '') AS slurm_job,
       nullif(scheduler, '') AS scheduler, nullif(job, '') AS job, nullif(job_step, '') AS job_step,
       nullif(owner, '') AS owner, nullif(ecs_task, '') AS ecs_task, nullif(unit, '') AS unit, nullif(cgroup_path, '') AS cgroup_path
FROM raw_cgroups;

-- Exact totals per session and cgroup; join containers for names. A process counts where it was when its tracing
-- began. gpu_wait_ns: inside calls that wait for the GPU. copied_bytes: by copies. runq_ns: its threads were runnable
-- (waiting for a CPU), yielded_ns: after sched_yield, throttled_ns: by its CPU quota; NULL where not recorded.
CREATE VIEW tenants AS
SELECT p.session, (SELECT node FROM raw_sessions WHERE session = p.session) AS node, p.cgroup_id,
       count(*) AS processes, sum(coalesce(o.launches, 0)) AS launches, sum(coalesce(o.gpu_wait_ns, 0)) AS gpu_wait_ns,
       sum(coalesce(o.copied_bytes, 0)) AS copied_bytes, sum(coalesce(o.collective_bytes, 0)) AS collective_bytes,
       sum(c.run_ns) AS run_ns, sum(c.runq_ns) AS runq_ns, sum(c.yielded_ns) AS yielded_ns,
       sum(c.throttled_ns) AS throttled_ns
FROM raw_processes p
LEFT JOIN (SELECT t.process, sum(iif(k.kind LIKE '%launch%', t.count, 0)) AS launches,
                  sum(iif(k.kind LIKE '%wait%', t.sum_ns, 0)) AS gpu_wait_ns,
                  sum(iif(k.kind LIKE '%copy%', t.bytes, 0)) AS copied_bytes,
                  sum(iif(k.kind LIKE '%collective%', t.bytes, 0)) AS collective_bytes
           FROM raw_op_stats t JOIN ops k ON k.source_id = t.source AND k.op_id = t.op GROUP BY t.process
          ) o ON o.process = p.process
LEFT JOIN (SELECT process, sum(run_ns) AS run_ns, sum(runq_ns) AS runq_ns, sum(yielded_ns) AS yielded_ns,
                  sum(throttled_ns) AS throttled_ns
           FROM raw_thread_state_seconds GROUP BY process
          ) c ON c.process = p.process
WHERE p.is_traced
GROUP BY p.session, p.cgroup_id;

-- The GPUs that NVML shows, and which of them a device ordinal (gpu_id) of a process means. gpu_id is NULL where the
-- driver has seen the process on this GPU only: then every ordinal that it uses means it. What is not proven has no
-- row.
CREATE VIEW gpus AS
SELECT g.session, (SELECT node FROM raw_sessions WHERE session = g.session) AS node, g.uuid, g.name, g.gpu_index,
       g.pci_bus_id, g.memory_bytes, g.slices
FROM raw_gpus g;

CREATE VIEW process_gpus AS
SELECT g.process, (SELECT pid FROM raw_processes WHERE process = g.process) AS pid,
       nullif(g.ordinal, -1) AS gpu_id, g.uuid AS gpu_uuid, nullif(g.slice, '') AS slice
FROM raw_process_gpus g WHERE g.uuid <> '';

-- The exact counts. Sum over rows; the calls of one second stand in several rows (caller_library).
CREATE VIEW op_stats AS
SELECT t.session, (SELECT node FROM raw_sessions WHERE session = t.session) AS node, t.start_ns AS timestamp,
       t.period_s, (SELECT pid FROM raw_processes WHERE process = t.process) AS pid, t.process, t.source, t.op,
       (SELECT name FROM ops WHERE source_id = t.source AND op_id = t.op) AS op_name,
       (SELECT text FROM raw_strings WHERE string = t.library) AS caller_library, t.count, t.errors, t.nested,
       t.untimed, t.recorded, t.sum_ns, t.max_ns, t.bytes, t.run_ns, t.runq_ns, t.throttled_ns, t.yielded_ns, t.sleep_ns,
       t.io_ns, t.uninterruptible_ns, t.stopped_ns,
       (SELECT cgroup_id FROM raw_processes WHERE process = t.process) AS cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = t.process) AS rank,
       (SELECT local_rank FROM raw_processes WHERE process = t.process) AS local_rank,
       (SELECT world_size FROM raw_processes WHERE process = t.process) AS world_size
FROM raw_op_stats t;

-- Exact, beside op_stats, of copies between the host and a GPU. What a copy inside a GPU moves is not here.
CREATE VIEW copies AS
SELECT c.session, (SELECT node FROM raw_sessions WHERE session = c.session) AS node, c.start_ns AS timestamp,
       c.period_s, (SELECT pid FROM raw_processes WHERE process = c.process) AS pid, c.process, c.source, c.op,
       (SELECT name FROM ops WHERE source_id = c.source AND op_id = c.op) AS op_name, c.host_to_gpu_bytes,
       c.gpu_to_host_bytes, c.blocked_ns
FROM raw_copies c;

-- Memory for a GPU by call site: levels (live_*, peak_bytes) at the end of the row's period, growth in the rest. A row
-- where something changed, and each minute while something is live.
CREATE VIEW gpu_memory AS
SELECT a.session, (SELECT node FROM raw_sessions WHERE session = a.session) AS node, a.start_ns AS timestamp,
       a.period_s, (SELECT pid FROM raw_processes WHERE process = a.process) AS pid, a.process, a.source, a.op,
       (SELECT name FROM ops WHERE source_id = a.source AND op_id = a.op) AS op_name, nullif(a.caller, 0) AS caller,
       (SELECT text FROM raw_strings WHERE string = a.library) AS caller_library,
       iif(a.library <> 0, a.offset, NULL) AS caller_offset,
       (SELECT name FROM memory_kinds WHERE id = a.memory_kind) AS memory_kind, a.stack_hash, a.live_bytes,
       a.live_count, a.peak_bytes, a.allocated_bytes, a.freed_bytes, a.allocations, a.frees, a.failures,
       a.failed_bytes, a.foreign_frees, (SELECT cgroup_id FROM raw_processes WHERE process = a.process) AS cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = a.process) AS rank
FROM raw_allocations a;

-- The same per process. unpaired: calls that do not count in it, so that the levels are not exact.
CREATE VIEW gpu_memory_seconds AS
SELECT m.session, (SELECT node FROM raw_sessions WHERE session = m.session) AS node, m.start_ns AS timestamp,
       m.period_s, (SELECT pid FROM raw_processes WHERE process = m.process) AS pid, m.process,
       (SELECT name FROM memory_kinds WHERE id = m.memory_kind) AS memory_kind, m.live_bytes, m.live_count,
       m.peak_bytes, m.unpaired, (SELECT cgroup_id FROM raw_processes WHERE process = m.process) AS cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = m.process) AS rank
FROM raw_memory_seconds m;

-- The exact counts. Sum over rows; the launches of one second stand in several rows. library: who launched it,
-- defined_in: whose kernel it is. What source_of_name says where kernel_name is NULL is the reason.
CREATE VIEW kernel_launches AS
SELECT k.session, (SELECT node FROM raw_sessions WHERE session = k.session) AS node, k.start_ns AS timestamp,
       k.period_s, (SELECT pid FROM raw_processes WHERE process = k.process) AS pid, k.process, k.function,
       n.name AS kernel_name, n.short_name, (SELECT text FROM raw_strings WHERE string = k.library) AS library,
       nullif(n.library, '') AS defined_in, n.source_of_name, k.count, (SELECT cgroup_id FROM raw_processes WHERE process = k.process) AS cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = k.process) AS rank,
       (SELECT local_rank FROM raw_processes WHERE process = k.process) AS local_rank,
       (SELECT world_size FROM raw_processes WHERE process = k.process) AS world_size
FROM raw_kernel_launches k
LEFT JOIN raw_kernels n ON n.process = k.process AND n.function = k.function AND n.generation = k.generation;

CREATE VIEW offcpu AS
SELECT i.session, (SELECT node FROM raw_sessions WHERE session = i.session) AS node, i.start_ns AS timestamp,
       i.duration_ns, i.pid, i.tid, i.process,
       coalesce((SELECT text FROM raw_strings WHERE string = i.comm), nullif(i.comm, 0)) AS comm,
       (SELECT name FROM thread_states WHERE id = i.state) AS state, nullif(i.woken_ns, 0) AS woken_ns,
       iif(i.woken_ns > 0, i.start_ns + i.duration_ns - i.woken_ns, NULL) AS runq_after_wake_ns,
       nullif(i.cpu, -1) AS cpu, nullif(i.culprit_pid, 0) AS culprit_pid,
       (SELECT text FROM raw_strings WHERE string = i.culprit_name) AS culprit_name,
       nullif(i.culprit_ns, 0) AS culprit_ns, (SELECT name FROM waker_kinds WHERE id = i.waker_kind) AS waker_kind,
       nullif(i.waker_pid, 0) AS waker_pid, nullif(i.waker_tid, 0) AS waker_tid,
       (SELECT text FROM raw_strings WHERE string = i.waker_name) AS waker_name, iif(i.futex > 14, i.futex & ~1, NULL) AS futex,
       iif(i.futex > 14, i.futex & 1, NULL) AS is_interpreter_lock, i.futex IN (2, 8, 10) AS is_own_request,
       nullif(i.stack_hash, 0) AS stack_hash, i.is_gpu_call,
       (SELECT cgroup_id FROM raw_processes WHERE process = i.process) AS cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = i.process) AS rank
FROM raw_offcpu i;

-- sync_end_ns - prev_sync_end_ns = idle_ns + busy_ns + return_delay_ns: GPU idle, GPU busy, returned late.
CREATE VIEW sync_intervals AS
SELECT e.session, (SELECT node FROM raw_sessions WHERE session = e.session) AS node, e.sync_end_ns AS timestamp,
       e.sync_end_ns - iif(e.prev_sync_end_ns > 0, e.prev_sync_end_ns, e.first_launch_ns) AS duration_ns, e.pid, e.process,
       nullif(e.device, -1) AS device, nullif(e.device, -1) AS gpu_id,
       (SELECT uuid FROM raw_process_gpus WHERE process = e.process AND ordinal IN (-1, e.device) AND uuid <> ''
        ORDER BY ordinal LIMIT 1) AS gpu_uuid, e.stream,
       e.idle_ns, e.busy_ns,
       e.return_delay_ns, nullif(e.prev_sync_end_ns, 0) AS prev_sync_end_ns, e.first_launch_ns, e.sync_start_ns, e.gpu_done_ns, e.gpu_done_low_ns, e.gpu_done_high_ns, e.sync_end_ns, e.launches,
       e.bytes, (SELECT text FROM raw_strings WHERE string = e.op_set) AS op_set,
       (SELECT text FROM raw_strings WHERE string = e.step_type) AS step_type, e.source, e.op,
       (SELECT name FROM ops WHERE source_id = e.source AND op_id = e.op) AS op_name, e.prev_sync_tid, e.first_launch_tid, e.sync_tid,
       nullif(e.graph, 0) AS graph, e.flags, e.idle_run_ns, e.idle_runq_ns, e.idle_throttled_ns,
       e.idle_yielded_ns, e.idle_sleep_ns, e.idle_io_ns, e.idle_uninterruptible_ns, e.idle_stopped_ns,
       e.launch_run_ns, e.launch_runq_ns, e.launch_throttled_ns, e.launch_yielded_ns, e.launch_sleep_ns,
       e.launch_io_ns, e.launch_uninterruptible_ns, e.launch_stopped_ns, e.sync_run_ns, e.sync_runq_ns,
       e.sync_throttled_ns, e.sync_yielded_ns, e.sync_sleep_ns, e.sync_io_ns, e.sync_uninterruptible_ns,
       e.sync_stopped_ns, (SELECT cgroup_id FROM raw_processes WHERE process = e.process) AS cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = e.process) AS rank
FROM raw_sync_intervals e;

-- host_* + blocked_* = duration_ns: thread-state time of the thread that makes the marker's call.
CREATE VIEW steps AS
SELECT t.session, (SELECT node FROM raw_sessions WHERE session = t.session) AS node, t.start_ns AS timestamp,
       t.end_ns - t.start_ns AS duration_ns, t.end_ns - t.start_ns AS step_ns, t.process, t.pid, t.tid,
       nullif(t.device, -1) AS gpu_id, t.stream, t.start_ns, t.end_ns,
       (SELECT text FROM raw_strings WHERE string = t.how) AS how,
       (SELECT text FROM raw_strings WHERE string = t.step_type) AS step_type,
       (SELECT name FROM ops WHERE source_id = t.source AND op_id = t.op) AS marker_op,
       (SELECT name FROM raw_kernels WHERE process = t.process AND function = t.function LIMIT 1) AS marker_kernel,
       iif(t.flags >> 14 & 1, NULL, t.launches) AS launches, t.copies, t.collectives, t.syncs, t.host_to_gpu_bytes, t.gpu_to_host_bytes,
       t.blocked_sync_ns + t.blocked_copy_ns + t.blocked_launch_ns + t.blocked_alloc_ns AS blocked_ns,
       t.blocked_sync_ns, t.blocked_copy_ns, t.blocked_launch_ns, t.blocked_alloc_ns, t.flags, t.host_run_ns,
       t.host_runq_ns, t.host_throttled_ns, t.host_yielded_ns, t.host_sleep_ns, t.host_io_ns, t.host_uninterruptible_ns,
       t.host_stopped_ns, t.blocked_run_ns, t.blocked_runq_ns, t.blocked_throttled_ns, t.blocked_yielded_ns,
       t.blocked_sleep_ns, t.blocked_io_ns, t.blocked_uninterruptible_ns, t.blocked_stopped_ns,
       (SELECT cgroup_id FROM raw_processes WHERE process = t.process) AS cgroup_id,
       (SELECT rank FROM raw_processes WHERE process = t.process) AS rank
FROM raw_steps t;

CREATE VIEW progress_marks AS
SELECT m.session, (SELECT node FROM raw_sessions WHERE session = m.session) AS node, m.time_ns AS timestamp,
       (SELECT pid FROM raw_processes WHERE process = m.process) AS pid, m.process, nullif(m.device, -1) AS gpu_id,
       m.stream, (SELECT text FROM raw_strings WHERE string = m.kind) AS kind, m.position,
       nullif(m.queued, 0) AS queued, m.blocked_ns
FROM raw_progress_marks m;

-- Measured by a profiler, not inferred; rows only in what `ingero import` made.
CREATE VIEW gpu_activities AS
SELECT g.session, (SELECT node FROM raw_sessions WHERE session = g.session) AS node, g.start_ns AS timestamp,
       g.duration_ns, (SELECT pid FROM raw_processes WHERE process = g.process) AS pid, g.process,
       nullif(g.device, -1) AS gpu_id, g.stream, (SELECT text FROM raw_strings WHERE string = g.kind) AS kind,
       (SELECT name FROM raw_kernels WHERE process = g.process AND function = g.function LIMIT 1) AS kernel_name,
       g.bytes, (SELECT text FROM raw_strings WHERE string = g.direction) AS direction,
       (SELECT text FROM raw_strings WHERE string = g.host_memory) AS host_memory, nullif(g.call_ns, 0) AS call_ns,
       nullif(g.communicator, 0) AS communicator, (SELECT rank FROM raw_processes WHERE process = g.process) AS rank
FROM raw_gpu_activities g;

-- As the program, its framework or a library marked them; rows only in what `ingero import` made.
CREATE VIEW user_ranges AS
SELECT u.session, (SELECT node FROM raw_sessions WHERE session = u.session) AS node, u.start_ns AS timestamp,
       u.duration_ns, (SELECT pid FROM raw_processes WHERE process = u.process) AS pid, u.process, u.tid,
       (SELECT text FROM raw_strings WHERE string = u.kind) AS kind,
       (SELECT text FROM raw_strings WHERE string = u.name) AS name,
       (SELECT rank FROM raw_processes WHERE process = u.process) AS rank
FROM raw_user_ranges u;

CREATE VIEW thread_state_seconds AS
SELECT c.session, (SELECT node FROM raw_sessions WHERE session = c.session) AS node, c.start_ns AS timestamp,
       c.period_s, (SELECT pid FROM raw_processes WHERE process = c.process) AS pid, c.process, c.threads, c.run_ns,
       c.runq_ns, c.throttled_ns, c.yielded_ns, c.sleep_ns, c.io_ns, c.uninterruptible_ns, c.stopped_ns, c.switches,
       c.involuntary_switches, c.major_faults
FROM raw_thread_state_seconds c;

-- culprit_pid 0 is an idle CPU, -1 unknown.
CREATE VIEW culprits AS
SELECT c.session, (SELECT node FROM raw_sessions WHERE session = c.session) AS node, c.start_ns AS timestamp,
       c.period_s, (SELECT pid FROM raw_processes WHERE process = c.process) AS pid, c.process,
       (SELECT name FROM thread_states WHERE id = c.kind) AS kind, c.culprit_pid,
       (SELECT text FROM raw_strings WHERE string = c.culprit_name) AS culprit_name,
       nullif(c.culprit_cgroup_id, 0) AS culprit_cgroup_id, c.ns, c.switches
FROM raw_culprits c;

CREATE VIEW stack_samples AS
SELECT s.id, s.session, (SELECT node FROM raw_sessions WHERE session = s.session) AS node, s.time_ns AS timestamp,
       s.process, s.pid, s.tid, (SELECT text FROM raw_strings WHERE string = s.comm) AS comm,
       (SELECT name FROM thread_states WHERE id = s.state) AS state, s.weight_ns, s.is_collecting,
       nullif(s.stack_hash, 0) AS stack_hash
FROM raw_stack_samples s;

CREATE VIEW drops AS
SELECT l.session, (SELECT node FROM raw_sessions WHERE session = l.session) AS node, l.start_ns AS timestamp,
       l.counter, l.reason, l.count
FROM raw_drops l;

-- What is not traced, since when and why: the newest row holds. not_traced is empty where everything is traced.
CREATE VIEW overhead_levels AS
SELECT g.session, (SELECT node FROM raw_sessions WHERE session = g.session) AS node, g.time_ns AS timestamp, g.level,
       g.agent_level, g.not_traced, g.reason, g.overhead_ratio, g.hits_per_s, nullif(g.tid, 0) AS tid, g.agent_cpu_ratio,
       g.full_ns, g.nested_ns, g.counted_ns, g.suspended_ns
FROM raw_overhead_levels g;

-- What was pruned for the size limit: no row of that kind before until_at (folded: downsampled, only rows of whole
-- minutes).
CREATE VIEW pruned AS
SELECT replace(r.name, 'raw_', '') AS name, r.kind, r.until_ns AS until_at, r.rows, r.noted_ns AS noted_at,
       r.max_db_bytes
FROM raw_pruned r;

CREATE VIEW stack_traces AS
SELECT hash, ips, frames, note, is_python_whole
FROM raw_stacks;

CREATE VIEW system_snapshots AS
SELECT n.id, n.session, (SELECT node FROM raw_sessions WHERE session = n.session) AS node, n.time_ns AS timestamp,
       max(n.time_ns - (SELECT b.time_ns FROM raw_snapshots b WHERE b.session = n.session AND b.time_ns < n.time_ns
                        ORDER BY b.time_ns DESC LIMIT 1),
           coalesce(n.psi_cpu_some_ns, 0), coalesce(n.psi_memory_some_ns, 0), coalesce(n.psi_io_some_ns, 0)
       ) AS elapsed_ns, -- see store/machine.py
       n.cpu_percent, n.mem_percent, n.mem_available_bytes, n.swap_used_bytes, n.load_avg, n.psi_cpu_some_ns,
       n.psi_memory_some_ns, n.psi_memory_full_ns, n.psi_io_some_ns, n.psi_io_full_ns, n.agent_cpu_ns,
       n.agent_rss_bytes, n.cpu_percent AS cpu_pct, n.mem_percent AS mem_pct,
       n.mem_available_bytes / 1048576 AS mem_avail, n.swap_used_bytes / 1048576 AS swap_mb
FROM raw_snapshots n;

-- How each CPU spent the elapsed_ns before timestamp, to 10 ms. irq and steal are 0 where the kernel does not account
-- them.
CREATE VIEW cpu_seconds AS
SELECT c.session, (SELECT node FROM raw_sessions WHERE session = c.session) AS node, c.time_ns AS timestamp,
       c.elapsed_ns, j.value ->> 0 AS cpu, (j.value ->> 1) * c.tick_ns AS busy_ns, (j.value ->> 2) * c.tick_ns AS idle_ns,
       (j.value ->> 3) * c.tick_ns AS iowait_ns, (j.value ->> 4) * c.tick_ns AS irq_ns,
       (j.value ->> 5) * c.tick_ns AS steal_ns
FROM raw_cpu_seconds c, json_each(c.cpus) j;

-- gpu_percent: of the last sample period with any kernel running; it does not say how full the GPU was.
CREATE VIEW gpu_samples AS
SELECT g.session, (SELECT node FROM raw_sessions WHERE session = g.session) AS node, g.time_ns AS timestamp,
       g.uuid AS gpu_uuid, g.gpu_index, g.gpu_percent, g.memory_percent, g.memory_used_bytes, g.memory_total_bytes,
       g.sm_clock_mhz, g.max_sm_clock_mhz, g.throttle_reasons,
       (SELECT group_concat(name, ', ') FROM throttle_reasons WHERE bit & g.throttle_reasons) AS throttled_by,
       g.power_mw, g.temperature_c, g.processes, g.asked_ns,
       g.pcie_generation, g.pcie_lanes
FROM raw_gpu_samples g;

-- How the scheduler is set to treat a thread, from timestamp on; the newest row of a (pid, tid) holds.
CREATE VIEW scheduling AS
SELECT s.session, (SELECT node FROM raw_sessions WHERE session = s.session) AS node, s.time_ns AS timestamp,
       s.pid, s.tid, nullif(s.process, 0) AS process, s.nice, s.policy, s.rt_priority, s.cpus_allowed, s.cpu_weight,
       s.quota_us, s.period_us
FROM raw_scheduling s;

CREATE VIEW incidents AS
SELECT i.incident AS id, i.session, (SELECT node FROM raw_sessions WHERE session = i.session) AS node, i.cause,
       i.resource, i.root, i.severity, i.start_ns AS timestamp, i.end_ns, i.lost_ns, i.lost_ratio, i.explained_ratio,
       i.peak, i.summary, i.affected, i.culprits, i.evidence, i.fixes, i.kind, i.line, i.chain, i.breakdown
FROM raw_incidents i;

CREATE VIEW causal_chains AS
SELECT c.chain AS id, c.detected_ns AS detected_at, c.severity, c.summary, c.root_cause, c.explanation,
       c.recommendations, c.cuda_op, c.cuda_p99_us, c.cuda_p50_us, c.tail_ratio, c.timeline,
       (SELECT node FROM raw_sessions WHERE session = c.session) AS node, c.incident, c.session
FROM raw_causal_chains c;
