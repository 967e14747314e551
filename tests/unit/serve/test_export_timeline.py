"""What Perfetto's trace processor makes of exported timelines equals the database, for both formats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingero.serve.export.flamegraph import Weight
from ingero.serve.export.formats import ChromeWriter, Format, PerfettoWriter, export
from ingero.serve.export.model import Slice, Track
from ingero.serve.export.timeline import timeline
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.store.streaming.streams import Streams
from tests.trace_processor.processor import TraceProcessor, trace_processor
from tests.unit.export_recording import BEGIN_NS, MS, SECOND_NS, make_recording, rows

WHOLE = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 3 * SECOND_NS)
CALLS = "'cuda', 'driver', 'nccl', 'host'"
Loaded = TraceProcessor


def write(database: Path, output: Path, form: str, **options: Any) -> Path:
    """Exports all of it."""
    writers = {"perfetto": PerfettoWriter, "chrome": ChromeWriter}
    with open_reader(database) as reader, output.open("wb") as file:
        writer = writers[form](file.write, BEGIN_NS, **options)
        for item in timeline(Streams(reader, WHOLE), lambda _title, _share: None):
            getattr(writer, type(item).__name__.lower())(item)
        writer.finish()
    return output


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recording(tmp_path_factory.mktemp("export") / "recording.db")


@pytest.fixture(scope="module", params=["perfetto", "chrome"])
def loaded(
    request: pytest.FixtureRequest, database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    output = tmp_path_factory.mktemp("out") / request.param
    with trace_processor(write(database, output, request.param)) as processor:
        yield processor


def slices(loaded: Loaded, where: str) -> list[tuple[Any, ...]]:
    """Name, begin since the recording's, and duration."""
    found = loaded.rows(f"SELECT name, ts, dur FROM slice WHERE {where} ORDER BY ts, dur DESC, name")
    return [(name, ts % SECOND_NS if ts > BEGIN_NS else ts, dur) for name, ts, dur in found]


def stored(database: Path, sql: str) -> list[tuple[Any, ...]]:
    """The same from the database."""
    return [(name, ts - BEGIN_NS, dur) for name, ts, dur in rows(database, sql)]


def test_the_trace_processor_reports_no_error_and_no_drop(loaded: Loaded) -> None:
    assert loaded.errors() == {}


def test_calls_have_the_names_times_and_durations_of_the_database(loaded: Loaded, database: Path) -> None:
    assert slices(loaded, f"category IN ({CALLS})") == stored(
        database, "SELECT op_name, timestamp, duration_ns FROM events WHERE source <> 5 ORDER BY 2, 3 DESC, 1"
    )


def test_intervals_off_the_cpu_have_the_times_of_the_database(loaded: Loaded, database: Path) -> None:
    found = [(ts, dur) for _, ts, dur in slices(loaded, "category = 'offcpu'")]
    sql = "SELECT '', start_ns, duration_ns FROM raw_offcpu ORDER BY start_ns"
    assert found == [(ts, dur) for _, ts, dur in stored(database, sql)]


def test_a_sleep_shows_from_when_on_the_thread_could_have_run(loaded: Loaded) -> None:
    assert slices(loaded, "category = 'offcpu_runnable'") == [("runnable (waiting for a CPU)", 71 * MS, 9 * MS)]


def test_sync_intervals_and_their_parts_have_the_durations_of_the_database(loaded: Loaded, database: Path) -> None:
    names = {
        "GPU busy (work queued or running)": "busy_ns",
        "GPU idle (nothing queued)": "idle_ns",
        "sync return delay": "return_delay_ns",
    }
    sums = " UNION ALL ".join(
        f"SELECT '{name}', sum({part}), 0 FROM raw_sync_intervals" for name, part in names.items()
    )
    parts = loaded.rows(
        "SELECT name, sum(dur) AS ns, 0 AS z FROM slice WHERE category = 'sync_interval_part' GROUP BY name"
    )
    whole = loaded.rows("SELECT count(*) AS n, sum(dur) AS ns FROM slice WHERE category = 'sync_interval'")
    assert parts == rows(database, f"{sums} ORDER BY 1")
    assert whole == rows(database, "SELECT count(*), sum(idle_ns + busy_ns + return_delay_ns) FROM raw_sync_intervals")


def test_the_parts_lie_inside_their_sync_interval(loaded: Loaded) -> None:
    outside = "SELECT count(*) AS n FROM slice p LEFT JOIN slice e ON e.id = p.parent_id WHERE "
    outside += "p.category = 'sync_interval_part' AND coalesce(e.category, '') <> 'sync_interval'"
    assert loaded.rows(outside) == [(0,)]


def test_a_call_inside_another_is_nested_in_it(loaded: Loaded) -> None:
    sql = "SELECT i.dur AS d, o.name AS n FROM slice i JOIN slice o ON o.id = i.parent_id WHERE i.category = 'driver'"
    assert sorted(loaded.rows(sql)) == [(1 * MS, "cudaMemcpyAsync"), (2 * MS, "cudaMemcpyAsync")]


def test_block_io_of_each_device_is_apart_though_requests_overlap(loaded: Loaded) -> None:
    sql = "SELECT dur / 1000000 AS ms FROM slice WHERE category = 'io' AND depth = 0 ORDER BY dur"
    assert loaded.rows(sql) == [(1,), (2,), (10,), (10,)]


def test_arrows_lead_from_the_launch_to_its_sync_and_from_the_waker_to_the_woken(loaded: Loaded) -> None:
    sql = (
        "SELECT o.name AS a, o.dur AS b, i.name AS c, i.dur AS d FROM flow f JOIN slice o ON o.id = f.slice_out "
        "JOIN slice i ON i.id = f.slice_in"
    )
    assert sorted(loaded.rows(sql)) == [
        ("cudaLaunchKernel", 1 * MS, "cudaStreamSynchronize", 20 * MS),
        ("wakes another thread", 0, "runnable (waiting for a CPU)", 9 * MS),
        ("wakes another thread", 0, "sleeping", 2 * MS),
    ]


def test_processes_are_told_by_node_rank_and_pid_even_where_two_nodes_share_a_pid(loaded: Loaded) -> None:
    names = [name for (name,) in loaded.rows("SELECT name FROM process WHERE name LIKE '%python3%' ORDER BY name")]
    assert names == [
        "node-a, rank 0 of 3: python3",
        "node-a, rank 1 of 3: python3",
        "node-b, rank 2 of 3: python3 [10]",
    ]


def test_threads_have_their_calls(loaded: Loaded) -> None:
    sql = (
        "SELECT t.name AS a, count(*) AS n FROM slice s JOIN thread_track k ON k.id = s.track_id JOIN thread t "
        "USING (utid) JOIN process p USING (upid) WHERE s.category = 'cuda' AND p.name LIKE '%rank 0%' "
        "AND t.name IN ('main', 'loader') GROUP BY 1 ORDER BY 1"
    )
    assert dict(loaded.rows(sql))["main"] == 4


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("CPU", [25.0, 75.0]),
        ("memory available", [8 << 30, 8 << 30]),
        ("pressure: I/O, some tasks", [25.0]),
        ("threads on a CPU", [0.5]),
        ("threads waiting for a CPU", [0.25]),
        ("calls in flight for over a second", [1, 1, 0]),
    ],
)
def test_counters_have_the_values_of_the_database(loaded: Loaded, name: str, values: list[float]) -> None:
    sql = "SELECT value FROM counter c JOIN counter_track t ON t.id = c.track_id "
    found = loaded.rows(f"{sql} WHERE t.name IN ('{name}', '{name} value') ORDER BY ts")
    assert [value for (value,) in found] == values


def test_samples_of_gpus_are_counters(tmp_path: Path) -> None:
    database = make_recording(tmp_path / "recording.db")
    columns = "session, time_ns, gpu_index, gpu_percent, memory_percent, memory_used_bytes, sm_clock_mhz, power_mw"
    with apsw.Connection(str(database)) as db:
        db.execute(f"CREATE TABLE IF NOT EXISTS raw_gpu_samples ({columns}, temperature_c, uuid)")
        values = f"1, {BEGIN_NS}, 2, 97, 40, 1024, 1410, NULL, 61, 'GPU-2'"
        db.execute(f"INSERT INTO raw_gpu_samples({columns}, temperature_c, uuid) VALUES ({values})")
    with trace_processor(write(database, tmp_path / "trace", "perfetto")) as processor:
        sql = "SELECT t.name AS n, c.value AS v FROM counter c JOIN counter_track t ON t.id = c.track_id "
        found = dict(processor.rows(f"{sql} WHERE t.name GLOB 'GPU 2*'"))
    assert found == {
        "GPU 2: busy": 97,
        "GPU 2: memory accessed": 40,
        "GPU 2: memory in use": 1024,
        "GPU 2: SM clock (MHz)": 1410,
        "GPU 2: temperature (C)": 61,
    }


def test_an_incident_is_named_by_severity_and_cause_and_carries_its_breakdown(loaded: Loaded) -> None:
    name = "HIGH cpu-contention: 9.00 ms lost"
    sql = "SELECT key, display_value FROM args WHERE arg_set_id = (SELECT arg_set_id FROM slice WHERE name = "
    args = {key.partition(".")[2]: value for key, value in loaded.rows(f"{sql}'{name}')")}
    assert slices(loaded, f"name = '{name}'") == [(name, 60 * MS, 20 * MS)]
    assert args["lost_ns"] == str(9 * MS)
    assert args["explained_ratio"] == "0.9"
    assert args["summary"] == "hog took the CPU"
    assert args["evidence_runq_ns"] == str(9 * MS)
    assert {value for key, value in args.items() if key.startswith("culprits")} == {"99", "hog"}


def test_an_open_incident_lasts_until_the_end_of_the_window(loaded: Loaded) -> None:
    (found,) = slices(loaded, "name GLOB 'CRITICAL nccl-hang*'")
    assert found[1:] == (70 * MS, 3 * SECOND_NS - 70 * MS)


def test_a_call_that_never_returned_is_shown_as_far_as_it_was_seen(loaded: Loaded) -> None:
    assert slices(loaded, "category = 'in_flight_call'") == [
        ("cudaStreamSynchronize (in flight)", SECOND_NS // 5, 2 * SECOND_NS - SECOND_NS // 5)
    ]


def test_collectives_stand_on_the_track_of_their_communicator(loaded: Loaded) -> None:
    sql = "SELECT key, display_value FROM slice s JOIN args a USING (arg_set_id) WHERE s.category = 'communicator'"
    args = {key.partition(".")[2]: value for key, value in loaded.rows(sql)}
    assert args == {"sequence": "5", "bytes": str(1 << 20), "datatype": "float32", "reduce_op": "sum"}


def test_an_breakdown_and_its_culprit_are_arguments_of_the_call(loaded: Loaded) -> None:
    sql = f"SELECT key, display_value FROM slice s JOIN args a USING (arg_set_id) WHERE s.dur = {20 * MS} "
    args = {key.partition(".")[2]: value for key, value in loaded.rows(f"{sql} AND s.category = 'cuda'")}
    assert (args["runq_ns"], args["sleep_ns"]) == (str(9 * MS), str(11 * MS))
    assert (args["culprit"], args["culprit_ns"]) == ("hog [99]", str(8 * MS))
    assert args["line"] == "train.py:42 in step; or so"


def test_what_was_lost_is_on_the_timeline(loaded: Loaded) -> None:
    assert slices(loaded, "category = 'drop'") == [("offcpu_buffer_full", 5 * MS, 0)]


def test_forgetting_interned_strings_changes_nothing(database: Path, tmp_path: Path) -> None:
    sql = "SELECT s.name AS a, s.ts AS b, a.key AS c, a.display_value AS d FROM slice s LEFT JOIN args a "
    sql += "USING (arg_set_id) ORDER BY 1, 2, 3, 4"
    found = []
    for name, most_bytes in (("all", 1 << 20), ("none", 1)):
        with trace_processor(write(database, tmp_path / name, "perfetto", most_interned_bytes=most_bytes)) as processor:
            assert processor.errors() == {}
            found.append(processor.rows(sql))
    assert found[0] == found[1]


@pytest.fixture(scope="module")
def chrome(database: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(
        write(database, tmp_path_factory.mktemp("chrome") / "trace.json", "chrome").read_text()
    )["traceEvents"]
    return events


def test_chrome_slices_of_a_thread_nest_or_lie_apart(chrome: list[dict[str, Any]]) -> None:
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in chrome:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        open_ends: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begin + 1e-3:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-3
            open_ends.append(end)


def test_chrome_names_every_process_and_thread_before_its_first_event(chrome: list[dict[str, Any]]) -> None:
    named: set[tuple[int, int | None]] = set()
    for event in chrome:
        if event["ph"] == "M":
            named.add((event["pid"], event["tid"] if event["name"] == "thread_name" else None))
        else:
            assert (event["pid"], event.get("tid")) in named


def test_chrome_arrows_come_in_pairs(chrome: list[dict[str, Any]]) -> None:
    begun = sorted(event["id"] for event in chrome if event["ph"] == "s")
    assert begun == sorted(event["id"] for event in chrome if event["ph"] == "f") == [1, 2, 3]


def test_chrome_incidents_are_coloured_by_severity(chrome: list[dict[str, Any]]) -> None:
    colours = {event["args"]["severity"]: event["cname"] for event in chrome if event.get("cat") == "incident"}
    assert colours == {"HIGH": "bad", "CRITICAL": "terrible"}


def test_a_track_comes_before_what_is_on_it(database: Path) -> None:
    known = set()
    with open_reader(database) as reader:
        for item in timeline(Streams(reader, WHOLE), lambda _title, _share: None):
            if isinstance(item, Track):
                assert item.parent in known | {0}
                known.add(item.number)
            elif isinstance(item, Slice):
                assert item.track in known


def test_each_node_is_a_machine_whose_clock_is_put_right_to_the_first_ones(database: Path, tmp_path: Path) -> None:
    sql = "SELECT coalesce(t.machine_id, 0) AS m, count(*) AS n, min(s.ts) AS ts FROM slice s JOIN track t "
    sql += f"ON t.id = s.track_id WHERE s.category IN ({CALLS}) GROUP BY 1 ORDER BY 1"
    found = []
    database = Path(shutil.copy(database, tmp_path))
    for ahead_ns in ({}, {"node-a": 2 * MS, "node-b": 7 * MS}):
        output = tmp_path / f"{len(ahead_ns)}.pftrace"
        with apsw.Connection(str(database)) as db:
            for node, offset_ns in ahead_ns.items():
                db.execute(
                    "INSERT INTO raw_node_clocks SELECT session, 1, ?, 0, 'r' FROM raw_sessions WHERE node = ?",
                    (offset_ns, node),
                )
        with open_reader(database) as reader, output.open("wb") as file:
            streams = Streams(reader, WHOLE)
            export(
                streams, WHOLE, Format.PERFETTO, file,
                weight=Weight.TIME, progress=lambda _title, _share: None,
            )  # fmt: skip
        with trace_processor(output) as processor:
            assert processor.errors() == {}
            found.append(processor.rows(sql))
            pids = processor.rows("SELECT coalesce(machine_id, 0) AS m, pid FROM process WHERE name LIKE '%python3%'")
    wanted = rows(
        database,
        "SELECT s.node, count(*), min(e.start_ns) FROM raw_events e JOIN raw_sessions s USING (session) "
        "WHERE e.source <> 5 GROUP BY 1 ORDER BY 1",
    )
    assert [(count, first_ns) for _, count, first_ns in found[0]] == [
        (count, first_ns) for _, count, first_ns in wanted
    ]
    shifts = [before[2] - after[2] for before, after in zip(*found, strict=True)]
    assert shifts == [0, 5 * MS]
    assert sorted(pids) == [(0, 10), (0, 20), (1, 10)]
