"""Processes that come and go by the hundred: exact counts for those that stay, and nothing is left behind.

The full form with its figures is bench/churn.py.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.capture.loop import drainer
from ingero.capture.loop.rings import DRAIN_LIMIT, Ring
from ingero.capture.records.rows import RowMaker
from tests.integration import burst
from tests.integration.burst import BETWEEN, Burst
from tests.integration.callers import build_library
from tests.integration.recording import OTHER_USER, Recording, record_user
from tests.integration.targets import rows

pytestmark = pytest.mark.integration
STAYING, SHORT, LATE = 20, 100, 20
RECYCLED_S = 3.5  # readings after the last end until its slot is free again


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_counts_stay_exact_and_nothing_is_left_while_processes_come_and_go(tmp_path: Path, public: Path) -> None:
    library, program = build_library(public / "lib"), burst.build(public / "burst")
    staying = [Burst([program, library, 2, 500 + number, 0]) for number in range(STAYING)]
    churn = f"for i in $(seq {SHORT}); do {program} {library} 2 5 20; done"
    printed: list[str] = []

    def act(_recording: Recording) -> None:
        for one in staying[: STAYING // 2]:
            one.go()
        done = subprocess.run(
            [*BETWEEN, "sh", "-c", churn], user=OTHER_USER, capture_output=True, text=True, check=True
        )
        printed.extend(done.stdout.split())
        for one in staying[STAYING // 2 :]:
            one.go()
        for one in staying:
            one.end()

    before = descriptors()
    try:
        recording = record_user(tmp_path, act, settle_s=RECYCLED_S)
    finally:
        for one in staying:
            one.kill()
    after = descriptors()
    found = recording.counts()
    assert [found.get(one.pid) for one in staying] == [2 * (500 + number) for number in range(STAYING)]
    assert [found.get(int(pid)) for pid in printed] == [10] * SHORT, recording.drops
    assert recording.left_behind == {}
    assert after <= before
    assert not any(name.endswith("_full") for name in recording.drops)


@pytest.fixture
def churn(public: Path) -> Iterator[Callable[[int], list[str]]]:
    """Runs LATE short processes, one after the other, with so many calls each; answers their numbers."""
    library, program = build_library(public / "lib"), burst.build(public / "burst")
    holder = Burst([program, library, 1, 0, 0])  # for whose sake the library is probed before they come

    def run(calls: int) -> list[str]:
        one_by_one = f"for i in $(seq {LATE}); do {program} {library} 1 {calls} 0; done"
        command = [*BETWEEN, "sh", "-c", one_by_one]
        return subprocess.run(command, user=OTHER_USER, capture_output=True, text=True, check=True).stdout.split()

    try:
        yield run
    finally:
        holder.kill()


def test_records_that_come_late_are_of_who_made_them(
    tmp_path: Path, churn: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, drain = threading.Event(), Ring.drain

    def drain_late(ring: Ring, limit: int = DRAIN_LIMIT) -> np.ndarray[Any, np.dtype[Any]]:
        return drain(ring, 0 if ring.name == "calls" and held.is_set() else limit)

    printed: list[str] = []

    def act(_recording: Recording) -> None:
        held.set()
        printed.extend(churn(5))
        time.sleep(RECYCLED_S)
        printed.extend(churn(5))  # in the slots of the first ones, were they free by now
        held.clear()

    monkeypatch.setattr(Ring, "drain", drain_late)
    recording = record_user(tmp_path, act, settle_s=RECYCLED_S)
    theirs = rows(
        recording.database,
        "SELECT p.pid, e.pid, count(*) FROM raw_events e JOIN raw_processes p USING (process) "
        "WHERE e.source = 1 GROUP BY 1, 2",
    )
    assert sorted(theirs) == sorted((int(pid), int(pid), 5) for pid in printed)


def test_the_records_of_a_second_are_handed_over_before_its_sums(
    tmp_path: Path, churn: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drain, add = Ring.drain, RowMaker.calls

    def add_slowly(maker: RowMaker, batch: Any, numbers: list[int], stack_hashes: Sequence[int]) -> None:
        time.sleep(0.04)
        add(maker, batch, numbers, stack_hashes)

    monkeypatch.setattr(drainer, "DRAIN_LIMIT", 50)
    monkeypatch.setattr(Ring, "drain", lambda ring, limit=50: drain(ring, limit))
    monkeypatch.setattr(RowMaker, "calls", add_slowly)  # 2000 of them take over a second

    recording = record_user(tmp_path, lambda _recording: churn(100))
    recorded = np.cumsum([sum(int(cell.growth["recorded"]) for cell in one.cells) for one in recording.seconds])
    handed_over = np.cumsum([one.records for one in recording.seconds])
    assert recorded[-1] == 100 * LATE
    calibration = handed_over[-1] - recorded[-1]  # its records are of the first second
    assert (recorded + calibration - handed_over).max() <= 100, "of who calls while the sums are read"
