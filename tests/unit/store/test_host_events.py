"""Host events as compact records: what a stored row of each kind says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ingero.events import HOST_MANY, HostFlag
from ingero.ops import HostOp, IoOp, Source, TcpOp
from ingero.store.host_events import HostEvent
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

BEGIN_NS = 1_790_000_000_000_000_000
MS = 1_000_000
WHOLE = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 1000 * MS)


def stored(folder: Path, *events: dict[str, tables.Column]) -> list[HostEvent]:
    """The records of rows of raw_events; start_ns is in ms since the begin, detail and comm are texts."""
    path = folder / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=BEGIN_NS), node="n") as writer:
        for event in events:
            texts = {name: writer.intern(str(event.get(name, ""))) for name in ("comm", "detail")}
            row = {"pid": 7, "tid": 7, **event, **texts, "start_ns": BEGIN_NS + int(str(event["start_ns"])) * MS}
            writer.append(tables.EVENTS, tables.EVENTS.rows(1, session=writer.session, **row))
    with open_reader(path) as reader:
        return reader.host_events(WHOLE)


def host(op: HostOp, start_ms: int = 1, **columns: tables.Column) -> dict[str, tables.Column]:
    return {"source": int(Source.HOST), "op": int(op), "start_ns": start_ms, **columns}


def a_signal(number: int, start_ms: int, pid: int = 7) -> dict[str, tables.Column]:
    return host(HostOp.STOP_SIGNAL, start_ms, pid=pid, arg1=30, arg2=number, comm="dockerd")


def test_a_stop_lasts_until_the_process_is_continued(tmp_path: Path) -> None:
    stop, go = stored(tmp_path, a_signal(signal.SIGSTOP, 10), a_signal(signal.SIGCONT, 510))
    assert (stop.name, stop.code, stop.other_pid, stop.comm) == ("stop_signal", signal.SIGSTOP, 30, "dockerd")
    assert (stop.duration_ns, go.duration_ns) == (500 * MS, None)


def test_a_stop_lasts_until_its_own_process_is_killed(tmp_path: Path) -> None:
    rows = (a_signal(signal.SIGTSTP, 10), a_signal(signal.SIGCONT, 20, pid=8), a_signal(signal.SIGKILL, 40))
    assert [one.duration_ns for one in stored(tmp_path, *rows)] == [30 * MS, None, None]


def test_a_stop_that_has_not_ended_has_no_length(tmp_path: Path) -> None:
    (stop,) = stored(tmp_path, a_signal(signal.SIGSTOP, 10))
    assert stop.duration_ns is None


@pytest.mark.parametrize(("number", "limit"), [(0, None), (1, "host"), (2, "cgroup")])
def test_an_oom_kill_says_victim_size_and_whose_memory_was_short(
    tmp_path: Path, number: int, limit: str | None
) -> None:
    (kill,) = stored(tmp_path, host(HostOp.OOM_KILL, arg0=4096, arg1=99, arg2=number, comm="eater"))
    assert (kill.other_pid, kill.size_bytes, kill.limit, kill.comm) == (99, 4096, limit, "eater")


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (3 << 8, 3), (9, -9), (11 | 0x80, -11)], ids=["0", "3", "killed", "left a core"]
)
def test_an_exit_says_its_code_or_minus_the_signal(tmp_path: Path, status: int, code: int) -> None:
    (end,) = stored(tmp_path, host(HostOp.PROCESS_EXIT, arg2=status))
    assert end.code == code


@pytest.mark.parametrize(("flags", "limit"), [(0, "host"), (int(HostFlag.MEMCG_LIMIT), "cgroup")])
def test_reclaim_says_how_long_and_whose_memory_was_short(tmp_path: Path, flags: int, limit: str) -> None:
    (one,) = stored(tmp_path, host(HostOp.DIRECT_RECLAIM, duration_ns=5 * MS, arg0=1 << 20, flags=flags))
    assert (one.duration_ns, one.size_bytes, one.limit) == (5 * MS, 1 << 20, limit)


def test_block_io_says_device_bytes_and_both_times(tmp_path: Path) -> None:
    columns = {"duration_ns": 3 * MS, "arg0": 4096, "arg1": 77, "arg2": 254 << 20 | 1, "queue_ns": 2 * MS}
    flags = int(HostFlag.IN_PAGE_FAULT)
    (one,) = stored(tmp_path, {"source": 5, "op": int(IoOp.READ), "start_ns": 1, "flags": flags, **columns})
    assert (one.name, one.size_bytes, one.sector, one.device) == ("block_read", 4096, 77, 254 << 20 | 1)
    assert (one.duration_ns, one.queue_ns, one.is_page_fault, one.is_kernel_thread) == (3 * MS, 2 * MS, True, False)


@pytest.mark.parametrize(("flags", "count"), [(0, 1), (int(HostFlag.ONE_OF_MANY), HOST_MANY)])
def test_a_request_says_how_many_it_stands_for(tmp_path: Path, flags: int, count: int) -> None:
    (one,) = stored(tmp_path, {"source": 5, "op": int(IoOp.WRITE), "start_ns": 1, "flags": flags})
    assert one.stands_for == count


def test_a_retransmit_says_ports_segments_and_addresses(tmp_path: Path) -> None:
    columns = {"arg0": 2896, "arg1": 5000 << 16 | 443, "arg2": 1 | 2 << 16, "detail": "10.0.0.1 > 10.0.0.2"}
    (one,) = stored(tmp_path, {"source": 6, "op": int(TcpOp.RETRANSMIT), "start_ns": 1, **columns})
    assert (one.size_bytes, one.ports, one.segments, one.addresses) == (2896, (5000, 443), 2, "10.0.0.1 > 10.0.0.2")


def test_calls_are_no_host_events_and_a_window_ends_before_its_end(tmp_path: Path) -> None:
    call = {"source": 1, "op": 5, "start_ns": 1}
    assert stored(tmp_path, call, host(HostOp.PROCESS_EXEC, 1000), host(HostOp.PROCESS_EXEC, 999)) != []
    with open_reader(tmp_path / "a.db") as reader:
        assert [one.start_ns for one in reader.host_events(WHOLE)] == [BEGIN_NS + 999 * MS]
        assert reader.host_events(WHOLE, source=Source.IO) == []


def test_events_of_one_process_are_those_that_befell_it(tmp_path: Path) -> None:
    rows = (host(HostOp.PROCESS_EXEC, 1, process=3), host(HostOp.PROCESS_EXEC, 2, process=4))
    assert len(stored(tmp_path, *rows)) == 2
    with open_reader(tmp_path / "a.db") as reader:
        assert [one.process for one in reader.host_events(WHOLE, process=4)] == [4]
