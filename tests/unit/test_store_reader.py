"""Questions to a recording."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.store import arrays, histograms, tables
from ingero.store.errors import ForeignDatabaseError, NoDatabaseError, NotADatabaseError, NotReadableError
from ingero.store.opening import open_database
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Clocks, SessionFacts, Window
from ingero.store.vocabulary import CLOCK_COLUMNS, IDLE_PID, UNKNOWN_PID, CulpritKind
from ingero.store.writer import Writer

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 // 60 * 60 * SECOND_NS
END_NS = BEGIN_NS + 600 * SECOND_NS
WHOLE = Window(begin_ns=BEGIN_NS, end_ns=END_NS)

# Issue text of the query command: it has to run word for word.
PER_CONTAINER = """
SELECT container_id, kernel_name, COUNT(*) AS launches, SUM(duration_ns)/1e6 AS total_ms FROM cuda_events e
JOIN containers c ON c.cgroup_id = e.cgroup_id GROUP BY container_id, kernel_name ORDER BY total_ms DESC LIMIT 20;
"""
PER_CONTAINER_NCCL = """
SELECT container_id, op, COUNT(*) AS calls, AVG(duration_ns)/1e6 AS avg_ms, MAX(duration_ns)/1e6 AS max_ms
FROM nccl_events e JOIN containers c ON c.cgroup_id = e.cgroup_id GROUP BY container_id, op
ORDER BY max_ms DESC LIMIT 20;
"""


def fill(writer: Writer) -> None:
    """Ten seconds of one trainer (process 1, pid 10) with a noisy neighbour, and a second process."""
    session = writer.session
    trainer, other = writer.process_id(10, 1), writer.process_id(20, 1)
    name = writer.intern
    add = writer.append
    for process, pid, title in ((trainer, 10, "python3"), (other, 20, "python3")):
        row = tables.PROCESSES.rows(
            1, process=process, session=session, pid=pid, start_ns=1, name=title, rank=pid // 10 - 1, world_size=2
        )
        add(tables.PROCESSES, row)
    seconds = BEGIN_NS + np.arange(10) * SECOND_NS
    clocks: dict[str, tables.Column] = dict.fromkeys(CLOCK_COLUMNS, 0)
    add(
        tables.OP_STATS,
        tables.OP_STATS.rows(
            10,
            session=session,
            start_ns=seconds,
            process=trainer,
            source=1,
            op=5,
            library=name("libtorch_cuda.so"),
            count=100,
            recorded=2,
            sum_ns=400_000_000,
            max_ns=np.arange(10) + 9_000_000,
            **(clocks | {"run_ns": 300_000_000, "runq_ns": 100_000_000}),
        ),
    )
    for minute in range(2):
        durations = np.full(500, 4_000_000 if minute == 0 else 8_000_000)
        add(
            tables.CALL_SITES,
            tables.CALL_SITES.rows(
                1,
                session=session,
                start_ns=BEGIN_NS + minute * 60 * SECOND_NS,
                process=trainer,
                source=1,
                op=5,
                count=500,
                sum_ns=int(durations.sum()),
                histogram=histograms.pack(histograms.count(durations)),
            ),
        )
    add(
        tables.CLOCK_SECONDS,
        tables.CLOCK_SECONDS.rows(
            10,
            session=session,
            start_ns=seconds,
            process=trainer,
            threads=np.arange(10) % 3 + 4,
            switches=5,
            preemptions=2,
            **(clocks | {"run_ns": 700_000_000, "runq_ns": 300_000_000}),
        ),
    )
    culprits = ((77, "fluent-bit", 250), (IDLE_PID, "", 20), (UNKNOWN_PID, "", 30))
    for pid, title, ms in culprits:
        add(
            tables.CULPRITS,
            tables.CULPRITS.rows(
                10,
                session=session,
                start_ns=seconds,
                process=trainer,
                kind=int(CulpritKind.RUNQ),
                culprit_pid=pid,
                culprit_name=name(title),
                ns=ms * 1_000_000,
                switches=3,
            ),
        )
    calls: dict[str, tables.Column] = {"session": session, "process": trainer, "pid": 10, "tid": 11, "cgroup_id": 500}
    add(
        tables.EVENTS,
        tables.EVENTS.rows(
            20,
            **calls,
            start_ns=np.repeat(seconds, 2) + 5,
            duration_ns=np.arange(20) * 1_000_000,
            source=1,
            op=5,
            caller_library=name("libtorch_cuda.so"),
            residual_ns=0,
            switches=1,
            preemptions=1,
            culprit_pid=77,
            culprit_name=name("fluent-bit"),
            culprit_ns=500_000,
            waker_kind=1,
            waker_tid=12,
            waker_name=name("pt_data_pin"),
            **(clocks | {"run_ns": np.arange(20) * 1_000_000}),
        ),
    )
    add(
        tables.EVENTS,
        tables.EVENTS.rows(
            30,
            **calls,
            start_ns=BEGIN_NS + np.arange(30),
            duration_ns=2_000,
            source=4,
            op=1,
            function=np.arange(30) % 2 + 0x1000,
        ),
    )
    add(tables.KERNELS, tables.KERNELS.rows(1, process=trainer, function=0x1000, name="gemm(int)", short_name="gemm"))
    add(
        tables.EVENTS,
        tables.EVENTS.rows(
            4,
            **calls,
            start_ns=BEGIN_NS,
            duration_ns=[1, 2, 3, 6],
            source=9,
            op=3,
            arg0=4096,
            arg1=0xC0,
            arg2=7 | 1 << 8,
        ),
    )
    add(
        tables.COMMUNICATORS,
        tables.COMMUNICATORS.rows(
            1, process=trainer, number=1, handle=0xC0, comm_id_hash=99, rank=1, nranks=2, created_ns=BEGIN_NS - 5
        ),
    )
    add(
        tables.CGROUPS,
        tables.CGROUPS.rows(
            2, cgroup_id=[500, 501], kernel_cgroup_id=[500, 501], node="n1", container_id=["abc", ""], pod=["train", ""]
        ),
    )
    epochs = {f"{part}_{clock}": 1 for part in ("empty", "enqueue", "drain") for clock in CLOCK_COLUMNS}
    a_ns = seconds
    add(
        tables.EPOCHS,
        tables.EPOCHS.rows(
            10,
            **(epochs | {"empty_run_ns": None}),
            session=session,
            process=trainer,
            pid=10,
            device=0,
            stream=7,
            a_ns=a_ns,
            f_ns=a_ns + 10,
            s_ns=a_ns + 30,
            r_ns=a_ns + 60,
            r_low_ns=a_ns + 60,
            r_high_ns=a_ns + 60,
            b_ns=a_ns + 100,
            e_ns=10,
            x_ns=50,
            p_ns=40,
            launches=3,
            op_set=name("cudaLaunchKernel,cudaMemcpyAsync"),
            class_key=name("launches 2^7"),
            checkpoints=np.array([5, 6], dtype="<i8").tobytes(),
        ),
    )
    add(
        tables.OFFCPU,
        tables.OFFCPU.rows(
            3, session=session, start_ns=BEGIN_NS, duration_ns=[300, 100, 200], process=trainer, pid=10, tid=11, state=5
        ),
    )
    add(
        tables.IN_FLIGHT,
        tables.IN_FLIGHT.rows(
            2,
            session=session,
            time_ns=[BEGIN_NS + 1, BEGIN_NS + SECOND_NS],
            process=trainer,
            pid=10,
            tid=11,
            source=9,
            op=3,
            since_ns=BEGIN_NS,
        ),
    )
    add(
        tables.KERNEL_LAUNCHES,
        tables.KERNEL_LAUNCHES.rows(
            10, session=session, start_ns=seconds, process=trainer, function=4096, library=name("a.so"), count=15
        ),
    )
    add(
        tables.PROBES,
        tables.PROBES.rows(
            2,
            session=session,
            library="/opt/libcudart.so.12",
            symbol=["cudaMalloc", "cudaFree"],
            is_attached=[1, 0],
            reason=["", "symbol not found"],
        ),
    )
    add(tables.SNAPSHOTS, tables.SNAPSHOTS.rows(10, session=session, time_ns=seconds, cpu_percent=94.5))
    add(
        tables.LOSSES,
        [(session, BEGIN_NS, "calls_ring_full", "", 5), (session, BEGIN_NS + SECOND_NS, "calls_ring_full", "", 2)],
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reader") / "a.db"
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS, kernel="6.18", options={"max_overhead": 2.0})
    with Writer(path, session=facts, node="n1", clock=lambda: END_NS) as writer:
        fill(writer)
    return path


@pytest.fixture
def reader(recorded: Path) -> Iterator[Reader]:
    with open_reader(recorded) as reader:
        yield reader


def test_session_tells_when_where_and_on_what(reader: Reader) -> None:
    (session,) = reader.sessions()
    assert (session.node, session.kernel, session.options) == ("n1", "6.18", '{"max_overhead": 2.0}')
    assert (session.started_ns, session.stopped_ns) == (BEGIN_NS, END_NS)


def test_processes_carry_their_rank(reader: Reader) -> None:
    assert [(p.pid, p.rank, p.world_size, p.is_target) for p in reader.processes()] == [(10, 0, 2, 1), (20, 1, 2, 1)]


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
    assert len(reader.epochs(WHOLE, process=2)) == 0
    assert reader.worst_calls(WHOLE, process=2, limit=5) == []


def test_clock_totals_sum_over_time_and_keep_the_most_threads(reader: Reader) -> None:
    (totals,) = reader.clock_totals(WHOLE)
    assert (totals.pid, totals.threads, totals.switches, totals.preemptions) == (10, 6, 50, 20)
    assert totals.clocks == Clocks(
        run_ns=7 * SECOND_NS,
        runq_ns=3 * SECOND_NS,
        throttled_ns=0,
        yielded_ns=0,
        sleep_ns=0,
        io_ns=0,
        kernel_lock_ns=0,
        stopped_ns=0,
    )


def test_clock_seconds_come_as_an_array_in_order_of_time(reader: Reader) -> None:
    seconds = reader.clock_seconds(WHOLE, process=1)
    assert seconds.dtype == arrays.CLOCK_SECOND_DTYPE
    assert np.diff(seconds["start_ns"]).tolist() == [SECOND_NS] * 9
    assert seconds["clock_ns"].sum(axis=0).tolist() == [7 * SECOND_NS, 3 * SECOND_NS, 0, 0, 0, 0, 0, 0]


def test_culprits_name_who_ran_and_keep_idle_and_unknown_apart(reader: Reader) -> None:
    found = [(c.kind, c.culprit_pid, c.culprit_name, c.ns, c.switches) for c in reader.culprits(WHOLE)]
    assert found == [
        ("runq", 77, "fluent-bit", 2_500_000_000, 30),
        ("runq", UNKNOWN_PID, "", 300_000_000, 30),
        ("runq", IDLE_PID, "", 200_000_000, 30),
    ]


def test_worst_calls_carry_account_culprit_and_waker(reader: Reader) -> None:
    calls = reader.worst_calls(WHOLE, limit=3)
    assert [call.duration_ns for call in calls] == [19_000_000, 18_000_000, 17_000_000]
    worst = calls[0]
    assert (worst.event_id, worst.name, worst.caller_library) == ("n1:20", "cudaStreamSynchronize", "libtorch_cuda.so")
    assert (worst.culprit_pid, worst.culprit_name, worst.culprit_ns) == (77, "fluent-bit", 500_000)
    assert (worst.waker_kind, worst.waker_tid, worst.waker_name) == ("thread", 12, "pt_data_pin")
    assert worst.clocks is not None
    assert worst.clocks.total_ns + (worst.residual_ns or 0) == worst.duration_ns


def test_worst_calls_of_an_operation_without_account_say_so(reader: Reader) -> None:
    (call,) = reader.worst_calls(WHOLE, source=9, op=3, limit=1)
    assert (call.name, call.bytes, call.clocks, call.culprit_pid) == ("ncclAllReduce", 4096, None, None)


def test_epochs_come_as_an_array_with_texts_by_number(reader: Reader) -> None:
    epochs = reader.epochs(WHOLE)
    assert epochs.dtype == arrays.EPOCH_DTYPE
    assert len(epochs) == 10
    assert (epochs["b_ns"] - epochs["a_ns"] == epochs["e_ns"] + epochs["x_ns"] + epochs["p_ns"]).all()
    assert epochs["empty_clock_ns"][0].tolist() == [arrays.NOT_RECORDED, 1, 1, 1, 1, 1, 1, 1]
    assert epochs["drain_clock_ns"][0].tolist() == [1] * 8
    assert epochs["checkpoint_ns"][0].tolist() == [5, 6, 0, 0, 0, 0, 0, 0]
    assert reader.texts(epochs["op_set"])[int(epochs["op_set"][0])] == "cudaLaunchKernel,cudaMemcpyAsync"


def test_smaller_facts_are_answered(reader: Reader) -> None:
    assert [i.duration_ns for i in reader.offcpu(WHOLE, limit=2)] == [300, 200]
    assert {i.state for i in reader.offcpu(WHOLE, limit=2)} == {"sleep"}
    (open_call,) = reader.in_flight(WHOLE)
    assert (open_call.name, open_call.time_ns - open_call.since_ns) == ("ncclAllReduce", SECOND_NS)
    (kernel,) = reader.kernel_launches(WHOLE)
    assert (kernel.name, kernel.short_name, kernel.library, kernel.count) == ("gemm(int)", "gemm", "a.so", 150)
    assert [(p.symbol, p.reason) for p in reader.missing_probes()] == [("cudaFree", "symbol not found")]
    assert [s.cpu_percent for s in reader.snapshots(WHOLE)] == [94.5] * 10
    assert [(loss.counter, loss.count) for loss in reader.losses()] == [("calls_ring_full", 7)]
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


def test_reader_cannot_write(reader: Reader) -> None:
    for sql in ("DELETE FROM raw_events", "CREATE TABLE t(a)", "PRAGMA user_version = 5"):
        with pytest.raises((apsw.ReadOnlyError, apsw.SQLError)):
            reader.connection.execute(sql)


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


def test_missing_file_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(NoDatabaseError) as caught:
        open_reader(tmp_path / "none.db")
    assert "ingero trace" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"x" * 4096)
    with pytest.raises(NotADatabaseError) as caught:
        open_reader(tmp_path / "a.db")
    assert ".recover" in caught.value.hint


def test_damaged_database_says_so(tmp_path: Path, recorded: Path) -> None:
    damaged = tmp_path / "a.db"
    content = bytearray(recorded.read_bytes())
    content[100:4096] = b"\xff" * 3996
    damaged.write_bytes(content)
    with pytest.raises(NotADatabaseError):
        open_reader(damaged)


def test_other_sqlite_databases_are_refused(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "a.db"))
    db.execute("CREATE TABLE customers(id)")
    db.close()
    with pytest.raises(ForeignDatabaseError):
        open_reader(tmp_path / "a.db")


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


def as_nobody(path: Path) -> str:
    """What somebody without any rights gets from opening `path`: a count of events, or the error's name."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            with open_reader(path) as reader:
                answer = str(reader.connection.execute("SELECT count(*) FROM events").fetchall()[0][0])
        except Exception as error:
            answer = type(error).__name__
        os.write(write_end, answer.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def in_log_mode(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    list(db.execute("PRAGMA journal_mode = wal"))
    return db


def test_file_on_read_only_storage_is_read_without_its_log(recorded: Path, shelf: Path) -> None:
    copy = Path(shutil.copy(recorded, shelf / "a.db"))
    in_log_mode(copy).close()
    copy.chmod(0o444)
    shelf.chmod(0o555)
    assert as_nobody(copy) == "54"
    assert [file.name for file in shelf.iterdir()] == ["a.db"]


def test_log_that_cannot_be_read_is_an_error_and_not_a_gap(recorded: Path, shelf: Path, tmp_path: Path) -> None:
    live = Path(shutil.copy(recorded, tmp_path / "a.db"))
    db = in_log_mode(live)
    db.execute("DELETE FROM raw_events WHERE id < 10")
    for name in ("a.db", "a.db-wal"):
        Path(shutil.copy(tmp_path / name, shelf / name)).chmod(0o444)
    db.close()
    shelf.chmod(0o555)
    assert as_nobody(shelf / "a.db") == NotReadableError.__name__


def test_reading_leaves_the_file_as_it_is(recorded: Path) -> None:
    before = (recorded.read_bytes(), recorded.stat().st_mtime_ns)
    opened = open_database(recorded)
    assert opened.has_exact_totals
    assert opened.older_version == ""
    opened.db.execute("SELECT count(*) FROM events").fetchall()
    opened.db.close()
    assert (recorded.read_bytes(), recorded.stat().st_mtime_ns) == before
    assert [file.name for file in recorded.parent.iterdir()] == ["a.db"]
