"""Whose Python line a call from a thread without Python frames gets: that of the thread that provably waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero.events import THREAD_STATES
from ingero.ops import BY_NAME, Source
from ingero.serve.text.breakdown import breakdown_text
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SessionFacts
from ingero.store.waiters import Waiter, Waiters
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

START_NS = 1_790_000_000_000_000_000
MS = 1_000_000
PID, MAIN, ENGINE, OTHER = 100, 100, 105, 107
LAUNCH = BY_NAME["cudaLaunchKernel"]
NATIVE, WAITING = 11, 12
SLEEP, RUN = THREAD_STATES.index("sleep"), THREAD_STATES.index("run")
Fill = Callable[[Writer], None]


def sleep(
    writer: Writer, begin_ms: float, end_ms: float, *, tid: int = MAIN, waker: int = ENGINE, kind: int = 1
) -> None:
    begin_ns, length_ns = START_NS + int(begin_ms * MS), int((end_ms - begin_ms) * MS)
    row = tables.OFFCPU.rows(
        1, session=writer.session, start_ns=begin_ns, duration_ns=length_ns + 1000, process=1, pid=PID, tid=tid,
        woken_ns=begin_ns + length_ns, waker_kind=kind, waker_pid=PID, waker_tid=waker,
    )  # fmt: skip
    writer.append(tables.OFFCPU, row)


def look(
    writer: Writer,
    at_ms: float,
    *,
    tid: int = MAIN,
    state: int = SLEEP,
    stack_hash: int = WAITING,
    weight_ms: int = 250,
) -> None:
    row = tables.SAMPLES.rows(
        1, session=writer.session, time_ns=START_NS + int(at_ms * MS), process=1, pid=PID, tid=tid, state=state,
        weight_ns=weight_ms * MS, stack_hash=stack_hash,
    )  # fmt: skip
    writer.append(tables.SAMPLES, row)


def call(writer: Writer, at_ms: float, *, tid: int = ENGINE, stack_hash: int = NATIVE) -> None:
    row = tables.EVENTS.rows(
        1, session=writer.session, start_ns=START_NS + int(at_ms * MS), duration_ns=MS, process=1, pid=PID, tid=tid,
        source=int(Source.CUDA), op=LAUNCH.code, stack_hash=stack_hash, comm=writer.intern("pt_autograd_0"),
    )  # fmt: skip
    writer.append(tables.EVENTS, row)


def stacks(writer: Writer, *, is_whole: bool = True, called_from: Sequence[str] = ()) -> None:
    native = [{"ip": "0x1", "symbol": "engine_run", "file": "libtorch.so"}]
    callers = [{"py_file": file, "py_line": 5, "py_func": "launcher"} for file in called_from]
    python = [{"py_file": "/srv/me/train.py", "py_line": 58, "py_func": "step"}]
    for number, frames, whole in ((NATIVE, [*native, *callers], is_whole), (WAITING, python, True)):
        row = tables.STACKS.rows(1, hash=number, ips="[]", frames=json.dumps(frames), is_python_whole=whole)
        writer.append(tables.STACKS, row)


@contextmanager
def recorded(folder: Path, *fill: Fill, is_whole: bool = True, called_from: Sequence[str] = ()) -> Iterator[Reader]:
    path = folder / "recording.db"
    facts = SessionFacts(uuid="u", started_ns=START_NS)
    with Writer(path, session=facts, node="node", clock=lambda: START_NS) as writer:
        number = writer.process_id(PID, START_NS)
        assert number == 1
        row = tables.PROCESSES.rows(
            1, process=1, session=writer.session, pid=PID, start_ns=START_NS, name="python", is_traced=1
        )
        writer.append(tables.PROCESSES, row)
        stacks(writer, is_whole=is_whole, called_from=called_from)
        row = tables.OP_STATS.rows(
            1, session=writer.session, start_ns=START_NS, process=1, source=int(Source.CUDA), op=LAUNCH.code, count=2,
            sum_ns=2 * MS, max_ns=MS,
        )  # fmt: skip
        writer.append(tables.OP_STATS, row)
        for one in fill:
            one(writer)
    with open_reader(path) as opened:
        yield opened


def waiter(reader: Reader, at_ms: float) -> Waiter | None:
    window = reader.window(None, START_NS)
    assert window
    begin_ns = START_NS + int(at_ms * MS)
    return Waiters(reader, window, process=1).of(ENGINE, begin_ns, begin_ns + MS)


def test_the_thread_that_slept_until_the_caller_woke_it_waited_for_the_call(tmp_path: Path) -> None:
    with recorded(tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 30), lambda w: call(w, 20)) as reader:
        assert waiter(reader, 20) == Waiter(PID, MAIN, WAITING)


def test_a_look_because_another_thread_called_tells_who_waits_and_stands_for_no_time(tmp_path: Path) -> None:
    with recorded(
        tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 30, weight_ms=0), lambda w: call(w, 20)
    ) as reader:
        assert waiter(reader, 20) == Waiter(PID, MAIN, WAITING)
        window = reader.window(None, START_NS)
        assert window
        assert reader.samples(window) == []
        assert len(reader.sample_rows(window)) == 0


@pytest.mark.parametrize("at_ms", [9, 49.5, 60])
def test_a_call_that_the_sleep_does_not_span_was_not_waited_for(at_ms: float, tmp_path: Path) -> None:
    with recorded(tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 30), lambda w: call(w, 20)) as reader:
        assert waiter(reader, at_ms) is None


def test_a_sleep_in_which_nobody_looked_names_no_line(tmp_path: Path) -> None:
    with recorded(
        tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 9), lambda w: look(w, 51), lambda w: call(w, 20)
    ) as reader:
        assert waiter(reader, 20) is None


def test_a_look_at_a_thread_that_ran_names_no_line(tmp_path: Path) -> None:
    with recorded(
        tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 30, state=RUN), lambda w: call(w, 20)
    ) as reader:
        assert waiter(reader, 20) is None


@pytest.mark.parametrize(("waker", "kind"), [(OTHER, 1), (0, 3)])
def test_a_sleep_that_something_else_ended_was_not_for_the_caller(waker: int, kind: int, tmp_path: Path) -> None:
    with recorded(
        tmp_path, lambda w: sleep(w, 10, 50, waker=waker, kind=kind), lambda w: look(w, 30), lambda w: call(w, 20)
    ) as reader:
        assert waiter(reader, 20) is None


def test_of_two_threads_that_waited_none_is_chosen(tmp_path: Path) -> None:
    with recorded(
        tmp_path,
        lambda w: sleep(w, 10, 50),
        lambda w: sleep(w, 15, 45, tid=OTHER),
        lambda w: look(w, 30),
        lambda w: look(w, 30, tid=OTHER),
        lambda w: call(w, 20),
    ) as reader:
        assert waiter(reader, 20) is None


def breakdown(reader: Reader, *, whole_stacks: bool = False) -> str:
    window = reader.window(None, START_NS)
    assert window
    return "\n".join(breakdown_text(reader, window, whole_stacks=whole_stacks))


def test_the_breakdown_shows_the_waiting_line_marked_as_such(tmp_path: Path) -> None:
    with recorded(
        tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 30), lambda w: call(w, 20), lambda w: call(w, 60)
    ) as reader:
        text, whole = breakdown(reader), breakdown(reader, whole_stacks=True)
    mark = "[Python, of the thread that waits: 100/100]"
    assert f"cudaLaunchKernel 1.00 ms at train.py:58 in step {mark} (1 of 2 calls recorded)" in text
    assert "in a thread without Python frames, in engine_run (libtorch.so) (1 of 2 calls recorded)" in text
    assert f"{mark} /srv/me/train.py:58 in step()" in whole


def test_a_call_from_a_librarys_python_alone_is_given_the_waiting_line(tmp_path: Path) -> None:
    files = ("<string>", "/srv/venv/lib/python3.12/site-packages/torch/_inductor/x.py")
    with recorded(
        tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 30), lambda w: call(w, 20), called_from=files
    ) as reader:
        text = breakdown(reader)
    assert "at train.py:58 in step [Python, of the thread that waits: 100/100]" in text


def test_a_call_from_the_users_own_python_keeps_its_line(tmp_path: Path) -> None:
    files = ("/srv/me/hooks.py",)
    with recorded(
        tmp_path,
        lambda w: sleep(w, 10, 50),
        lambda w: look(w, 30),
        lambda w: call(w, 20),
        called_from=files,
    ) as reader:
        text = breakdown(reader)
    assert "at hooks.py:5 in launcher" in text
    assert "that waits" not in text


def test_a_call_whose_own_frames_are_unknown_is_given_no_other_threads_line(tmp_path: Path) -> None:
    with recorded(
        tmp_path, lambda w: sleep(w, 10, 50), lambda w: look(w, 30), lambda w: call(w, 20), is_whole=False
    ) as reader:
        text = breakdown(reader)
    assert "that waits" not in text
    assert "at a Python line that could not be read, in engine_run" in text
