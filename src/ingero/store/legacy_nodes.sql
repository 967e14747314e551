-- Of an Ingero 0.x database that was merged from several nodes: a process for each pid on each node, instead of one for
-- all of them. The number is that of the node's first session, shifted beyond any pid, and the pid.

INSERT INTO raw_processes(process, session, pid, start_ns, name, rank, local_rank, world_size, last_seen_ns)
SELECT first << 23 | p.pid, first, p.pid, 0, coalesce(n.name, ''), {s.rank}, {s.local_rank}, {s.world_size},
       coalesce(n.seen_at, 0)
FROM (SELECT node, pid FROM old.events UNION SELECT node, arg1 FROM old.events WHERE source = 3 AND op = 1 AND arg1 > 0) p
JOIN (SELECT node, min(session) AS first FROM raw_sessions GROUP BY node) m ON m.node = p.node
JOIN old.sessions s ON s.id = first
LEFT JOIN old.process_names n ON n.pid = p.pid;

DELETE FROM raw_processes
WHERE process < 1 << 23 AND pid IN (SELECT pid FROM raw_processes WHERE process >= 1 << 23)
  AND process NOT IN (SELECT process FROM raw_op_stats);
