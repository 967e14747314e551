"""Questions to a recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.demo.scene import ScriptedRun
from ingero.ops import Source
from ingero.store.arrays import arrays
from ingero.store.arrays.spans import Spans
from ingero.store.errors import MissingColumnError
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Clocks, SessionFacts, Window
from ingero.store.vocabulary import IDLE_PID, UNKNOWN_PID
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer
from tests.unit.reader_recording import (
    BEGIN_NS,
    END_NS,
    PER_CONTAINER,
    PER_CONTAINER_NCCL,
    SECOND_NS,
    fill,
    make_recording,
)

WHOLE = Window(begin_ns=BEGIN_NS, end_ns=END_NS)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recording(tmp_path_factory.mktemp("reader") / "a.db")


@pytest.fixture
def reader(recorded: Path) -> Iterator[Reader]:
    with open_reader(recorded) as reader:
        yield reader


def of_another_build(folder: Path, missing: str) -> Path:
    """A recording whose off-CPU intervals lack a column."""
    path = make_recording(folder / "a.db")
    db = apsw.Connection(str(path))
    for (name,) in list(db.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")):
        db.execute(f'DROP VIEW "{name}"')
    db.execute(f"ALTER TABLE raw_offcpu DROP COLUMN {missing}")
    db.close()
    return path


def test_a_recording_of_an_earlier_build_has_the_columns_added_since_with_their_defaults(tmp_path: Path) -> None:
    with open_reader(of_another_build(tmp_path, "futex")) as reader:
        rows = reader.offcpu_rows(WHOLE)
        assert list(reader.connection.execute("SELECT DISTINCT futex FROM offcpu")) == [(None,)]
    assert len(rows)
    assert not rows["futex"].any()


def test_a_recording_of_another_build_says_what_it_lacks(tmp_path: Path) -> None:
    with (
        open_reader(of_another_build(tmp_path, "duration_ns")) as reader,
        pytest.raises(MissingColumnError, match="another build of ingero: no such column"),
    ):
        reader.offcpu_rows(WHOLE)


def test_session_tells_when_where_and_on_what(reader: Reader) -> None:
    (session,) = reader.sessions()
    assert (session.node, session.kernel, session.options) == ("n1", "6.18", '{"max_overhead": 2.0}')
    assert (session.started_ns, session.stopped_ns) == (BEGIN_NS, END_NS)


def test_processes_carry_their_rank(reader: Reader) -> None:
    assert [(p.pid, p.rank, p.world_size, p.is_traced) for p in reader.processes()] == [(10, 0, 2, 1), (20, 1, 2, 1)]


def test_op_totals_sum_seconds_and_take_percentiles_from_merged_call_sites(reader: Reader) -> None:
    (sync,) = reader.op_totals(WHOLE)
    assert (sync.pid, sync.name, sync.count, sync.recorded) == (10, "cudaStreamSynchronize", 1000, 20)
    assert (sync.sum_ns, sync.max_ns) == (4 * SECOND_NS, 9_000_009)
    assert sync.clocks is not None
    assert (sync.clocks.run_ns, sync.clocks.runq_ns, sync.clocks.total_ns) == (3 * SECOND_NS, SECOND_NS, sync.sum_ns)
    assert sync.p50_ns == pytest.approx(4_000_000, rel=0.09)
    assert sync.p99_ns == pytest.approx(8_000_000, rel=0.09)


def test_op_totals_of_a_window_take_only_its_seconds_and_minutes(reader: Reader) -> None:
    window = Window(begin_ns=BEGIN_NS + 2 * SECOND_NS, end_ns=BEGIN_NS + 5 * SECOND_NS)
    (sync,) = reader.op_totals(window)
    assert sync.count == 300
    assert sync.p99_ns == pytest.approx(4_000_000, rel=0.09)


def test_process_filter_leaves_the_others_out(reader: Reader) -> None:
    assert reader.op_totals(WHOLE, process=2) == []
    assert len(reader.culprits(WHOLE, process=1)) == 3
    assert reader.culprits(WHOLE, process=2) == []
    assert len(reader.sync_intervals(WHOLE, process=2)) == 0
    assert reader.worst_calls(WHOLE, process=2, limit=5) == []


def test_clock_totals_sum_over_time_and_keep_the_most_threads(reader: Reader) -> None:
    (totals,) = reader.thread_state_totals(WHOLE)
    assert (totals.pid, totals.threads, totals.switches, totals.involuntary_switches) == (10, 6, 50, 20)
    assert totals.clocks == Clocks(
        run_ns=7 * SECOND_NS,
        runq_ns=3 * SECOND_NS,
        throttled_ns=0,
        yielded_ns=0,
        sleep_ns=0,
        io_ns=0,
        uninterruptible_ns=0,
        stopped_ns=0,
    )


def test_clock_seconds_come_as_an_array_in_order_of_time(reader: Reader) -> None:
    seconds = reader.thread_state_seconds(WHOLE, process=1)
    assert seconds.dtype == arrays.THREAD_STATE_SECOND_DTYPE
    assert np.diff(seconds["start_ns"]).tolist() == [SECOND_NS] * 9
    assert seconds["state_ns"].sum(axis=0).tolist() == [7 * SECOND_NS, 3 * SECOND_NS, 0, 0, 0, 0, 0, 0]


def test_culprits_of_many_time_ranges_are_those_of_each_together(reader: Reader) -> None:
    """A reference may lie in thousands of short time ranges; a second that several of them touch is shared by them."""
    tenth = SECOND_NS // 10
    windows = [Window(begin_ns=BEGIN_NS + at * tenth, end_ns=BEGIN_NS + at * tenth + tenth // 2) for at in range(3, 57)]
    together = reader.culprit_shares(Spans(windows), process=1)
    each = [one for window in windows for one in reader.culprit_shares(Spans([window]), process=1)]
    assert [one.culprit_pid for one in together] == [77, -1, 0]
    for one in together:
        assert one.ns == pytest.approx(
            sum(other.ns for other in each if other.culprit_pid == one.culprit_pid), rel=1e-6
        )
    assert together[0].ns == pytest.approx(len(windows) * 0.05 * 250_000_000, rel=1e-6)
    assert together[0].switches == int(len(windows) * 0.05 * 3), "of one time range alone it would be none"


def test_calls_of_many_time_ranges_are_those_of_each_together(reader: Reader) -> None:
    parts = [
        Window(begin_ns=BEGIN_NS + at * SECOND_NS // 4, end_ns=BEGIN_NS + at * SECOND_NS // 4 + 1000)
        for at in range(20)
    ]
    together = {one.name: one for one in reader.op_shares(parts, process=1)}
    each = [one for window in parts for one in reader.op_shares([window], process=1)]
    assert together.keys() == {one.name for one in each} != set()
    for name, one in together.items():
        for field in ("count", "sum_ns", "held_up_ns", "bytes", "errors"):
            assert getattr(one, field) == pytest.approx(
                sum(getattr(other, field) for other in each if other.name == name)
            )
    whole = {one.name: one for one in reader.op_shares([WHOLE], process=1)}
    assert whole == {one.name: one for one in reader.op_shares_by_process(WHOLE)[1]}


def test_recorded_calls_are_summed_by_operation_stack_and_thread(tmp_path: Path) -> None:
    path = tmp_path / "recording.db"
    with ScriptedRun(path, seconds=4) as run:
        trainer, other = run.process(100, "python"), run.process(200, "python")
        stack = run.stack([("/srv/train.py", 3, "step")])
        for actor, tid, ms, stack_hash in [
            (trainer, 100, 5.0, stack),
            (trainer, 100, 8.0, stack),
            (trainer, 101, 2.0, stack),
            (trainer, 100, 7.0, 0),
            (other, 200, 9.0, stack),
        ]:
            run.call(actor, "cudaStreamSynchronize", 1, ms, tid=tid, stack_hash=stack_hash)
        window = Window(begin_ns=run.at(0), end_ns=run.at(4))
    with open_reader(path) as made:
        found = made.call_sums(window, process=1, sources=(Source.CUDA,))
    assert [(one.tid, one.stack_hash, one.count, one.sum_ns, one.max_ns) for one in found] == [
        (100, stack, 2, 13_000_000, 8_000_000),
        (101, stack, 1, 2_000_000, 2_000_000),
    ]


def test_the_first_calls_of_a_window_say_when_the_last_of_them_began(reader: Reader) -> None:
    window = reader.window(None, END_NS)
    assert window is not None
    begins = reader.call_rows(window, sources=range(20), process=1)["start_ns"]
    assert len(begins) > 2
    assert reader.first_calls(window, process=1, most=2) == (2, begins[1])
    assert reader.first_calls(window, process=1, most=10_000) == (len(begins), begins[-1])
    empty = replace(window, end_ns=int(begins[0]))
    assert reader.first_calls(empty, process=1, most=2) == (0, window.begin_ns)


def test_windows_grow_to_the_seconds_of_calls_that_they_touch(reader: Reader) -> None:
    half = SECOND_NS // 2
    short = Window(begin_ns=BEGIN_NS + half, end_ns=BEGIN_NS + half + 1)
    longer = Window(begin_ns=BEGIN_NS + 2 * SECOND_NS, end_ns=BEGIN_NS + 3 * SECOND_NS + half)
    elsewhere = Window(begin_ns=BEGIN_NS + 500 * SECOND_NS, end_ns=BEGIN_NS + 501 * SECOND_NS)
    assert reader.op_spans([short, elsewhere, longer], process=1) == [
        Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + SECOND_NS),
        elsewhere,
        Window(begin_ns=BEGIN_NS + 2 * SECOND_NS, end_ns=BEGIN_NS + 4 * SECOND_NS),
    ]


def test_culprits_name_who_ran_and_keep_idle_and_unknown_apart(reader: Reader) -> None:
    found = [(c.kind, c.culprit_pid, c.culprit_name, c.ns, c.switches) for c in reader.culprits(WHOLE)]
    assert found == [
        ("runq", 77, "fluent-bit", 2_500_000_000, 30),
        ("runq", UNKNOWN_PID, "", 300_000_000, 30),
        ("runq", IDLE_PID, "", 200_000_000, 30),
    ]


def test_worst_calls_carry_breakdown_culprit_and_waker(reader: Reader) -> None:
    calls = reader.worst_calls(WHOLE, limit=3)
    assert [call.duration_ns for call in calls] == [19_000_000, 18_000_000, 17_000_000]
    worst = calls[0]
    assert (worst.event_id, worst.name, worst.caller_library) == ("n1:20", "cudaStreamSynchronize", "libtorch_cuda.so")
    assert (worst.culprit_pid, worst.culprit_name, worst.culprit_ns) == (77, "fluent-bit", 500_000)
    assert (worst.waker_kind, worst.waker_tid, worst.waker_name) == ("thread", 12, "pt_data_pin")
    assert worst.clocks is not None
    assert worst.clocks.total_ns + (worst.residual_ns or 0) == worst.duration_ns


def test_worst_calls_of_an_operation_without_breakdown_say_so(reader: Reader) -> None:
    (call,) = reader.worst_calls(WHOLE, source=9, op=3, limit=1)
    assert (call.name, call.bytes, call.clocks, call.culprit_pid) == ("ncclAllReduce", 4096, None, None)


def test_sync_intervals_come_as_an_array_with_texts_by_number(reader: Reader) -> None:
    sync_intervals = reader.sync_intervals(WHOLE)
    assert sync_intervals.dtype == arrays.SYNC_INTERVAL_DTYPE
    assert len(sync_intervals) == 10
    assert (
        sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
        == sync_intervals["idle_ns"] + sync_intervals["busy_ns"] + sync_intervals["return_delay_ns"]
    ).all()
    assert sync_intervals["idle_state_ns"][0].tolist() == [arrays.NOT_RECORDED, 1, 1, 1, 1, 1, 1, 1]
    assert sync_intervals["sync_state_ns"][0].tolist() == [1] * 8
    assert sync_intervals["checkpoint_ns"][0].tolist() == [5, 6, 0, 0, 0, 0, 0, 0]
    assert (
        reader.texts(sync_intervals["op_set"])[int(sync_intervals["op_set"][0])] == "cudaLaunchKernel,cudaMemcpyAsync"
    )


def test_smaller_facts_are_answered(reader: Reader) -> None:
    assert [i.duration_ns for i in reader.offcpu(WHOLE, limit=2)] == [300, 200]
    assert {i.state for i in reader.offcpu(WHOLE, limit=2)} == {"sleep"}
    (open_call,) = reader.in_flight(WHOLE)
    assert (open_call.name, open_call.time_ns - open_call.since_ns) == ("ncclAllReduce", SECOND_NS)
    (kernel,) = reader.kernel_launches(WHOLE)
    assert (kernel.name, kernel.short_name, kernel.library, kernel.count) == ("gemm(int)", "gemm", "a.so", 150)
    assert [(p.symbol, p.reason) for p in reader.missing_probes()] == [("cudaFree", "symbol not found")]
    assert [s.cpu_percent for s in reader.snapshots(WHOLE)] == [94.5] * 10
    assert [(drop.counter, drop.count) for drop in reader.drops()] == [("calls_ring_full", 7)]
    assert [(c.container_id, c.pod) for c in reader.containers()] == [("abc", "train"), ("", "")]


def test_per_container_query_runs_word_for_word(reader: Reader) -> None:
    rows = reader.connection.execute(PER_CONTAINER).fetchall()
    assert rows == [("abc", None, 35, 190.03), ("abc", "gemm(int)", 15, 0.03)]


def test_per_container_query_over_nccl_runs_word_for_word(reader: Reader) -> None:
    assert reader.connection.execute(PER_CONTAINER_NCCL).fetchall() == [("abc", "ncclAllReduce", 4, 3e-6, 6e-6)]


def test_nccl_events_know_their_communicator(reader: Reader) -> None:
    rows = reader.connection.execute(
        "SELECT DISTINCT comm_id_hash, rank, nranks, datatype, reduce_op, bytes FROM nccl_events"
    ).fetchall()
    assert rows == [(99, 1, 2, 7, 0, 4096)]


def test_samples_are_summed_by_thread_state_and_stack(tmp_path: Path) -> None:
    path = tmp_path / "samples.db"
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with Writer(path, session=facts, node="n") as writer:
        rows = tables.SAMPLES.rows(
            4,
            session=writer.session,
            time_ns=BEGIN_NS + np.array([30, 10, 20, 40]),
            process=np.array([1, 1, 1, 2]),
            pid=10,
            tid=11,
            comm=writer.intern("worker"),
            state=np.array([1, 1, 5, 1]),
            weight_ns=np.array([100, 100, 250, 100]),
            stack_hash=np.array([7, 7, 8, 7]),
        )
        writer.append(tables.SAMPLES, rows)
    with open_reader(path) as reader:
        found = reader.samples(WHOLE, process=1)
        assert [(one.state, one.stack_hash, one.count, one.ns, one.comm) for one in found] == [
            ("sleep", 8, 1, 250, "worker"),
            ("run", 7, 2, 200, "worker"),
        ]
        single = reader.sample_rows(WHOLE, process=1)
        assert (single["time_ns"] - BEGIN_NS).tolist() == [10, 20, 30]
        assert len(reader.sample_rows(WHOLE)) == 4
        assert reader.samples(Window(begin_ns=0, end_ns=BEGIN_NS)) == []


def test_only_containers_has_a_container_id(reader: Reader) -> None:
    views = [
        str(row[0]) for row in reader.connection.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'raw%'")
    ]
    sql = "SELECT count(*) FROM pragma_table_info(?) WHERE name = 'container_id'"
    having = [view for view in views if reader.connection.execute(sql, (view,)).fetchall() != [(0,)]]
    assert having == ["containers"]


def test_unused_joins_of_the_events_view_cost_nothing(reader: Reader) -> None:
    plan = reader.connection.execute("EXPLAIN QUERY PLAN SELECT count(*), sum(duration_ns) FROM events").fetchall()
    assert len(plan) == 1


def test_saved_recording_counts_back_from_its_newest_moment(reader: Reader) -> None:
    years_later = END_NS + 10**17
    window = reader.window(3 * SECOND_NS, years_later)
    whole = reader.window(None, years_later)
    assert window is not None
    assert whole is not None
    assert whole == reader.time_range()
    assert (whole.begin_ns, whole.end_ns) == (BEGIN_NS, BEGIN_NS + 10 * SECOND_NS)
    assert (window.end_ns, window.duration_ns) == (whole.end_ns, 3 * SECOND_NS)
    assert not reader.is_live(years_later)


def test_live_recording_counts_back_from_now(tmp_path: Path) -> None:
    now = END_NS
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with Writer(tmp_path / "a.db", session=facts, node="n1", clock=lambda: now) as writer:
        fill(writer)
        writer.flush()
        with open_reader(tmp_path / "a.db") as reader:
            assert reader.is_live(now + SECOND_NS)
            assert not reader.is_live(now + 60 * SECOND_NS)
            assert reader.window(2 * SECOND_NS, now + SECOND_NS) == Window(
                begin_ns=now - SECOND_NS, end_ns=now + SECOND_NS
            )


def test_recording_without_any_event_still_has_a_time_range(tmp_path: Path) -> None:
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with Writer(tmp_path / "a.db", session=facts, node="n1", clock=lambda: END_NS):
        pass
    with open_reader(tmp_path / "a.db") as reader:
        assert reader.time_range() == Window(begin_ns=BEGIN_NS, end_ns=END_NS + 1)
        assert reader.op_totals(WHOLE) == []


def test_the_time_between_two_recordings_is_not_recorded_time(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for begin_s in (0, 86_400):
        facts = SessionFacts(uuid="u", started_ns=BEGIN_NS + begin_s * SECOND_NS)
        with Writer(path, session=facts, node="n1", clock=lambda: BEGIN_NS + (begin_s + 60) * SECOND_NS):  # noqa: B023
            pass
    with open_reader(path) as reader:
        whole = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 86_460 * SECOND_NS)
        assert reader.recorded_ns(whole) == 120 * SECOND_NS
        assert reader.recorded_ns(Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + SECOND_NS)) == SECOND_NS
