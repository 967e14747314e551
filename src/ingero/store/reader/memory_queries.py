"""SQL queries for GPU memory: levels hold until the next row, growth is summed."""

from __future__ import annotations

from ingero.store.arrays.arrays import MEMORY_SECOND_COLUMNS
from ingero.store.conditions import columns, of_process, period_ns, sum_of, touches
from ingero.units import SECOND_NS

# Held memory is stored again each minute, which retention may have downsampled: older rows do not show what is in use.
_LOOKBACK_NS = 240 * SECOND_NS

_SITE = "a.process, a.source, a.op, a.caller, a.stack_hash"
_ENDS = f"a.start_ns + {period_ns('a')}"
# the rows of the window, and before it the newest of each site
INSIDE = touches("a")
BEFORE = f"{_ENDS} <= :begin AND a.start_ns > :begin - {_LOOKBACK_NS}"
_GROWTH = ("allocated_bytes", "freed_bytes", "allocations", "frees", "failures", "failed_bytes", "foreign_frees")
_SUMS = ", ".join(sum_of(name, f"iif(is_inside, {name}, 0)") for name in _GROWTH)

SITES = f"""
WITH found AS (
    SELECT a.*, {INSIDE} AS is_inside,
           row_number() OVER (PARTITION BY {_SITE}, {INSIDE} ORDER BY a.start_ns DESC, a.id DESC) AS age
    FROM raw_allocations a LEFT JOIN raw_processes p ON p.process = a.process
    WHERE ({INSIDE} OR ({BEFORE} AND coalesce(p.exit_ns, :end) > :begin)) AND {of_process("a")}
)
SELECT f.process, f.source, f.op, coalesce(o.name, f.source || '/' || f.op), f.caller,
       coalesce(max(s.text), ''), max(f.offset),
       coalesce((SELECT name FROM memory_kinds WHERE id = f.memory_kind), ''), f.stack_hash,
       sum(iif(NOT is_inside AND age = 1, live_bytes, 0)) AS begin_bytes,
       coalesce(max(iif(is_inside AND age = 1, live_bytes, NULL)), sum(iif(age = 1, live_bytes, 0))) AS end_bytes,
       sum(iif(NOT is_inside AND age = 1, live_count, 0)),
       coalesce(max(iif(is_inside AND age = 1, live_count, NULL)), sum(iif(age = 1, live_count, 0))),
       max(peak_bytes), {_SUMS}
FROM found f LEFT JOIN ops o ON o.source_id = f.source AND o.op_id = f.op
LEFT JOIN raw_strings s ON s.string = f.library
WHERE is_inside OR age = 1
GROUP BY f.process, f.source, f.op, f.caller, f.stack_hash ORDER BY end_bytes DESC, begin_bytes DESC
"""

# with the levels that the window begins with, whose rows are older than it
SECONDS = f"""
SELECT {columns(MEMORY_SECOND_COLUMNS, "a")} FROM raw_memory_seconds a
WHERE {INSIDE} AND {of_process("a")}
UNION ALL
SELECT {columns(MEMORY_SECOND_COLUMNS)} FROM (
    SELECT a.*, row_number() OVER (PARTITION BY a.process, a.memory_kind ORDER BY a.start_ns DESC, a.id DESC) AS age
    FROM raw_memory_seconds a LEFT JOIN raw_processes p ON p.process = a.process
    WHERE {BEFORE} AND coalesce(p.exit_ns, :end) > :begin AND {of_process("a")}
) WHERE age = 1
ORDER BY start_ns
"""
