"""Processes that come and go by the hundred: exact counts for those that stay, and nothing is left behind.

The full form with its figures is bench/churn.py.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import burst
from tests.integration.burst import BETWEEN, Burst
from tests.integration.callers import build_library
from tests.integration.recording import OTHER_USER, Recording, record_user

pytestmark = pytest.mark.integration
STAYING, SHORT = 20, 100
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
    assert [found.get(int(pid)) for pid in printed] == [10] * SHORT
    assert recording.left_behind == {}
    assert after <= before
    assert not any(name.endswith("_full") for name in recording.losses)
