"""F17, F18, F19, F53: merged recordings, timelines and bundles of many nodes."""

from __future__ import annotations

import json
import lzma
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from bench.fleet_rows.figures import Figure, listed, run, serving, shown
from ingero.store.merge import merge
from ingero.store.opening.own_schema import own_columns
from ingero.store.reader import open_reader
from ingero.store.writing.whole_file import NewFileError
from tests.trace_processor.processor import trace_processor
from tests.unit.merged_nodes import write_full

_ROOT = Path(__file__).parents[2]
_OLDER = _ROOT / "tests" / "data" / "ingero-0.x"
_EXAMPLES = _ROOT / "examples" / "recordings"
_TABLES = [name for name in own_columns() if name.startswith("raw_")]
_NAMES = tuple(f"gpu-node-{number:02d}" for number in range(1, 9))
_MAX_MB = 50


def older(folder: Path) -> dict[str, Path]:
    """The published recordings at hand, by name."""
    found = {}
    for packed in sorted(_OLDER.glob("*.db.xz")):
        path = folder / packed.name.removesuffix(".xz")
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        found[path.stem] = path
    return found


def counts(path: Path) -> Counter[str]:
    """Rows by table."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    return Counter({table: next(iter(db.execute(f"SELECT count(*) FROM {table}")))[0] for table in _TABLES})


def rows(path: Path, sql: str, node: str | None = None) -> list[tuple[Any, ...]]:
    """The rows of a recording, or of one node of a merged recording."""
    with open_reader(path, node=node) as reader:
        return list(reader.connection.execute(sql))


def merged(folder: Path) -> Iterator[Figure]:
    """F17, but for speed, memory and kills (bench.merge)."""
    samples = [path for name, path in older(folder).items() if name.startswith("sample-gpu")]
    done = run("merge", *map(str, samples), "-o", str(folder / "cluster.db"))
    got = counts(folder / "cluster.db")
    found = got["raw_events"], got["raw_causal_chains"], got["raw_stacks"]
    yield Figure(f"published samples: {found} events, chains, stacks; {done.output.strip()}", found == (600, 6, 9))
    paths = [folder / f"{name}.db" for name in ("a", "b")]
    for path in paths:
        write_full(path, f"node-{path.stem}")
    before = {path: path.read_bytes() for path in (*paths, *samples)}
    yield from _twice(folder, paths)
    both = counts(paths[0]) + counts(paths[1])
    chains = rows(folder / "twice.db", "SELECT count(DISTINCT id) FROM causal_chains")
    yield Figure(
        f"equal chain ids of two nodes: {chains[0][0]} of {both['raw_causal_chains']} are there",
        chains == [(both["raw_causal_chains"],)],
    )
    try:
        merge(paths, folder / "twice.db")
    except NewFileError as error:
        yield Figure(f"existing output: {error}", True)
    else:
        yield Figure("existing output: WRITTEN OVER", False)
    same = all(path.read_bytes() == content for path, content in before.items())
    yield Figure(f"{len(before)} sources after all that: {'byte-identical' if same else 'CHANGED'}", same)


def _twice(folder: Path, paths: Sequence[Path]) -> Iterator[Figure]:
    both = counts(paths[0]) + counts(paths[1])
    copy = Path(shutil.copy(paths[0], folder / "copy.db"))
    done = merge([*paths, copy, paths[0]], folder / "twice.db")
    found = counts(folder / "twice.db")
    differ = {table: (found[table], both[table]) for table in _TABLES if found[table] != both[table]}
    yield Figure(
        f"two nodes, one of them three times: {len(_TABLES)} tables, {sum(found.values()):,} rows = the sum without "
        f"the {done.repeated} repeated sessions; tables that differ: {differ}",
        not differ and done.repeated == 2,
    )
    grown = Path(shutil.copy(paths[0], folder / "grown.db"))
    db = apsw.Connection(str(grown))
    db.execute("UPDATE raw_sessions SET last_seen_ns = last_seen_ns + 1")
    db.execute("INSERT INTO raw_snapshots(session, time_ns) VALUES (1, 99)")
    db.close()
    merge([paths[0], grown, paths[1]], folder / "overlap.db")
    wanted = counts(grown) + counts(paths[1])
    yield Figure("partial overlap: the rows of the longer copy, once", counts(folder / "overlap.db") == wanted)


def older_and_ours(folder: Path) -> Iterator[Figure]:
    """F18: all published recordings at hand with our four samples."""
    published, ours = older(folder), sorted(_EXAMPLES.glob("sample-gpu-node-*.db"))
    renamed = [Path(shutil.copy(path, folder / f"ours-{path.name}")) for path in ours]
    done = merge([*published.values(), *renamed], folder / "all.db")
    events = "SELECT count(*) FROM events"
    one_each = {name: rows(path, events)[0][0] for name, path in published.items() if name != "sample-cluster"}
    wanted = sum(one_each.values()) + sum(rows(path, events)[0][0] for path in renamed)
    [(found,)] = rows(folder / "all.db", events)
    yield Figure(
        f"{len(published)} published and {len(renamed)} of ours: {found:,} of {wanted:,} events, nodes "
        f"{', '.join(done.nodes)}; {done.repeated} sessions were there twice",
        found == wanted,
    )
    explained = run("explain", "--db", str(folder / "all.db"))
    heads = [line for line in explained.output.splitlines() if "incident" in line and "found" in line]
    yield Figure(f"explain: exit code {explained.exit_code}, {'; '.join(heads)}", explained.exit_code in (0, 1))


def timeline(folder: Path) -> Iterator[Figure]:
    """F19: eight nodes, as Perfetto's own engine reads them."""
    with serving(folder, _NAMES) as fleet:
        out = folder / "nodes.pftrace"
        asked = ["--nodes", listed(fleet.nodes), *shown(fleet.client)]
        run("export", "--format", "perfetto", "-o", str(out), *asked)
        wanted = [rows(path, "SELECT count(*), sum(duration_ns) FROM raw_events")[0] for path in fleet.paths]
    place = "coalesce((SELECT raw_id FROM machine WHERE id = {0}.machine_id), 0)"
    with trace_processor(out) as loaded:
        errors = loaded.errors()
        calls = loaded.rows(
            f"SELECT {place.format('t')} AS m, count(*) AS n, sum(dur) AS ns FROM slice s JOIN track t "
            "ON t.id = s.track_id WHERE category = 'cuda' GROUP BY 1 ORDER BY 1"
        )
        clocks = loaded.rows(f"SELECT {place.format('c')} AS m, count(*) AS n FROM clock_snapshot c GROUP BY 1")
        names = loaded.rows("SELECT name FROM process p WHERE name LIKE '%python%' ORDER BY 1")
    yield Figure(f"Perfetto's engine: {len(errors)} errors", not errors)
    is_equal = calls == [(number, *each) for number, each in enumerate(wanted)]
    yield Figure(
        f"slices = events on {len(calls)} machines: {sum(one[1] for one in calls)} of {sum(one[0] for one in wanted)}, "
        "durations to the nanosecond",
        is_equal,
    )
    yield Figure(f"clock snapshots: {[count for _, count in clocks]}", len(clocks) == len(_NAMES))
    yield Figure(f"processes: {', '.join(name for (name,) in names[:2])} ...", len(names) == len(_NAMES))
    yield _incident_slices(folder)


def _incident_slices(folder: Path) -> Figure:
    """Checks slices of the sample nodes around an incident that was found while they were recorded."""
    merge(sorted(_EXAMPLES.glob("sample-gpu-node-*.db")), folder / "samples.db")
    out = folder / "samples.pftrace"
    run("export", "--format", "perfetto", "--db", str(folder / "samples.db"), "-o", str(out))
    with trace_processor(out) as loaded:
        found = [name for (name,) in loaded.rows("SELECT name FROM slice WHERE name LIKE '%cpu-contention%'")]
    return Figure(f"incidents of the four samples as slices: {found}", bool(found))


def bundle(folder: Path) -> Iterator[Figure]:
    """F53: eight nodes around an incident; live is what the whole recordings say, merged."""
    with serving(folder, _NAMES) as fleet:
        out = folder / "bundle.db"
        asked = ["--nodes", listed(fleet.nodes), *shown(fleet.client)]
        done = run("fleet", "bundle", *asked, "--around", _NAMES[0], "-o", str(out))
        merge(list(fleet.paths), folder / "whole.db")
        live = json.loads(run("explain", *asked, "--json").stdout)
    size_mb = out.stat().st_size / 1e6
    yield Figure(f"exit code {done.exit_code}, {len(_NAMES)} nodes in {size_mb:.1f} MB", size_mb <= _MAX_MB)
    said = [_explained(path) for path in (out, folder / "whole.db")]
    yield Figure(
        f"explain of the bundle = explain of the whole recordings: {said[0] == said[1]} "
        f"({len(said[0]['incidents'])} incidents, {len(said[0]['verdicts'])} verdicts)",
        said[0] == said[1] and bool(said[0]["incidents"]),
    )
    summaries = [one["summary"] for one in live["chains"]]
    yield Figure(
        f"and what the nodes say themselves: {summaries}",
        summaries == [one["headline"] for one in said[0]["incidents"]],
    )


def _explained(path: Path) -> dict[str, Any]:
    """Without what merging numbers anew."""
    found: dict[str, Any] = json.loads(run("explain", "--json", "--db", str(path)).stdout)
    for one in [*found["incidents"], *(affected for each in found["incidents"] for affected in each["affected"])]:
        one.pop("process", None)
    return found
