"""Processes of the sandbox: what they may not do, and what becomes of those that try."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ingero.capture.loop.priority import preferred
from ingero.sandbox import rights
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Nursery, ProcessKind, Task
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess, SpareProcess

_ROOM = 64 << 20
_KINDS = {"ingero-reader": frozenset[int](), "ingero-opener": rights.to_open()}


def tasks() -> Mapping[str, Task]:
    """What a hostile file might have a reader do."""
    return {
        "who": lambda _: Message(
            {
                "uid": os.getuid(),
                "pid": os.getpid(),
                "rights": rights._capabilities(),
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
            }
        ),
        "count": lambda question: Message({"files": _open_files(), "bytes": len(question.data)}),
        "sleep": lambda _: time.sleep(1000) or Message({}),  # type: ignore[func-returns-value]
        "spin": _spin,
        "spin_a_while": _spin_a_while,
        "grow": lambda _: Message({"size": len(b"a" * (4 * _ROOM))}),
        "raise": lambda _: Message({"never": 1 // 0}),
        "fork": lambda _: Message({"pid": os.fork()}),
        "write": lambda question: Message({"written": os.write(question.files[0], b"a")}),
        "open": lambda question: Message({}, files=[os.open(question.content["path"], os.O_RDONLY)]),
        "flood": lambda _: Message({"text": "a" * (16 << 20)}),
        "end": lambda _: os._exit(0),
    }


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _spin_a_while(_question: Message) -> Message:
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + 0.75:  # stands for waiting for a CPU
        pass
    return Message({"spun_s": time.monotonic() - begin_s})


def _spin(_question: Message) -> Message:
    while True:
        pass


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Makes processes of those tasks, with rights and without."""
    kinds = {
        "reader": ProcessKind(name="ingero-reader", tasks=tasks, memory_bytes=_ROOM),
        "opener": ProcessKind(name="ingero-opener", tasks=tasks, capabilities=rights.to_open()),
    }
    with Nursery(kinds) as nursery:
        yield nursery


@pytest.fixture
def reader(nursery: Nursery) -> Iterator[SandboxedProcess]:
    """One without rights."""
    process = SandboxedProcess(nursery, "reader")
    yield process
    process.close()


def test_a_reader_has_no_rights(reader: SandboxedProcess) -> None:
    who = reader.ask("who", cpu_s=1, wall_s=30).content
    assert who["rights"] == 0
    assert who["uid"] != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have a higher priority")
def test_nobody_reads_foreign_files_with_the_priority_of_the_agent() -> None:
    kinds = {name: ProcessKind(name=name, tasks=tasks, capabilities=kept) for name, kept in _KINDS.items()}
    with preferred(), Nursery(kinds) as nursery:
        for name in kinds:
            process = SandboxedProcess(nursery, name)
            assert process.ask("who", cpu_s=1, wall_s=30).content["nice"] == 0
            process.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights that can be kept")
def test_an_opener_has_the_rights_that_opening_takes_and_no_others(nursery: Nursery) -> None:
    process = SandboxedProcess(nursery, "opener")
    assert process.ask("who", cpu_s=1, wall_s=30).content["rights"] == sum(1 << one for one in rights.to_open())
    process.close()


@pytest.mark.parametrize("task", ["sleep", "spin", "end", "flood"])
def test_who_gives_no_answer_is_replaced(reader: SandboxedProcess, task: str) -> None:
    before = reader.ask("who", cpu_s=1, wall_s=30).content["pid"]
    with pytest.raises(NoAnswerError):
        reader.ask(task, cpu_s=0.1, wall_s=0.5)
    assert reader.ask("who", cpu_s=1, wall_s=30).content["pid"] != before
    assert reader.ended == 1
    end = time.monotonic() + 30
    while Path(f"/proc/{before}").exists():  # the kernel needs a moment to end it
        assert time.monotonic() < end


def test_who_only_waits_for_a_cpu_is_waited_for_and_who_sleeps_is_not(reader: SandboxedProcess) -> None:
    reader.ask("who", cpu_s=1, wall_s=30)
    found = reader.ask("spin_a_while", cpu_s=30, wall_s=0.5, is_patient=True)
    assert found.content["spun_s"] >= 0.75
    with pytest.raises(NoAnswerError):
        reader.ask("spin_a_while", cpu_s=30, wall_s=0.5)
    with pytest.raises(NoAnswerError, match=r"within 0\.5 s"):
        reader.ask("sleep", cpu_s=1, wall_s=0.5, is_patient=True)


@pytest.mark.parametrize("task", ["sleep", "spin"])
def test_who_is_to_end_waits_for_nobody_any_more(reader: SandboxedProcess, task: str) -> None:
    """Else this takes an hour. What is answered at once is answered."""
    is_over = iter([False, False])
    with pytest.raises(NoAnswerError):
        reader.ask(task, cpu_s=3600, wall_s=3600, is_patient=True, is_over=lambda: next(is_over, True))
    assert reader.ask("who", cpu_s=1, wall_s=30).content["pid"]
    assert reader.ask("who", cpu_s=1, wall_s=30, is_over=lambda: True).content["pid"]


def test_who_is_not_asked_is_ended_and_there_again_when_asked(reader: SandboxedProcess) -> None:
    before = reader.ask("who", cpu_s=1, wall_s=30).content["pid"]
    reader.close_if_idle(60)
    assert reader.ask("who", cpu_s=1, wall_s=30).content["pid"] == before
    reader.close_if_idle(0)
    assert reader.ask("who", cpu_s=1, wall_s=30).content["pid"] != before
    assert reader.ended == 0


def test_one_process_does_for_two_who_do_not_ask_at_once(reader: SandboxedProcess, nursery: Nursery) -> None:
    own = SandboxedProcess(nursery, "reader")
    spare = SpareProcess(reader, own)
    theirs = reader.ask("who", cpu_s=1, wall_s=30).content["pid"]
    assert spare.ask("who", cpu_s=1, wall_s=30).content["pid"] == theirs
    assert own.generation == 0
    is_held, is_asked = threading.Event(), threading.Event()

    def hold() -> None:
        with reader.lock:
            is_held.set()
            is_asked.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(60)
    answers: list[int] = []
    asker = threading.Thread(target=lambda: answers.append(spare.ask("who", cpu_s=1, wall_s=30).content["pid"]))
    asker.start()
    assert spare.ask("who", cpu_s=1, wall_s=30).content["pid"] != theirs
    is_asked.set()
    holder.join()
    asker.join()
    assert answers == [theirs], "another thread waits: the one of our own is kept free"
    assert spare.ask("who", cpu_s=1, wall_s=30).content["pid"] == theirs
    own.close()


def test_cpu_time_has_a_limit_of_its_own(reader: SandboxedProcess) -> None:
    with pytest.raises(NoAnswerError, match="CPU time"):
        reader.ask("spin", cpu_s=0.1, wall_s=600)


@pytest.mark.parametrize("task", ["grow", "raise", "fork"])
def test_what_it_may_not_do_is_its_answer(reader: SandboxedProcess, task: str) -> None:
    with pytest.raises(RefusedAnswerError):
        reader.ask(task, cpu_s=1, wall_s=30)
    assert reader.ended == 0


def test_nothing_is_written_even_where_a_file_is_open(reader: SandboxedProcess, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises((RefusedAnswerError, NoAnswerError)):
        reader.ask("write", files=[file.fileno()], cpu_s=1, wall_s=30)
    assert (tmp_path / "file").stat().st_size == 0


def test_open_files_come_back_and_none_stay(reader: SandboxedProcess) -> None:
    count = reader.ask("count", cpu_s=1, wall_s=30).content["files"]
    for _ in range(20):
        with open("/proc/self/stat", "rb") as given:  # noqa: PTH123 # pathlib would do as well
            answer = reader.ask("open", {"path": "/proc/self/comm"}, files=[given.fileno()], cpu_s=1, wall_s=30)
        assert os.read(answer.files[0], 64).strip() == b"ingero-reader"
        os.close(answer.files[0])
    assert reader.ask("count", cpu_s=1, wall_s=30).content["files"] == count


def test_data_arrives_whole(reader: SandboxedProcess) -> None:
    assert reader.ask("count", data=bytes(3 << 20), cpu_s=1, wall_s=30).content["bytes"] == 3 << 20


def test_without_a_nursery_there_is_no_answer() -> None:
    with Nursery({"reader": ProcessKind(name="ingero-reader", tasks=tasks)}) as nursery:
        process = SandboxedProcess(nursery, "reader")
    with pytest.raises(NoAnswerError, match="cannot start the process"):
        process.ask("who", cpu_s=1, wall_s=30)


def test_processes_end_with_their_nursery() -> None:
    with Nursery({"reader": ProcessKind(name="ingero-reader", tasks=tasks)}) as nursery:
        process = SandboxedProcess(nursery, "reader")
        pid = process.ask("who", cpu_s=1, wall_s=30).content["pid"]
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.close()
