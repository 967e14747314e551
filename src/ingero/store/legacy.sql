-- Small tables of an Ingero 0.x database (attached as `old`), copied into the tables of schema.sql. A word in braces
-- is a column or table that some versions lack: legacy.py fills in what stands for it.

INSERT INTO raw_sessions(session, uuid, node, started_ns, last_seen_ns, stopped_ns, kernel, os_release, cpu_model,
                         cpu_count, memory_bytes, gpu_model, gpu_driver, cuda_ver, python_ver, ingero_ver, pid_filter, flags)
SELECT id, '', {sessions.node}, started_at, max(started_at, stopped_at), nullif(stopped_at, 0), kernel, os_release, cpu_model,
       cpu_cores, mem_total * 1048576, gpu_model, gpu_driver, cuda_ver, python_ver, ingero_ver, pid_filter, flags
FROM old.sessions;

INSERT INTO raw_sessions(session, uuid, node, started_ns, last_seen_ns)
SELECT row_number() OVER (), '', node, first, last
FROM (SELECT {events.node} AS node, min(timestamp) AS first, max(timestamp) AS last FROM old.events e GROUP BY 1)
WHERE NOT EXISTS (SELECT 1 FROM raw_sessions);

-- One process per pid: these versions kept no start times (legacy_nodes.sql: of files merged from several nodes). The
-- recursion steps through the index on pid instead of reading every event.
INSERT INTO raw_processes(process, session, pid, start_ns, name, rank, local_rank, world_size, last_seen_ns)
WITH RECURSIVE seen(pid) AS (
    SELECT min(pid) FROM old.events
    UNION ALL
    SELECT (SELECT min(e.pid) FROM old.events e WHERE e.pid > seen.pid) FROM seen WHERE seen.pid IS NOT NULL
), pids(pid) AS (
    SELECT pid FROM seen WHERE pid IS NOT NULL UNION SELECT pid FROM old.process_names
    UNION SELECT pid FROM {aggregates}
)
SELECT p.pid, coalesce(s.id, (SELECT iif(count(*) = 1, min(id), 0) FROM old.sessions)), p.pid, 0, coalesce(n.name, ''), {s.rank}, {s.local_rank}, {s.world_size},
       coalesce(n.seen_at, 0)
FROM pids p
LEFT JOIN old.process_names n ON n.pid = p.pid
LEFT JOIN old.sessions s ON s.id = (
    SELECT max(id) FROM old.sessions m WHERE coalesce(n.seen_at, 0) BETWEEN m.started_at AND m.stopped_at + 1000000000)
WHERE true;

INSERT INTO raw_op_stats(session, start_ns, period_s, process, source, op, count, errors, nested, recorded, sum_ns,
                         max_ns, bytes)
SELECT coalesce((SELECT max(session) FROM raw_sessions WHERE started_ns < bucket + 60000000000), 0), bucket, 60, pid, source, op, count, NULL, NULL, stored, sum_dur, max_dur,
       iif(source = 1 AND op IN (1, 4, 7, 8, 11, 12) OR source = 4 AND op IN (2, 3, 5, 6), sum_arg0, 0)
FROM {aggregates};

INSERT INTO raw_snapshots(session, time_ns, cpu_percent, mem_percent, mem_available_bytes, swap_used_bytes, load_avg)
SELECT coalesce((SELECT max(session) FROM raw_sessions WHERE started_ns <= timestamp), 0), timestamp, cpu_pct, mem_pct,
       mem_avail * 1048576, swap_mb * 1048576, load_avg
FROM old.system_snapshots;

INSERT INTO raw_stacks(hash, ips, frames) SELECT hash, ips, frames FROM old.stack_traces;

INSERT INTO raw_causal_chains(chain, session, detected_ns, severity, summary, root_cause, explanation, recommendations,
                              cuda_op, cuda_p99_us, cuda_p50_us, tail_ratio, timeline)
SELECT id, coalesce((SELECT max(session) FROM raw_sessions s WHERE s.node = {chains.node} AND s.started_ns <= detected_at),
                    (SELECT min(session) FROM raw_sessions s WHERE s.node = {chains.node}), 0),
       detected_at, severity, summary, root_cause, explanation, recommendations, cuda_op, cuda_p99_us, cuda_p50_us,
       tail_ratio, timeline
FROM old.causal_chains;

INSERT INTO raw_cgroups(cgroup_id, kernel_cgroup_id, node, container_id, cgroup_path, pod, namespace)
SELECT cgroup_id, cgroup_id, coalesce((SELECT iif(count(DISTINCT node) = 1, min(node), '') FROM raw_sessions), ''),
       container_id, cgroup_path, pod_name, namespace
FROM {cgroups};

-- The large table stays where it is. There, block I/O, sockets and context switches carry the time of their end, block
-- I/O a number of sectors, a socket its descriptor as arg0, a launch its function, a copy its kind as arg1.
CREATE TEMP VIEW raw_events AS
SELECT {events.seq} AS id,
       coalesce((SELECT max(session) FROM raw_sessions s WHERE s.node = {events.node} AND s.started_ns <= e.timestamp),
                (SELECT min(session) FROM raw_sessions s WHERE s.node = {events.node}), 0) AS session,
       iif(e.source IN (5, 7) OR e.source = 3 AND e.op = 1, e.timestamp - e.duration, e.timestamp) AS start_ns,
       iif(e.source = 3 AND e.op = 3, 0, e.duration) AS duration_ns, {process} AS process, e.pid, e.tid, e.source, e.op,
       CASE WHEN e.source = 5 THEN e.arg0 * 512
            WHEN e.source = 7 THEN e.arg1
            WHEN e.source = 1 AND e.op IN (1, 4, 7, 8, 9, 10, 11, 12) OR e.source = 4 AND e.op IN (2, 3, 5, 6) THEN e.arg0
            WHEN e.source = 1 AND e.op = 2 THEN e.arg1
            WHEN e.source = 3 AND e.op IN (3, 20) THEN e.arg0
            ELSE 0 END AS arg0,
       CASE WHEN e.source IN (3, 5, 6) THEN e.arg1
            WHEN e.source = 1 AND e.op = 2 THEN e.arg0
            ELSE 0 END AS arg1,
       CASE WHEN e.source = 3 AND e.op = 6 THEN NULL -- the exit code was not recorded
            WHEN e.source = 1 AND e.op IN (4, 7, 9, 10) THEN e.arg1
            ELSE 0 END AS arg2,
       CASE WHEN e.source = 1 AND e.op = 5 THEN e.arg0
            WHEN e.source IN (1, 4) AND e.op = iif(e.source = 1, 3, 1) THEN e.arg1
            ELSE 0 END AS stream,
       e.ret_code, -1 AS gpu_id, 0 AS caller, 0 AS caller_library,
       iif(e.source = 1 AND e.op = 3 OR e.source = 4 AND e.op = 1, e.arg0, 0) AS function,
       0 AS detail, {events.cgroup_id} AS cgroup_id, nullif({events.comm}, '') AS comm, -1 AS cpu,
       NULL AS run_ns, NULL AS runq_ns, NULL AS throttled_ns, NULL AS yielded_ns, NULL AS sleep_ns, NULL AS io_ns,
       NULL AS uninterruptible_ns, NULL AS stopped_ns, NULL AS residual_ns, NULL AS involuntary_switches, NULL AS switches,
       0 AS culprit_pid, 0 AS culprit_name, 0 AS culprit_ns, NULL AS waker_kind, 0 AS waker_tid, 0 AS waker_name,
       0 AS woken_ns, 0 AS flags, e.stack_hash, NULL AS queue_ns
FROM old.events e;

-- Why the thread was off the CPU was not recorded: state is NULL, and a sleep cannot be told from a preemption.
CREATE TEMP VIEW raw_offcpu AS
SELECT id, session, start_ns, duration_ns, process - pid + iif(arg1 > 0, arg1, pid) AS process, iif(arg1 > 0, arg1, pid) AS pid, tid, comm,
       NULL AS state, 0 AS woken_ns, -1 AS cpu, 0 AS culprit_pid, 0 AS culprit_name, 0 AS culprit_ns, NULL AS waker_kind,
       0 AS waker_pid, 0 AS waker_tid, 0 AS waker_name, 0 AS futex, 0 AS stack_hash, 0 AS is_gpu_call
FROM raw_events WHERE source = 3 AND op = 1;
