"""Eight small recordings that use the same numbers for different things, and statements over them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import apsw

from ingero.store.sql_text import Value
from ingero.store.writing.migrations import migrate
from tests.unit.merged_nodes import BEGIN_NS, insert

NODES = 8
EMPTY, BARE = 6, 7  # a node that has recorded nothing, and one that knows of no process, group or thread name
_NAMES = ("python", "Python", "données", "data%loader", "o'brien", "", "worker_1", "worker_10")
_OPS = ((1, 3), (1, 6), (4, 4), (9, 1), (9, 3), (3, 1), (1, 999))  # the last has no name


def write_nodes(folder: Path) -> dict[str, Path]:
    """The recordings by node."""
    paths = {f"node-{number}": folder / f"node-{number}.db" for number in range(NODES)}
    for number, (node, path) in enumerate(paths.items()):
        _write(path, node, number)
    return paths


def _write(path: Path, node: str, number: int) -> None:
    rng = random.Random(number)
    db = apsw.Connection(str(path))
    migrate(db, path)
    with db:
        facts: dict[str, Value] = {
            "node": node,
            "machine_id": f"m{number}",
            "boot_id": f"b{number}",
            "uuid": f"u-{node}",
            "session": 1,
        }
        insert(db, "raw_sessions", facts | {"started_ns": BEGIN_NS, "last_seen_ns": BEGIN_NS + 60 * 10**9})
        if number != EMPTY:
            _fill(db, rng, is_bare=number == BARE)
    db.close()


def _fill(db: apsw.Connection, rng: random.Random, *, is_bare: bool) -> None:
    for string, text in enumerate(_NAMES, 1):
        insert(db, "raw_strings", {"string": string, "text": text})
    for stack in (-5, -6, 7):  # addresses of a process
        insert(db, "raw_stacks", {"hash": stack, "ips": f"[{stack}]", "frames": f'["f{stack}"]', "process": 1})
    for process in range(1, 1 if is_bare else 6):
        rank = rng.choice((None, process - 1))
        row: dict[str, Value] = {
            "process": process,
            "session": 1,
            "pid": 100 + process % 3,
            "start_ns": BEGIN_NS + process,
            "first_seen_ns": BEGIN_NS,
        }
        row |= {
            "name": rng.choice(_NAMES),
            "cgroup_id": 70 + process % 2,
            "rank": rank,
            "uid": rng.choice((0, 1000, None)),
        }
        insert(db, "raw_processes", row | {"exit_code": rng.choice((None, 0, 1))})
    for group in range(70, 70 if is_bare else 72):
        row = {"cgroup_id": group, "kernel_cgroup_id": group, "node": "", "container_id": rng.choice(("", "c1", "c2"))}
        node = next(iter(db.execute("SELECT node FROM raw_sessions")))[0]
        insert(db, "raw_cgroups", row | {"node": node, "pod": rng.choice(("", "pod-a"))})
    for event in range(rng.randrange(150, 300)):
        insert(db, "raw_events", _event(rng, event, is_bare=is_bare))
    for second in range(40):
        source, op = rng.choice(_OPS)
        row = {"session": 1, "start_ns": BEGIN_NS + second * 10**9, "process": rng.randrange(1, 6), "source": source}
        row |= {
            "op": op,
            "period_s": rng.choice((1.0, 0.5, 60.0)),
            "count": rng.randrange(1000),
            "bytes": rng.getrandbits(52),
        }
        row |= {"sum_ns": rng.getrandbits(50), "max_ns": rng.getrandbits(40), "errors": rng.choice((None, 0, 2))}
        insert(db, "raw_op_stats", row)


def _event(rng: random.Random, event: int, *, is_bare: bool) -> dict[str, Value]:
    source, op = rng.choice(_OPS)
    breakdown = rng.random() < 0.7
    return {
        "session": 1, "start_ns": BEGIN_NS + event * 10**8 + rng.randrange(10**6), "process": rng.randrange(1, 6),
        "duration_ns": rng.choice((0, 5, int(rng.lognormvariate(10, 3)))), "pid": 100 + rng.randrange(3),
        "tid": rng.randrange(100, 110), "source": source, "op": op, "arg0": rng.choice((0, 4096, rng.getrandbits(50))),
        "arg1": rng.getrandbits(62) - (1 << 61), "arg2": rng.choice((None, 1, 2)), "ret_code": rng.choice((0, 0, 0, 2)),
        "gpu_id": rng.choice((-1, 0, 1)), "cgroup_id": 0 if is_bare else rng.choice((0, 70, 71)),
        "comm": 0 if is_bare else rng.randrange(len(_NAMES) + 1), "cpu": rng.randrange(-1, 4),
        "run_ns": rng.randrange(10**6) if breakdown else None, "runq_ns": rng.randrange(10**6) if breakdown else None,
        "stack_hash": rng.choice((0, -5, -6, 7)), "flags": rng.getrandbits(4),
    }  # fmt: skip


# By view: what may be grouped by, what may be added up, what may stand in a condition.
_KEYS = {
    "events": (
        "node", "source", "op_name", "comm", "gpu_id", "cpu", "ret_code", "arg2", "process", "node, process",
        "cgroup_id", "duration / 1000000", "timestamp / 10000000000",
        "CASE WHEN duration > 10000 THEN 'slow' ELSE 'fast' END", "coalesce(comm, '?')", "substr(op_name, 1, 6)",
        "source % 2 = 0", "upper(comm)", "flags & 3", "rank", "session",
        "strftime('%S', timestamp / 1000000000, 'unixepoch')", "run_ns IS NULL", "comm LIKE '%worker%'",
        "round(duration, -3)", "typeof(arg2)", "iif(pid = 100, 'a', NULL)", "tid - pid", "stack_hash",
        "duration / 1e9 > 0.001",
    ),
    "op_stats": (
        "node", "op_name", "source", "process", "period_s", "errors", "count / 100", "timestamp / 10000000000",
        "node, op", "rank", "cgroup_id", "CAST(period_s AS INTEGER)", "errors IS NOT NULL",
    ),
    "cuda_events": (
        "node", "op", "gpu_id", "bytes", "kernel_name", "rank", "host_memory", "process, op", "pid % 2",
    ),
    "processes": (
        "node", "name", "rank", "uid", "cgroup_id", "pid", "exit_code", "lower(name)", "length(name)", "is_traced",
    ),
}  # fmt: skip
_VALUES = {
    "events": (
        "duration", "run_ns", "arg0", "arg2", "cpu", "runq_ns", "duration - run_ns", "arg0 / 1024", "gpu_id", "comm",
        "duration / 1000.0", "iif(ret_code, duration, 0)", "timestamp", "tid",
    ),
    "op_stats": (
        "count", "sum_ns", "max_ns", "bytes", "period_s", "errors", "sum_ns / count", "sum_ns * 1.0 / count",
        "op_name",
    ),
    "cuda_events": (
        "duration_ns", "bytes", "gpu_id", "run_ns", "timestamp", "op",
    ),
    "processes": (
        "pid", "rank", "uid", "exit_code", "start_ns - first_seen_ns", "name",
    ),
}  # fmt: skip
_WHERE = {
    "events": (
        "duration > 1000", "op_name LIKE 'cuda%'", "comm IS NOT NULL", "source IN (1, 4)", "pid = '100'",
        "comm > 'a'", "node <> 'node-3'", "duration BETWEEN 5 AND 100000 OR arg2 = 1", "NOT ret_code", "rank IS NULL",
        "timestamp >= 1790000002000000000", "id GLOB 'node-[0-4]:*'", "duration > 1e18", "gpu_id IN (0)",
        "arg2 = 1.0",
    ),
    "op_stats": (
        "count > 500", "op_name IS NULL", "period_s = 1", "errors", "op <> 3", "node >= 'node-2'",
    ),
    "cuda_events": (
        "bytes > 0", "op LIKE '%Sync%'", "gpu_id = 1 AND duration_ns", "kernel_name IS NULL",
    ),
    "processes": (
        "rank", "name <> ''", "uid = 0 OR uid IS NULL", "pid = 101", "name LIKE 'WORKER\\_%' ESCAPE '\\'",
    ),
}  # fmt: skip
_FORMS = (
    "count(*)", "count({0})", "sum({0})", "avg({0})", "min({0})", "max({0})", "total({0})", "count(DISTINCT {0})",
    "sum(DISTINCT {0})", "sum({0}) / count(*)", "coalesce(max({0}), -1) + 1", "sum({0}) FILTER (WHERE {1})",
    "round(avg({0}), 3)", "CASE WHEN count({0}) THEN sum({0}) / count({0}) ELSE 'none' END", "max({0}) - min({0})",
    "count(*) FILTER (WHERE {1}) * 100.0 / count(*)", "sum({0} IS NULL)", "count(DISTINCT node)", "max(count(*), 10)",
)  # fmt: skip
OF_ONE_NODE = ("process", "cgroup_id", "session", "stack_hash")  # merging hands these out anew
PERCENTILES = ("percentile({0}, 95)", "median({0})", "percentile_cont({0}, 0.9)", "percentile_disc({0}, 0.5)")


def generated(seed: int, count: int) -> Iterator[str]:
    """So many aggregate queries; each orders by what makes its order the only one, where it cuts."""
    rng = random.Random(seed)
    for number in range(count):
        yield _statement(rng, with_percentiles=number % 10 == 9)


def _statement(rng: random.Random, *, with_percentiles: bool) -> str:
    view = rng.choice(tuple(_KEYS))
    keys = rng.sample(_KEYS[view], rng.choice((0, 1, 1, 1, 2)))
    named = [
        f"k{place}" if rng.random() < 0.4 and "," not in key and key not in OF_ONE_NODE else ""
        for place, key in enumerate(keys)
    ]
    shown = [f"{key} AS {name}" if name else key for key, name in zip(keys, named, strict=True)]
    sums = [_aggregate(rng, view) for _ in range(rng.randrange(1, 4))]
    if with_percentiles:
        numbers = {"events": "duration", "op_stats": "sum_ns", "cuda_events": "duration_ns", "processes": "pid"}
        sums.append(rng.choice(PERCENTILES).format(numbers[view]))
    sql = f"SELECT {', '.join([*shown, *sums])} FROM {view}"
    if rng.random() < 0.5:
        sql += " WHERE " + " AND ".join(rng.sample(_WHERE[view], rng.choice((1, 1, 2))))
    if keys:
        by_place = all("," not in key for key in keys) and rng.random() < 0.3
        terms = [name or (str(place) if by_place else keys[place - 1]) for place, name in enumerate(named, 1)]
        sql += f" GROUP BY {', '.join(terms)}"
        if rng.random() < 0.3:
            largest = "sum(bytes) > 1000" if view == "op_stats" else "max(pid) IS NOT NULL"
            sql += " HAVING " + rng.choice(
                ("count(*) > 3", "count(*) > 1 OR 1 = 1", largest, "count(DISTINCT node) >= 2")
            )
        if rng.random() < 0.6:
            first = rng.choice(
                ("count(*) DESC, ", "min(timestamp), " if view != "processes" else "max(pid) DESC, ", "")
            )
            how = rng.choice(("", " DESC", " NULLS LAST"))
            columns = sum(2 if key in {"node, process", "node, op", "process, op"} else 1 for key in keys)
            rest = ", ".join(str(place) for place in range(2, columns + 1))
            sql += f" ORDER BY {first}1{how}{', ' if rest else ''}{rest}"
            if not any(word in key for key in keys for word in OF_ONE_NODE):
                sql += rng.choice(
                    ("", f" LIMIT {rng.randrange(8)}", f" LIMIT {rng.randrange(1, 9)} OFFSET {rng.randrange(4)}")
                )
    return sql


def _aggregate(rng: random.Random, view: str) -> str:
    value = rng.choice(_VALUES[view])
    form = rng.choice(_FORMS)
    if value in {"timestamp", "arg1"} and "sum" in form:
        form = "avg({0})"  # a sum of these is more than 64 bits hold
    return form.format(value, rng.choice(_WHERE[view]))


# What the generator does not make.
EXOTIC = tuple(
    line
    for line in (Path(__file__).parents[1] / "data" / "fleet_statements.sql").read_text().splitlines()
    if not line.startswith("--")
)
