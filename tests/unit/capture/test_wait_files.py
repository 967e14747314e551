"""What threads of others wait for: the same from the sandbox as here and now, and no proof where nobody answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ingero.capture.foreign.readers import ForeignReaders, nursery
from ingero.capture.stacks.halted_processes import WaitFollower
from ingero.discover import waiting
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.pipe_ends import PipeEnds
from ingero.discover.wait_files import OpenPipes, WaitFiles
from ingero.discover.waiting import Wait
from ingero.store.records import HaltLevel
from tests.unit.fake_proc import FIRST_PID, FakeProc, call

_GONE = 2**22 + 1
_WAITING = """
import sys, threading
lock = threading.Lock()
lock.acquire()
threading.Thread(target=lock.acquire, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def foreign() -> Iterator[ForeignReaders]:
    with nursery() as makes, ForeignReaders(makes) as foreign:
        yield foreign


@pytest.fixture(scope="module")
def waits() -> Iterator[int]:
    """A process of two threads, of which one waits for a pipe of ours and one for a lock."""
    with subprocess.Popen([sys.executable, "-c", _WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        while not all(one and one.is_blocked for one in MemoryFiles().positions(process.pid, _threads(process.pid))):
            time.sleep(0.01)
        yield process.pid
        process.kill()


def _threads(pid: int) -> list[int]:
    return sorted(int(one.name) for one in Path(f"/proc/{pid}/task").iterdir())


def test_waits_are_read_alike(foreign: ForeignReaders, waits: int) -> None:
    tids = [*_threads(waits), _GONE]
    found = foreign.waits.waits(waits, tids)
    assert found == WaitFiles().waits(waits, tids)
    assert [one and one.kind for one in found] == [waiting.PIPE_READ, waiting.FUTEX, None]
    assert foreign.waits.waits(_GONE, [_GONE]) == [None]


def test_ends_of_pipes_are_found_alike(foreign: ForeignReaders, waits: int) -> None:
    (wait,) = foreign.waits.waits(waits, [waits])
    assert wait
    pids = [waits, os.getpid(), _GONE]
    assert foreign.waits.pipes(pids, "none").found == WaitFiles().pipes(pids, "none").found
    ends = PipeEnds(files=foreign.waits).find(wait.target, [waits])
    assert ends == PipeEnds().find(wait.target, [waits])
    assert (ends.readers, ends.writers) == ((waits,), (os.getpid(),))
    assert foreign.waits.folder(waits) == WaitFiles().folder(waits) == str(Path.cwd())
    assert foreign.waits.shared_memory(_GONE) is None
    here, there = WaitFiles().shared_memory(waits), foreign.waits.shared_memory(waits)
    assert (here and here[0]) == (there and there[0])


def test_of_who_does_not_answer_it_is_known_that_he_waits(
    monkeypatch: pytest.MonkeyPatch, foreign: ForeignReaders, waits: int
) -> None:
    foreign.drops()
    monkeypatch.setattr("ingero.capture.foreign.memory_files._WALL_S", 0.0)
    assert foreign.waits.pipes([waits, os.getpid()], "none").missing == {waits, os.getpid()}
    monkeypatch.undo()
    (wait,) = foreign.waits.waits(waits, [waits])
    assert wait == waiting.unanswered(waits, waits)
    assert wait
    assert (wait.kind, wait.state) == (waiting.OTHER, "S")
    assert foreign.waits.folder(waits) == ""
    assert foreign.drops()["memory_files_given_up"] >= 3
    while not foreign.waits.folder(waits):
        time.sleep(0.05)
    assert foreign.waits.pipes([waits], "none").missing == set()


def test_what_no_opener_of_ours_says_is_no_wait() -> None:
    content = waiting.wait_content(Wait(state="S", kind=waiting.FUTEX, switches=3, target="x" * 4000))
    assert waiting.wait_from(content).target == "x" * 512
    for damaged in (content[:-1], [*content[:3], "yes", *content[4:]], [*content[:4], True, *content[5:]]):
        with pytest.raises(ValueError, match=r"^$"):
            waiting.wait_from(damaged)


class _Withholding(WaitFiles):
    """Where one process does not answer."""

    def __init__(self, proc: Path, pid: int) -> None:
        super().__init__(proc)
        self._pid = pid

    def waits(self, pid: int, tids: Sequence[int]) -> list[Wait | None]:
        return (
            [waiting.unanswered(pid, tid, self._proc) for tid in tids] if pid == self._pid else super().waits(pid, tids)
        )

    def pipes(self, pids: Sequence[int], wanted: str) -> OpenPipes:
        found = super().pipes([pid for pid in pids if pid != self._pid], wanted)
        return OpenPipes(found.found, frozenset({self._pid}.intersection(pids)))


@pytest.mark.parametrize("withholds", [False, True])
def test_nothing_is_proved_by_who_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, withholds: bool
) -> None:
    """The other end of the pipe may be his."""
    monkeypatch.setattr(waiting.platform, "machine", lambda: "x86_64")
    proc = FakeProc(tmp_path / "proc")
    trainer, other = FIRST_PID, FIRST_PID + 1
    proc.process(trainer, call(0, 5), files={5: ("pipe:[77]", "flags:\t0100000\n")})
    proc.process(other, call(232, 4), files={3: ("pipe:[78]", "flags:\t0100000\n")})
    follower = WaitFollower(proc.folder, files=_Withholding(proc.folder, other if withholds else 0))
    for _ in range(2):
        halt = follower.follow(trainer, [trainer])
        follower.end_pass()
    assert halt
    assert halt.level is (HaltLevel.NAMED if withholds else HaltLevel.NEVER)
