"""The first traced call of a process that nobody knew counts: it is admitted by the kernel, once, if it is wanted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.attach.kernel_side import MAX_PROCESSES
from tests.integration import burst
from tests.integration.burst import Burst, run_burst
from tests.integration.callers import build_library, caller
from tests.integration.recording import Recording, record_user
from tests.integration.targets import rows, until
from tests.integration.test_process_pickup import counts
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration
ROOT = 0


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A folder that another user may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def library(public: Path) -> Path:
    return build_library(public / "lib")


@pytest.fixture(scope="module")
def program(public: Path) -> Path:
    return burst.build(public / "burst")


@pytest.fixture(scope="module")
def holder(program: Path, library: Path) -> Iterator[Burst]:
    """Has loaded the library, so that it is probed when the tracer starts."""
    process = Burst([program, library, 1, 0, 0])
    yield process
    process.kill()


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """One recording of processes that come and go: many short ones, many with threads, one that stays, one of root."""

    recording: Recording
    short: list[int]
    threaded: list[int]
    staying: int
    of_root: int


@pytest.fixture(scope="module")
def admitted(holder: Burst, tmp_path_factory: pytest.TempPathFactory, library: Path, program: Path) -> Admitted:
    assert holder.pid
    pids: dict[str, list[int]] = {}

    def act(_recording: Recording) -> None:
        pids["short"] = [run_burst(program, library, threads=1, calls=7) for _ in range(50)]
        pids["threaded"] = [run_burst(program, library, threads=16, calls=3) for _ in range(40)]
        pids["staying"] = [run_burst(program, library, threads=2, calls=50, hold_ms=100)]
        pids["of_root"] = [run_burst(program, library, threads=2, calls=5, uid=ROOT)]

    recording = record_user(tmp_path_factory.mktemp("admitted"), act)
    (staying,), (of_root,) = pids["staying"], pids["of_root"]
    return Admitted(
        recording=recording, short=pids["short"], threaded=pids["threaded"], staying=staying, of_root=of_root
    )


def test_a_process_too_short_for_any_scan_is_counted_whole(admitted: Admitted) -> None:
    found = admitted.recording.counts()
    assert {pid: found.get(pid) for pid in admitted.short} == dict.fromkeys(admitted.short, 7)


def test_threads_that_call_first_at_the_same_moment_get_one_slot(admitted: Admitted) -> None:
    found = admitted.recording.counts()
    assert {pid: found.get(pid) for pid in admitted.threaded} == dict.fromkeys(admitted.threaded, 48)
    twice = "SELECT pid, count(*) FROM raw_processes GROUP BY 1 HAVING count(*) > 1"
    assert rows(admitted.recording.database, twice) == []


def test_the_account_of_an_admitted_process_adds_up(admitted: Admitted) -> None:
    ((count, spent, clocks),) = rows(
        admitted.recording.database,
        "SELECT sum(count), sum(sum_ns), sum(run_ns + runq_ns + throttled_ns + yielded_ns + sleep_ns + io_ns"
        " + uninterruptible_ns + stopped_ns) FROM raw_op_stats s JOIN raw_processes p USING (process) WHERE p.pid = ?",
        admitted.staying,
    )
    assert count == 100
    assert spent == clocks > 0


def test_processes_that_were_not_asked_for_are_not_admitted(tmp_path: Path, library: Path, program: Path) -> None:
    with caller() as target:
        target.do("load", library)
        with tracing(tmp_path, pids=[target.pid]) as tracer:
            stranger = run_burst(program, library, threads=2, calls=5)
            target.do("call", 4, 1)
    assert counts(tracer) == {target.pid: 4}
    assert stranger not in dict(rows(tracer.database, "SELECT pid, 1 FROM raw_processes"))


def test_of_one_user_only_that_users_processes_are_traced(admitted: Admitted) -> None:
    assert admitted.of_root not in admitted.recording.counts()
    assert admitted.staying in admitted.recording.counts()


@pytest.mark.usefixtures("holder")
def test_the_agent_and_its_children_are_not_traced(tmp_path: Path, library: Path, program: Path) -> None:
    children: list[int] = []

    def act(_recording: Recording) -> None:
        pid = os.fork()
        if pid == 0:
            os.execv(program, list(map(str, [program, library, 1, 5, 0])))
        os.waitpid(pid, 0)
        children.append(pid)

    traced = record_user(tmp_path, act, uid=ROOT).counts()
    assert os.getpid() not in traced
    assert children[0] not in traced


@pytest.mark.alone  # it takes every slot, also of agents that trace all users
def test_processes_without_a_slot_are_named_and_traced_when_there_is_room(
    tmp_path: Path, library: Path, program: Path
) -> None:
    more = 10
    crowd = [Burst([program, library, 1, 2, 0]) for _ in range(MAX_PROCESSES + more)]

    def act(recording: Recording) -> None:
        def is_traced(one: Burst) -> bool:
            return recording.recorder.traced_processes.of_pid(one.pid) is not None

        until(lambda: sum(map(is_traced, crowd)) == MAX_PROCESSES, "every slot is taken")
        late = [one for one in crowd if not is_traced(one)]
        for one in [one for one in crowd if is_traced(one)][: 2 * more]:
            one.go()
            one.end()
        until(lambda: all(map(is_traced, late)), "the others get the slots of those that have ended")
        for one in late:
            one.go()
            one.end()

    try:
        recording = record_user(tmp_path, act)
    finally:
        for one in crowd:
            one.kill()
    assert len(recording.recorder.traced_processes.refused) == recording.drops["process_slots_full"] == more
    assert set(recording.recorder.traced_processes.refused.values()) == {"burst"}
    found = recording.counts()
    assert sum(found.get(one.pid) == 2 for one in crowd) == 3 * more
