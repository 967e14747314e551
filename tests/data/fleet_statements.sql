-- What the generator of fleet_nodes.py does not make: windows, joins, several SELECTs, names that mean two things, rows
-- as they are. One statement a line.
SELECT node, row_number() OVER (PARTITION BY node, process ORDER BY timestamp, id) AS n, duration FROM events WHERE op_name LIKE 'cuda%' AND duration > 100000 ORDER BY node, timestamp, id
SELECT node, id, lag(timestamp) OVER (PARTITION BY process ORDER BY timestamp, id) FROM events WHERE pid = 101 ORDER BY id
SELECT count(*) FROM events a JOIN events b ON b.process = a.process AND b.timestamp > a.timestamp WHERE a.duration > 10000000
SELECT e.node, p.name, count(*), sum(e.duration) FROM events e JOIN processes p ON p.process = e.process GROUP BY 1, 2 ORDER BY 1, 2
SELECT e.node, p.name, count(*) FROM events e LEFT JOIN processes p USING (process) GROUP BY e.node, p.name ORDER BY 1, 2
SELECT container_id, op, COUNT(*) AS calls, AVG(duration_ns)/1e6 AS avg_ms, MAX(duration_ns)/1e6 AS max_ms FROM nccl_events e JOIN containers c ON c.cgroup_id = e.cgroup_id GROUP BY container_id, op ORDER BY max_ms DESC LIMIT 20
SELECT a.node, b.node, count(*) FROM processes a JOIN processes b ON a.pid = b.pid AND a.node < b.node GROUP BY 1, 2 ORDER BY 1, 2
WITH t AS (SELECT node, count(*) AS n FROM events GROUP BY node) SELECT t.node, n, n * 100.0 / (SELECT sum(n) FROM t) FROM t ORDER BY 1
SELECT count(*), min(id) FROM events WHERE timestamp > (SELECT max(timestamp) FROM events) - 2e9
SELECT node FROM events UNION SELECT node FROM op_stats WHERE count > 990 ORDER BY 1
SELECT node, duration FROM events WHERE duration > (SELECT avg(duration) * 100 FROM events) ORDER BY duration DESC, node LIMIT 5
SELECT k.name, sum(o.count) FROM op_stats o JOIN ops k ON k.source_id = o.source AND k.op_id = o.op GROUP BY 1 ORDER BY 1
SELECT s.name, count(*) FROM sources s JOIN events e ON e.source = s.id GROUP BY s.name ORDER BY 1
SELECT * FROM processes WHERE pid = 101 ORDER BY node, name, start_ns LIMIT 4
SELECT node, pid, max(duration) FROM events GROUP BY node ORDER BY node
SELECT pid, max(duration), node FROM events
SELECT op_name, json_group_array(pid) FROM (SELECT DISTINCT op_name, pid FROM events ORDER BY 1, 2) GROUP BY op_name ORDER BY 1
SELECT DISTINCT comm FROM events ORDER BY comm
SELECT DISTINCT node, pid FROM events WHERE arg2 = 1 ORDER BY pid DESC, node LIMIT 3 OFFSET 1
SELECT count(*) FROM (SELECT process, count(*) AS c FROM events GROUP BY process HAVING c > 10)
SELECT avg(c) FROM (SELECT count(*) AS c FROM events GROUP BY process)
SELECT count(DISTINCT process), count(DISTINCT cgroup_id), count(DISTINCT node || pid) FROM events
SELECT name, count(*) FROM processes WHERE EXISTS (SELECT 1 FROM events e WHERE e.process = processes.process AND e.duration > 1000000) GROUP BY name ORDER BY name
SELECT count(*) FROM events WHERE process IN (SELECT process FROM processes WHERE name = 'python')
SELECT node, count(*) FROM processes WHERE pid IN (SELECT pid FROM events WHERE duration = 0) GROUP BY node ORDER BY 1
SELECT upper(node) AS node, count(*) FROM events GROUP BY node ORDER BY node
SELECT node, count(*) n FROM events GROUP BY node ORDER BY n COLLATE NOCASE DESC, -1 * length(node), node LIMIT 3
SELECT comm, count(*) FROM events GROUP BY comm COLLATE NOCASE HAVING comm LIKE 'p%'
SELECT min(comm), max(comm), min(comm, 'b'), max(arg1), sum(arg1 / 1000000), min(arg1) FROM events
SELECT group_concat(DISTINCT node) FROM (SELECT node FROM events ORDER BY node)
SELECT count(*) FROM stack_traces
SELECT 1
SELECT count(*) FROM ops
SELECT sum(duration) AS duration FROM events GROUP BY node ORDER BY duration
SELECT sum(duration) AS d, node FROM events GROUP BY 2 HAVING d > 100 AND node <> 'node-1' ORDER BY -d
SELECT "node", [source], `op_name`, count(*) "how many" FROM "events" AS "e" GROUP BY e."node", [source], "op_name" ORDER BY 1, 2, 3
SELECT duration / 1000 us, count(*) FROM events WHERE us > 5 GROUP BY us ORDER BY us LIMIT 7
SELECT count(*) FILTER (WHERE duration > 5), sum(duration) FILTER (WHERE comm = 'python') FROM events
SELECT cast(avg(duration) AS INTEGER), printf('%d', sum(duration)), typeof(sum(duration)), typeof(avg(pid)), typeof(total(pid)) FROM events
SELECT node, median(duration) FROM events WHERE duration IN (0, 5) GROUP BY node ORDER BY 1
SELECT node FROM events LIMIT 0
SELECT comm AS c, rank() OVER (ORDER BY count(*) DESC, comm) FROM events GROUP BY comm ORDER BY 2
SELECT e.id, s.kernel FROM events e, sessions s WHERE s.id = e.session ORDER BY 1 LIMIT 3
SELECT count(*) FROM events e JOIN processes p ON p.process = e.process OR p.pid = e.tid
SELECT count(*) FROM events e CROSS JOIN sessions
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT i, (SELECT count(*) FROM events WHERE gpu_id = i) FROM n
WITH events AS (SELECT * FROM events WHERE duration > 1000000) SELECT count(*) FROM (SELECT node FROM events)
SELECT CASE WHEN duration > 1000 THEN 'a' END AS c, count(*) FROM events WHERE duration BETWEEN 1 AND 5 OR 1 GROUP BY c ORDER BY c NULLS LAST
SELECT value, count(*) FROM events, json_each('[0,5]') WHERE value = duration GROUP BY 1 ORDER BY 1
SELECT node, count(*) FROM incidents GROUP BY node
SELECT -count(*), +1, NOT count(*) FROM events GROUP BY pid, pid + 1 ORDER BY count(*) LIMIT 2, 1
VALUES (1), (2)
SELECT node, count(*) FROM events WHERE process IN (SELECT process FROM processes WHERE name = 'python') GROUP BY node ORDER BY 1
SELECT count(*) FROM events WHERE cgroup_id NOT IN (SELECT cgroup_id FROM containers WHERE container_id IS NOT NULL)
SELECT count(*) FROM events e WHERE e.process IN (SELECT process FROM events GROUP BY process HAVING count(*) > 45)
SELECT count(*) FROM events e WHERE e.pid IN (SELECT process FROM events)
SELECT count(*), sum(duration > (SELECT avg(duration) FROM events)) FROM events WHERE timestamp < (SELECT max(timestamp) FROM events) - 5e9 AND comm IN (SELECT name FROM processes WHERE pid = 101)
SELECT node, (SELECT count(*) FROM events) FROM processes WHERE pid = 101 ORDER BY 1
SELECT count(*) FROM events WHERE duration > (SELECT percentile(duration, 50) FROM events WHERE duration > (SELECT min(duration) FROM events))
SELECT node, comm FROM events WHERE (duration, pid) = (SELECT duration, pid FROM events ORDER BY duration DESC LIMIT 1)
SELECT count(*) FROM events WHERE comm = (SELECT comm FROM events WHERE comm LIKE 'o%' LIMIT 1)
