"""GPU samples, CPUs and scheduling, as a reader gives them and as users ask the views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ingero.store import machine
from ingero.store.errors import NotRecordedError
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 * SECOND_NS


def at(second: int) -> int:
    return BEGIN_NS + second * SECOND_NS


def window(begin: int, end: int) -> Window:
    return Window(begin_ns=at(begin), end_ns=at(end))


def record(path: Path, *, begin: int, nice: int) -> None:
    """A recording with two scheduling rows of process 10, one of a culprit, a sample of a GPU and a CPU second."""
    with Writer(path, session=SessionFacts(uuid=f"u{begin}", started_ns=at(begin)), node="n") as writer:
        session, process = writer.session, writer.process_id(10, 1)
        for second, number, pid, value in ((0, process, 10, 0), (0, 0, 99, -5), (5, process, 10, nice)):
            row = tables.SCHEDULING.rows(
                1, session=session, time_ns=at(begin + second), process=number, pid=pid, tid=pid, nice=value,
                policy="other", cpus_allowed="0-3,8",
            )  # fmt: skip
            writer.append(tables.SCHEDULING, row)
        sample = tables.GPU_SAMPLES.rows(
            1, session=session, time_ns=at(begin + 1), uuid="GPU-a", gpu_index=0, gpu_percent=97, throttle_reasons=0x45,
            processes="[[7,50],[8,null]]",
        )  # fmt: skip
        writer.append(tables.GPU_SAMPLES, sample)
        cpus = tables.CPU_SECONDS.rows(
            1, session=session, time_ns=at(begin + 1), elapsed_ns=SECOND_NS, tick_ns=10_000_000,
            cpus="[[0,90,4,3,2,1],[8,0,100,0,0,0]]",
        )  # fmt: skip
        writer.append(tables.CPU_SECONDS, cpus)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    record(tmp_path / "a.db", begin=0, nice=7)
    return tmp_path / "a.db"


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    with open_reader(path) as opened:
        yield opened


def nices(rows: list[machine.Scheduling]) -> list[tuple[int, int]]:
    return [(one.pid, one.nice) for one in rows]


def test_what_was_in_force_before_the_window_is_part_of_the_answer(reader: Reader) -> None:
    assert nices(reader.scheduling(window(3, 6))) == [(10, 0), (99, -5), (10, 7)]
    assert nices(reader.scheduling(window(6, 9))) == [(99, -5), (10, 7)]
    assert nices(reader.scheduling(window(5, 9))) == [(99, -5), (10, 7)]


def test_scheduling_of_one_process_leaves_out_culprits(reader: Reader) -> None:
    (row,) = reader.scheduling(window(6, 9), process=1)
    assert (row.process, row.pid, row.cpus_allowed, row.cpu_weight, row.quota_us) == (1, 10, "0-3,8", None, None)


def test_what_an_earlier_recording_has_seen_is_not_in_force_in_the_next(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("UPDATE raw_sessions SET stopped_ns = ?, last_seen_ns = ?", (at(20), at(20)))
    db.close()
    record(path, begin=100, nice=3)
    with open_reader(path) as reader:
        assert nices(reader.scheduling(window(101, 103))) == [(10, 0), (99, -5)]
        assert [one.time_ns for one in reader.scheduling(window(101, 103))] == [at(100)] * 2


def test_a_sample_has_its_processes_and_none_for_what_the_driver_did_not_say(reader: Reader) -> None:
    (sample,) = reader.gpu_samples(window(0, 9))
    assert (sample.gpu_percent, sample.memory_percent, sample.throttle_reasons) == (97, None, 0x45)
    assert sample.processes == ((7, 50), (8, None))


def test_the_view_names_the_throttle_reasons_without_that_the_gpu_is_idle(reader: Reader) -> None:
    (row,) = reader.connection.execute("SELECT gpu_uuid, throttled_by FROM gpu_samples").fetchall()
    assert row == ("GPU-a", "power cap, thermal (hardware)")


def test_cpu_seconds_are_an_element_for_each_cpu(reader: Reader) -> None:
    cpus = reader.cpu_seconds(window(0, 9))
    assert cpus["cpu"].tolist() == [0, 8]
    assert cpus["busy_ns"].tolist() == [900_000_000, 0]
    assert [int(cpus[name][0]) for name in ("idle_ns", "iowait_ns", "irq_ns", "steal_ns")] == [
        40_000_000, 30_000_000, 20_000_000, 10_000_000,
    ]  # fmt: skip


def test_the_view_of_cpu_seconds_says_the_same(reader: Reader) -> None:
    columns = ", ".join(name.replace("time_ns", "timestamp") for name in machine.CPU_SECOND_DTYPE.names or ())
    rows = reader.connection.execute(f"SELECT {columns} FROM cpu_seconds").fetchall()
    assert rows == [tuple(row) for row in reader.cpu_seconds(window(0, 9)).tolist()]


def test_without_samples_the_arrays_are_empty(reader: Reader) -> None:
    assert len(reader.cpu_seconds(window(50, 60))) == 0
    assert reader.gpu_samples(window(50, 60)) == []


def test_a_file_without_the_table_says_that_it_was_not_recorded(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("DROP VIEW gpu_samples; DROP TABLE raw_gpu_samples")
    db.close()
    with open_reader(path) as reader:
        assert not reader.is_recorded("raw_gpu_samples")
        with pytest.raises(NotRecordedError, match="gpu samples: not recorded by the build"):
            reader.gpu_samples(window(0, 9))
