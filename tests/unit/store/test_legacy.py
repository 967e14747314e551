"""Databases recorded by Ingero 0.8 and 0.9: facts known about them (tests/data/ingero-0.x/README.md) come out."""

from __future__ import annotations

import itertools
import lzma
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ingero.ops import HostOp, Source
from ingero.store.errors import NotRecordedError, OlderIngeroError
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing.writer import Writer

DATA = Path(__file__).parents[2] / "data" / "ingero-0.x"
NAMES = (
    "pytorch-dataloader-starvation",
    "sample-cluster",
    "sample-gpu-node-01",
    "sample-gpu-node-02",
    "sample-gpu-node-03",
)
SECOND_NS = 1_000_000_000
ALWAYS = Window(begin_ns=0, end_ns=2**62)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    for name in NAMES:
        (folder / f"{name}.db").write_bytes(lzma.decompress((DATA / f"{name}.db.xz").read_bytes()))
    return folder


@pytest.fixture
def starved(folder: Path) -> Iterator[Reader]:
    with open_reader(folder / "pytorch-dataloader-starvation.db") as reader:
        yield reader


@pytest.fixture
def cluster(folder: Path) -> Iterator[Reader]:
    with open_reader(folder / "sample-cluster.db") as reader:
        yield reader


@pytest.mark.parametrize(
    ("name", "version", "events", "chains", "stacks"),
    [
        ("pytorch-dataloader-starvation", "0.8", 3807, 316, 21),
        ("sample-cluster", "0.9", 600, 6, 9),
        ("sample-gpu-node-01", "0.9", 200, 4, 8),
        ("sample-gpu-node-02", "0.9", 200, 1, 1),
        ("sample-gpu-node-03", "0.9", 200, 1, 1),
    ],
)
def test_published_views_hold_everything_stored(
    folder: Path, name: str, version: str, events: int, chains: int, stacks: int
) -> None:
    with open_reader(folder / f"{name}.db") as reader:
        assert reader.older_version == version
        for view, count in (("events", events), ("causal_chains", chains), ("stack_traces", stacks)):
            assert reader.connection.execute(f"SELECT count(*) FROM {view}").fetchall() == [(count,)]
        whole = reader.window(None, 0)
        assert whole is not None
        assert len(reader.causal_chains(whole)) <= chains


def test_starved_run_lasts_77_seconds_and_makes_170_calls(starved: Reader) -> None:
    whole = starved.time_range()
    assert whole is not None
    assert whole.duration_ns / SECOND_NS == pytest.approx(77, abs=0.1)
    totals = starved.op_totals(whole)
    assert starved.has_exact_totals
    assert sum(t.count for t in totals if t.source in (1, 4)) == 170
    assert sum(t.recorded for t in totals if t.source in (1, 4)) == 115


def test_starved_main_thread_has_two_percent_of_the_context_switches(starved: Reader) -> None:
    whole = starved.time_range()
    assert whole is not None
    switches = {t.pid: t for t in starved.op_totals(whole) if t.name == "sched_switch"}
    assert sum(t.count for t in switches.values()) == 191_835
    assert switches[2233].count == 3_713
    assert sorted(t.max_ns // SECOND_NS for t in switches.values())[-3:] == [5, 5, 18]


def test_starved_worst_launch_is_the_first_of_the_process(starved: Reader) -> None:
    whole = starved.time_range()
    assert whole is not None
    worst, *_ = starved.worst_calls(whole, source=1, op=3, limit=1)
    assert (worst.duration_ns, worst.name) == (25_799_899, "cudaLaunchKernel")
    first = starved.connection.execute(
        "SELECT min(timestamp) FROM cuda_events WHERE op = 'cudaLaunchKernel'"
    ).fetchall()
    assert first == [(worst.start_ns,)]


def test_starved_batches_come_every_six_seconds(starved: Reader) -> None:
    rows = starved.connection.execute("SELECT timestamp FROM cuda_events ORDER BY timestamp").fetchall()
    times = [int(time) for (time,) in rows]  # type: ignore[arg-type]  # a number
    gaps = [(b - a) / SECOND_NS for a, b in itertools.pairwise(times) if b - a > SECOND_NS]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(6.2, abs=0.3)


def test_session_facts_are_those_of_the_recording(starved: Reader) -> None:
    (session,) = starved.sessions()
    assert (session.gpu_model, session.cpu_count) == ("NVIDIA GeForce RTX 4090, 24564 MiB", 4)
    assert session.memory_bytes == 15989 << 20
    assert {p.name for p in starved.processes()} >= {"python3", "pt_data_worker", "pt_data_pin"}
    assert len(starved.snapshots(ALWAYS)) == 40


def test_healthy_nodes_only_slept_and_only_the_recorder_wrote(folder: Path) -> None:
    for node in ("02", "03"):
        with open_reader(folder / f"sample-gpu-node-{node}.db") as reader:
            whole = reader.time_range()
            assert whole is not None
            intervals = reader.offcpu(whole, limit=1000)
            assert len(intervals) > 50
            assert all(abs(interval.duration_ns - 50_050_000) < 100_000 for interval in intervals)
            writers = reader.connection.execute(
                "SELECT DISTINCT n.name FROM events e JOIN process_names n ON n.pid = e.pid WHERE e.source = 5"
            ).fetchall()
            assert {str(name).split("/")[0] for (name,) in writers} == {"ingero", "jbd2"}  # its own, and the journal


def test_node_one_waits_for_its_own_block_reads(folder: Path) -> None:
    sql = (
        "SELECT count(*) FROM offcpu o WHERE EXISTS (SELECT 1 FROM events e WHERE e.op_name = 'block_read' "
        "AND e.pid = o.pid AND abs(e.timestamp + e.duration_ns - o.timestamp - o.duration_ns) <= 200000)"
    )
    with open_reader(folder / "sample-gpu-node-01.db") as reader:
        assert reader.connection.execute("SELECT count(*) FROM offcpu").fetchall() == [(99,)]
        assert reader.connection.execute(sql).fetchall() == [(98,)]


def test_cluster_keeps_nodes_and_event_ids_apart(cluster: Reader) -> None:
    rows = cluster.connection.execute("SELECT node, count(*), min(id) FROM events GROUP BY node").fetchall()
    assert [row[:2] for row in rows] == [("gpu-node-01", 200), ("gpu-node-02", 200), ("gpu-node-03", 200)]
    assert all(str(first).startswith(f"{node}:") for node, _, first in rows)
    ids = cluster.connection.execute("SELECT count(DISTINCT id) FROM events").fetchall()
    assert ids == [(600,)]
    assert {s.node for s in cluster.sessions()} == {"gpu-node-01", "gpu-node-02", "gpu-node-03"}


def test_totals_of_a_file_without_aggregates_are_said_to_be_those_of_stored_calls(cluster: Reader) -> None:
    whole = cluster.time_range()
    assert whole is not None
    assert not cluster.has_exact_totals
    assert sum(t.count for t in cluster.op_totals(whole)) == 600


def test_why_a_thread_was_off_the_cpu_is_not_known(starved: Reader) -> None:
    whole = starved.time_range()
    assert whole is not None
    assert {interval.state for interval in starved.offcpu(whole, limit=10_000)} == {None}


def test_what_was_not_recorded_is_an_error_and_not_zero(starved: Reader) -> None:
    whole = starved.time_range()
    assert whole is not None
    for ask in (
        starved.sync_intervals,
        starved.culprits,
        starved.thread_state_totals,
        starved.kernel_launches,
        starved.in_flight,
    ):
        with pytest.raises(NotRecordedError, match=r"not recorded by Ingero 0\.8"):
            ask(whole)
    for ask in (starved.samples, starved.sample_rows):
        with pytest.raises(NotRecordedError, match=r"not recorded by Ingero 0\.8"):
            ask(whole)
    assert not starved.is_recorded("sync_intervals")
    assert starved.is_recorded("events")
    totals = starved.op_totals(whole)
    assert {(t.clocks, t.p99_ns, t.nested) for t in totals} == {(None, None, None)}
    assert {call.clocks for call in starved.worst_calls(whole, limit=10)} == {None}


def test_units_are_those_of_today(starved: Reader, cluster: Reader) -> None:
    copies = starved.connection.execute(
        "SELECT max(bytes) FROM cuda_events WHERE op = 'cudaMemcpyAsync' UNION ALL "
        "SELECT count(*) FROM cuda_events WHERE op LIKE '%LaunchKernel' AND bytes <> 0 UNION ALL "
        "SELECT count(*) FROM cuda_events WHERE op LIKE '%LaunchKernel' AND function IS NULL"
    ).fetchall()
    assert copies == [(419_430_400,), (0,), (0,)]
    reads = cluster.connection.execute(
        "SELECT min(arg0), max(arg0) FROM events WHERE op_name = 'block_read'"
    ).fetchall()
    assert reads == [(8 * 512, 256 * 512)]


def test_old_tables_can_still_be_asked(starved: Reader) -> None:
    assert starved.connection.execute("SELECT sum(count) FROM event_aggregates WHERE source IN (1, 4)").fetchall() == [
        (170,)
    ]


def test_old_file_is_never_written(folder: Path) -> None:
    path = folder / "sample-gpu-node-01.db"
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with open_reader(path) as reader:
        reader.op_totals(ALWAYS)
        with pytest.raises(apsw.AuthError):
            reader.connection.execute("DELETE FROM old.events")
    with pytest.raises(OlderIngeroError), Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n"):
        pass
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert {file.name for file in folder.iterdir()} == {f"{name}.db" for name in NAMES}


def test_newer_old_file_in_log_mode_is_read_with_its_log(tmp_path: Path) -> None:
    """Version 0.10 and later: a comm column, user_version 10, write-ahead log."""
    path = tmp_path / "a.db"
    path.write_bytes(lzma.decompress((DATA / "sample-gpu-node-01.db.xz").read_bytes()))
    db = apsw.Connection(str(path))
    list(db.execute("PRAGMA journal_mode = wal"))
    db.execute("ALTER TABLE events ADD COLUMN comm TEXT NOT NULL DEFAULT ''; PRAGMA user_version = 10")
    db.execute("UPDATE events SET comm = 'worker' WHERE source = 5; UPDATE sessions SET rank = 3, world_size = 4")
    with open_reader(path) as reader:
        rows = reader.connection.execute(
            "SELECT DISTINCT comm FROM events WHERE source IN (3, 5) ORDER BY 1"
        ).fetchall()
        assert rows == [(None,), ("worker",)]
        assert reader.connection.execute("SELECT DISTINCT rank, world_size FROM events").fetchall() == [(3, 4)]
    db.close()


def test_host_events_of_an_older_file_say_only_what_it_holds(starved: Reader) -> None:
    window = starved.window(None, 0)
    assert window is not None
    events = starved.host_events(window)
    assert events
    assert {(one.limit, one.queue_ns, one.device, one.segments) for one in events} == {(None, None, None, None)}
    assert {one.code for one in events if one.op == HostOp.PROCESS_EXIT and one.source is Source.HOST} <= {None}
