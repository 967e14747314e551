"""Merging: nothing is lost, nothing counts twice, nobody's numbers meet another's, and the sources stay as they are."""

from __future__ import annotations

import hashlib
import itertools
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingero.store import views
from ingero.store.errors import MergedRecordingError, StoreError
from ingero.store.merge import merge
from ingero.store.opening.own_schema import own_columns
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts
from ingero.store.writing.whole_file import NewFileError
from ingero.store.writing.writer import Writer
from tests.unit.merged_nodes import BEGIN_NS, GROUP, PID, STACK, insert, write_full, write_node

OLDER = Path(__file__).parents[2] / "data" / "ingero-0.x"
TABLES = [name for name in own_columns() if name.startswith("raw_")]
# What merging hands out anew; `id` of events is text and stays.
RENUMBERED = {"session", "process", "cgroup_id", "culprit_cgroup_id", "stack_hash", "incident"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two nodes whose numbers are all the same."""
    folder = tmp_path_factory.mktemp("nodes")
    paths = folder / "a.db", folder / "b.db"
    for path, node in zip(paths, ("node-a", "node-b"), strict=True):
        write_full(path, node)
    return paths


@pytest.fixture(scope="module")
def both(written: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, merged."""
    path = tmp_path_factory.mktemp("merged") / "c.db"
    merge(written, path)
    return path


@pytest.fixture
def two(written: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The same, for one test."""
    return Path(shutil.copy(written[0], tmp_path)), Path(shutil.copy(written[1], tmp_path))


@pytest.fixture
def older(tmp_path: Path) -> dict[str, Path]:
    """The databases published with Ingero 0.8 and 0.9, by name."""
    found = {}
    for packed in sorted(OLDER.glob("*.db.xz")):
        path = tmp_path / packed.name.removesuffix(".xz")
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        found[path.stem] = path
    return found


def counts(path: Path) -> Counter[str]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    return Counter({table: next(iter(db.execute(f"SELECT count(*) FROM {table}")))[0] for table in TABLES})


def ask(path: Path, sql: str, node: str | None = None) -> list[tuple[Any, ...]]:
    with open_reader(path, node=node) as reader:
        return list(reader.connection.execute(sql))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shown(path: Path, view: str, node: str | None = None) -> list[dict[str, Any]]:
    """Rows of a published view without what merging renumbers, in an order of their own."""
    with open_reader(path, node=node) as reader:
        cursor = reader.connection.execute(f"SELECT * FROM {view}")
        names = [name for name, _ in cursor.get_description()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
    kept = [
        {
            name: value
            for name, value in row.items()
            if name not in RENUMBERED and (name != "id" or isinstance(value, str))
        }
        for row in rows
    ]
    return sorted(kept, key=repr)


def test_every_table_has_the_rows_of_both(two: tuple[Path, Path], tmp_path: Path) -> None:
    merged = merge(two, tmp_path / "c.db")
    assert counts(tmp_path / "c.db") == counts(two[0]) + counts(two[1])
    assert all(merged.rows[table] == count for table, count in counts(tmp_path / "c.db").items())
    assert merged.nodes == ("node-a", "node-b")
    assert (merged.repeated, merged.notes) == (0, ())


@pytest.mark.parametrize("view", sorted(set(views.TABLES) - {"stack_traces", "incidents", "causal_chains", "tenants"}))
def test_a_view_of_one_node_shows_what_its_own_recording_shows(
    written: tuple[Path, Path], both: Path, view: str
) -> None:
    for path, node in zip(written, ("node-a", "node-b"), strict=True):
        alone = shown(path, view)
        assert shown(both, view, node) == alone
        assert alone


def test_over_all_nodes_a_view_shows_the_rows_of_each(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge(two, tmp_path / "c.db")
    rows = ask(tmp_path / "c.db", "SELECT node, count(*), count(DISTINCT process), min(pid) FROM events GROUP BY node")
    assert rows == [("node-a", 3, 1, PID), ("node-b", 3, 1, PID)]
    assert ask(tmp_path / "c.db", "SELECT count(DISTINCT id) FROM events") == [(6,)]
    assert ask(tmp_path / "c.db", "SELECT count(DISTINCT id), min(id) FROM causal_chains") == [
        (6, "node-a:raw_causal_chains.chain 0")
    ]


def test_a_cgroup_a_stack_and_an_incident_lead_to_their_own_node(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge(two, tmp_path / "c.db")
    groups = ask(
        tmp_path / "c.db",
        "SELECT e.node, c.node, c.kernel_cgroup_id, count(*) FROM events e JOIN containers c USING (cgroup_id) "
        "GROUP BY 1",
    )
    assert groups == [(node, node, GROUP, 3) for node in ("node-a", "node-b")]
    stacks = ask(
        tmp_path / "c.db",
        "SELECT p.node, s.frames, count(*) FROM raw_stack_samples e JOIN raw_stacks s ON s.hash = e.stack_hash "
        "JOIN processes p ON p.process = s.process WHERE s.process = e.process GROUP BY 1",
    )
    assert stacks == [(node, "raw_stacks.frames 0", 3) for node in ("node-a", "node-b")]
    affected = ask(
        tmp_path / "c.db",
        "SELECT i.node, p.node, v.value ->> '$.name', c.incident IS NOT NULL FROM incidents i, json_each(i.affected) v "
        "JOIN processes p ON p.process = v.value ->> '$.process' LEFT JOIN causal_chains c ON c.incident = i.id",
    )
    assert sorted(set(affected)) == [(node, node, node, 1) for node in ("node-a", "node-b")]


def test_equal_texts_are_stored_once(tmp_path: Path) -> None:
    for node in ("a", "b"):
        write_node(tmp_path / f"{node}.db", node)
    merge([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "c.db")
    assert counts(tmp_path / "c.db")["raw_strings"] == counts(tmp_path / "a.db")["raw_strings"]
    assert ask(tmp_path / "c.db", "SELECT count(*) = count(DISTINCT text) FROM raw_strings") == [(1,)]


def test_the_same_recording_counts_once_however_often_it_is_given(two: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = two
    copy = tmp_path / "copy.db"
    copy.write_bytes(a.read_bytes())
    merged = merge([a, copy, a, b], tmp_path / "c.db")
    assert counts(tmp_path / "c.db") == counts(a) + counts(b)
    assert (merged.repeated, merged.nodes) == (2, ("node-a", "node-b"))


def test_merging_what_was_merged_gives_the_same(two: tuple[Path, Path], tmp_path: Path) -> None:
    third = tmp_path / "third.db"
    write_full(third, "node-c")
    merge(two, tmp_path / "c.db")
    merge([third, tmp_path / "c.db", two[1]], tmp_path / "d.db")
    merge([*two, third], tmp_path / "e.db")
    assert counts(tmp_path / "d.db") == counts(tmp_path / "e.db")
    for view in ("events", "processes", "containers", "sync_intervals", "causal_chains", "sessions"):
        for node in ("node-a", "node-b", "node-c"):
            assert shown(tmp_path / "d.db", view, node) == shown(tmp_path / "e.db", view, node)


def test_of_a_recording_that_grew_the_newest_copy_is_taken(tmp_path: Path) -> None:
    early, late = tmp_path / "early.db", tmp_path / "late.db"
    write_full(early, "node-a")
    late.write_bytes(early.read_bytes())
    db = apsw.Connection(str(late))
    db.execute("UPDATE raw_sessions SET last_seen_ns = last_seen_ns + 1")
    db.execute("INSERT INTO raw_snapshots(session, time_ns) VALUES (1, 99)")
    insert(db, "raw_sessions", {"session": 2, "uuid": "next", "node": "node-a", "started_ns": 99, "last_seen_ns": 100})
    db.close()
    for order in ([early, late], [late, early]):
        (tmp_path / "c.db").unlink(missing_ok=True)
        merged = merge(order, tmp_path / "c.db")
        assert counts(tmp_path / "c.db") == counts(late)
        assert (merged.repeated, merged.nodes) == (1, ("node-a",))


def test_two_machines_of_one_name_stay_two_and_both_are_named(tmp_path: Path) -> None:
    for file, machine in (("a", "1" * 32), ("b", "2" * 32)):
        write_full(tmp_path / f"{file}.db", "gpu-01", machine_id=machine, boot_id=machine, uuid=file)
    merged = merge([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "c.db")
    assert merged.nodes == ("gpu-01@11111111", "gpu-01@22222222")
    assert merged.notes == ("2 hosts are named gpu-01: here they are gpu-01@11111111, gpu-01@22222222",)
    both = counts(tmp_path / "a.db") + counts(tmp_path / "b.db")
    both["raw_strings"] //= 2  # the same texts
    assert counts(tmp_path / "c.db") == both
    again = merge([tmp_path / "c.db", tmp_path / "b.db"], tmp_path / "d.db")
    assert (again.nodes, again.repeated) == (merged.nodes, 1)


def test_machines_of_one_disk_image_are_told_apart_by_boots_that_overlap(tmp_path: Path) -> None:
    for file in ("a", "b"):
        write_full(tmp_path / f"{file}.db", "gpu-01", machine_id="1" * 32, boot_id=file, uuid=file)
    merged = merge([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "c.db")
    assert len(merged.nodes) == len(merged.notes) + 1 == 2


def test_recordings_without_machine_id_are_of_one_node_where_they_share_a_boot(tmp_path: Path) -> None:
    for file, boot in (("a", "one"), ("b", "one"), ("c", "other"), ("d", "")):
        write_full(tmp_path / f"{file}.db", "gpu-01", boot_id=boot, uuid=file)
    merged = merge([tmp_path / f"{file}.db" for file in "abcd"], tmp_path / "m.db")
    sessions = dict(ask(tmp_path / "m.db", "SELECT uuid, node FROM sessions"))
    assert len(merged.nodes) == 3
    assert sessions["a"] == sessions["b"]
    assert len(set(sessions.values())) == 3
    again = merge([tmp_path / "m.db", tmp_path / "b.db", tmp_path / "d.db"], tmp_path / "n.db")
    assert (again.nodes, again.repeated) == (merged.nodes, 2)


def test_a_machine_that_was_booted_again_is_one_node_with_groups_of_each_boot(tmp_path: Path) -> None:
    for number, boot in enumerate(("first", "second")):
        path = tmp_path / f"{boot}.db"
        write_full(path, "gpu-01", machine_id="1" * 32, boot_id=boot, uuid=boot)
        db = apsw.Connection(str(path))
        db.execute("UPDATE raw_sessions SET started_ns = ?1, last_seen_ns = ?1 + 1", (number * 10,))
        db.close()
    merged = merge([tmp_path / "first.db", tmp_path / "second.db"], tmp_path / "c.db")
    assert merged.nodes == ("gpu-01",)
    assert ask(tmp_path / "c.db", "SELECT count(DISTINCT cgroup_id) FROM events") == [(2,)]


def test_the_published_samples_are_600_events_6_chains_and_9_stacks(older: dict[str, Path], tmp_path: Path) -> None:
    samples = [path for name, path in older.items() if name.startswith("sample-gpu")]
    merged = merge(samples, tmp_path / "c.db")
    got = counts(tmp_path / "c.db")
    assert (got["raw_events"], got["raw_causal_chains"], got["raw_stacks"]) == (600, 6, 9)
    assert merged.nodes == ("gpu-node-01", "gpu-node-02", "gpu-node-03")
    assert ask(tmp_path / "c.db", "SELECT min(id), max(id) FROM events WHERE node = 'gpu-node-01'") == [
        ("gpu-node-01:3538", "gpu-node-01:3737")
    ]


def test_all_older_databases_and_ours_in_one(older: dict[str, Path], two: tuple[Path, Path], tmp_path: Path) -> None:
    merged = merge([*older.values(), *two], tmp_path / "c.db")
    assert merged.nodes == (
        *("gpu-node-01", "gpu-node-02", "gpu-node-03", "node-a", "node-b"),
        "pytorch-dataloader-starvation",
    )
    assert merged.repeated == 3  # of sample-cluster, which Ingero merged of the three itself
    assert counts(tmp_path / "c.db")["raw_events"] == 600 + 3807 + 6
    for name, node in (("sample-gpu-node-02", "gpu-node-02"), ("pytorch-dataloader-starvation",) * 2):
        path = older[name]
        columns = "timestamp, pid, tid, op_name, duration, arg0, arg1, arg2, comm, stack_hash"
        same = f"SELECT {columns} FROM events ORDER BY 1, 2, 3"
        assert ask(tmp_path / "c.db", same, node) == ask(path, same)
        with open_reader(tmp_path / "c.db", node=node) as merged_reader, open_reader(path) as reader:
            assert merged_reader.older_version == reader.older_version
            assert merged_reader.has_exact_totals == reader.has_exact_totals
            assert merged_reader.time_range() == reader.time_range()


def test_a_recording_without_a_node_gets_the_one_that_is_told(older: dict[str, Path], tmp_path: Path) -> None:
    merged = merge([older["pytorch-dataloader-starvation"]], tmp_path / "c.db", force_node="trainer-7")
    assert merged.nodes == ("trainer-7",)
    assert ask(tmp_path / "c.db", "SELECT min(id) FROM causal_chains") == [("trainer-7:chain-001",)]
    named = merge([older["sample-gpu-node-01"]], tmp_path / "d.db", force_node="trainer-7")
    assert named.nodes == ("gpu-node-01",)


def test_a_database_that_ingero_merged_itself_keeps_its_nodes_apart(older: dict[str, Path], tmp_path: Path) -> None:
    merge([older["sample-cluster"]], tmp_path / "c.db")
    rows = ask(
        tmp_path / "c.db",
        "SELECT e.node, p.node, count(*) FROM events e JOIN processes p USING (process) GROUP BY 1, 2",
    )
    assert rows == [(f"gpu-node-0{number}",) * 2 + (200,) for number in (1, 2, 3)]


def test_sources_are_left_as_they_are_and_nothing_stays_beside_the_output(
    two: tuple[Path, Path], older: dict[str, Path], tmp_path: Path
) -> None:
    before = {path: digest(path) for path in (*two, *older.values())}
    folder = tmp_path / "out"
    folder.mkdir()
    merge([*two, *older.values()], folder / "c.db")
    assert {path: digest(path) for path in before} == before
    assert sorted(path.name for path in folder.iterdir()) == ["c.db"]
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {path.name for path in before}


def test_what_is_there_is_not_written_over(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "there.db").write_text("mine")
    (tmp_path / "dangling.db").symlink_to(tmp_path / "nowhere")
    for name in ("there.db", "dangling.db", "a.db"):
        with pytest.raises(NewFileError, match="exists already"):
            merge(two, tmp_path / name)
    with pytest.raises(NewFileError, match="cannot be written: No such file"):
        merge(two, tmp_path / "no-folder" / "c.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("kind", ["missing", "text", "foreign", "trigger", "virtual", "fifo", "folder"])
def test_a_source_that_is_no_recording_leaves_no_output(two: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    path, folder = tmp_path / "bad.db", tmp_path / "out"
    folder.mkdir()
    if kind == "text":
        path.write_text("no database at all, but long enough to look at" * 10)
    elif kind == "foreign":
        apsw.Connection(str(path)).execute("CREATE TABLE t(a)")
    elif kind == "trigger":
        write_full(path, "node-x")
        db = apsw.Connection(str(path))
        db.execute("ALTER TABLE raw_events RENAME TO other; CREATE VIEW raw_events AS SELECT * FROM other")
        db.close()
    elif kind == "virtual":
        write_full(path, "node-x")
        db = apsw.Connection(str(path))
        db.execute("DROP TABLE raw_events; CREATE VIRTUAL TABLE raw_events USING fts5(a)")
        db.close()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(StoreError):
        merge([*two, path], folder / "c.db")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE raw_events SET id = id + 2199023255552",  # the range of another file
        "UPDATE raw_processes SET process = 9223372036854775807 WHERE process = 1",
        "UPDATE raw_sessions SET started_ns = -9223372036854775808, cgroup_base = -5, seq_base = 7",
        "UPDATE raw_events SET cgroup_id = 9223372036854775807",
        'UPDATE raw_incidents SET affected = \'[{"process": 9223372036854775807}, 3, null, "x"]\'',
        "UPDATE raw_incidents SET affected = 'no JSON'",
        "UPDATE raw_sessions SET node = 'node-b'",
        "UPDATE raw_sessions SET node = ''';DROP TABLE raw_events;--', uuid = ''",
        "DELETE FROM raw_sessions",
        "DELETE FROM raw_strings; DELETE FROM raw_processes",
    ],
)
def test_strange_values_cost_no_row_of_others(two: tuple[Path, Path], tmp_path: Path, damage: str) -> None:
    """Whatever the first file says, the second comes out whole, or the merge is refused."""
    db = apsw.Connection(str(two[0]))
    db.execute(damage)
    db.close()
    try:
        merged = merge(two, tmp_path / "c.db")
    except StoreError:
        assert not (tmp_path / "c.db").exists()
        return
    whose = next(
        node for node in merged.nodes if ask(tmp_path / "c.db", "SELECT uuid FROM sessions", node) == [("u-node-b",)]
    )
    for view in ("op_stats", "sync_intervals", "stack_samples", "offcpu"):
        alone = [row | {"node": whose} for row in shown(two[1], view)]
        assert shown(tmp_path / "c.db", view, whose) == sorted(alone, key=repr)


def test_rows_of_no_session_stay_rows_of_no_node(two: tuple[Path, Path], tmp_path: Path) -> None:
    db = apsw.Connection(str(two[0]))
    db.execute("UPDATE raw_drops SET session = 5")
    db.close()
    merge(two, tmp_path / "c.db")
    assert counts(tmp_path / "c.db") == counts(two[0]) + counts(two[1])
    assert ask(tmp_path / "c.db", "SELECT node, count(*) FROM drops GROUP BY 1") == [(None, 3), ("node-b", 3)]


def test_a_merged_file_is_not_recorded_into(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge(two, tmp_path / "c.db")
    before = digest(tmp_path / "c.db")
    with (
        pytest.raises(MergedRecordingError, match="merged from several"),
        Writer(tmp_path / "c.db", session=SessionFacts(uuid="u", started_ns=1), node="n"),
    ):
        pass
    assert counts(tmp_path / "c.db")["raw_sessions"] == 2
    del before


def test_a_recording_that_is_being_written_is_merged_as_far_as_it_is(tmp_path: Path, two: tuple[Path, Path]) -> None:
    with Writer(tmp_path / "live.db", session=SessionFacts(uuid="live", started_ns=BEGIN_NS), node="live") as writer:
        writer.flush()
        merged = merge([tmp_path / "live.db", *two], tmp_path / "c.db")
    assert merged.nodes == ("live", "node-a", "node-b")


def test_two_merges_do_not_write_one_file(two: tuple[Path, Path], tmp_path: Path) -> None:
    seen = []

    def progress(_name: str, _share: float) -> None:
        if not seen:
            with pytest.raises(NewFileError, match="another ingero") as caught:
                merge(two, tmp_path / "c.db")
            seen.append(caught)

    merge(two, tmp_path / "c.db", progress=progress)
    assert seen
    assert counts(tmp_path / "c.db") == counts(two[0]) + counts(two[1])


def test_the_share_that_is_done_only_grows(two: tuple[Path, Path], tmp_path: Path) -> None:
    shares: list[float] = []
    merge(two, tmp_path / "c.db", progress=lambda _name, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_whoever_kills_a_merge_leaves_nothing_or_all(tmp_path: Path) -> None:
    """At random moments of it; the next one clears up what was left."""
    paths = []
    for number in range(6):
        paths.append(tmp_path / f"{number}.db")
        write_node(paths[-1], f"node-{number}")
    code = "import sys; from pathlib import Path; from ingero.store.merge import merge; " \
           "merge([Path(one) for one in sys.argv[2:]], Path(sys.argv[1]))"  # fmt: skip
    output = tmp_path / "c.db"
    command = [sys.executable, "-c", code, str(output), *map(str, paths)]
    began_s = time.monotonic()
    subprocess.run(command, check=True)
    whole, took_s = counts(output), time.monotonic() - began_s
    chance = random.Random(7)
    ends: Counter[str] = Counter()
    for _ in range(20):
        output.unlink(missing_ok=True)
        process = subprocess.Popen(command)
        time.sleep(chance.uniform(0.3, 1.05) * took_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if output.exists():
            assert counts(output) == whole
            assert next(iter(apsw.Connection(str(output)).execute("PRAGMA integrity_check"))) == ("ok",)
        ends["whole" if output.exists() else "none"] += 1
    output.unlink(missing_ok=True)
    merge(paths, output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.db", "1.db", "2.db", "3.db", "4.db", "5.db", "c.db"]
    assert ends["none"]


def test_pids_of_two_nodes_are_never_one_process(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge(two, tmp_path / "c.db")
    pairs = ask(tmp_path / "c.db", "SELECT process, node FROM processes ORDER BY 1")
    assert len({process for process, _ in pairs}) == len(pairs) == 6
    for table in (name for name in TABLES if {"process", "session"} <= set(own_columns()[name])):
        crossed = ask(
            tmp_path / "c.db",
            f"SELECT count(*) FROM {table} t JOIN raw_processes p USING (process) WHERE p.session <> t.session",
        )
        assert crossed == [(0,)], table


def test_every_order_of_the_sources_gives_the_same_rows(two: tuple[Path, Path], tmp_path: Path) -> None:
    third = tmp_path / "third.db"
    write_full(third, "node-c")
    found = []
    for number, order in enumerate(itertools.permutations((*two, third))):
        merge(order, tmp_path / f"m{number}.db")
        found.append(
            [
                ask(tmp_path / f"m{number}.db", f"SELECT * FROM {view} ORDER BY 1, 2, 3")
                for view in ("events", "processes")
            ]
        )
    assert all(one == found[0] for one in found)


def test_stacks_of_two_nodes_under_one_hash_are_both_there(two: tuple[Path, Path], tmp_path: Path) -> None:
    merge(two, tmp_path / "c.db")
    hashes = {hash_ for (hash_,) in ask(tmp_path / "c.db", "SELECT hash FROM raw_stacks")}
    assert len(hashes) == 6
    assert STACK in hashes
