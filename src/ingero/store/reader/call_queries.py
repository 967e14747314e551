"""SQL queries for NCCL calls and for the GPU memory that call sites held over time."""

from __future__ import annotations

from ingero.store.arrays.arrays import SITE_LEVEL_COLUMNS
from ingero.store.conditions import columns, of_process
from ingero.store.reader.memory_queries import BEFORE, INSIDE

# One row per recorded NCCL call, the newest first.
NCCL_CALLS = """
SELECT session, process, op_code, coalesce(comm_id_hash, 0), coalesce(rank, -1), coalesce(nranks, 0),
       coalesce(sequence, 0), timestamp, duration_ns, coalesce(bytes, 0), coalesce(ret_code, 0)
FROM ({view}) ORDER BY timestamp DESC LIMIT :limit
"""

# The latest collective of each communicator of a rank, as its entry in the kernel had it; arg2 as of view nccl_events.
LATEST_COLLECTIVES = """
SELECT c.process, c.last_ns, (SELECT name FROM ops WHERE source_id = 9 AND op_id = c.last_op), c.comm_id_hash, c.number,
       iif(c.origin = '', NULL, c.collectives),
       coalesce((SELECT name FROM nccl_datatypes WHERE id = c.last_arg2 & 255), ''),
       coalesce((SELECT name FROM nccl_reduce_ops WHERE id = (c.last_arg2 >> 8 & 255) - 1), ''),
       nullif(c.last_arg2 >> 16 & 16777215, 0) - 1, c.last_bytes, 0, c.last_tid
FROM raw_communicators c WHERE c.last_ns > 0 ORDER BY c.process, c.last_ns
"""

_LEVELS = columns(SITE_LEVEL_COLUMNS, "a")

# with the levels that the window begins with, whose rows are older than it
SITE_LEVELS = f"""
SELECT {_LEVELS} FROM raw_allocations a WHERE {INSIDE} AND {of_process("a")}
UNION ALL
SELECT {columns(SITE_LEVEL_COLUMNS)} FROM (
    SELECT a.*, row_number() OVER (
        PARTITION BY a.process, a.source, a.op, a.caller, a.stack_hash ORDER BY a.start_ns DESC, a.id DESC) AS age
    FROM raw_allocations a LEFT JOIN raw_processes p ON p.process = a.process
    WHERE {BEFORE} AND coalesce(p.exit_ns, :end) > :begin AND {of_process("a")}
) WHERE age = 1
ORDER BY start_ns
"""
