"""An agent in a time namespace records the host's times: the clock of the kernel's programs is in no namespace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingero.demo.workloads import native
from tests.integration.targets import rows, simulation, wait_for_end, waiting
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

SHIFTED = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "5000", "--boottime", "7000")
APART_NS = 1_000_000  # two probes of one call, and two readings of a pair of clocks, on a busy host
CALLS = "SELECT tid, op, start_ns, duration_ns FROM raw_events WHERE source IN (1, 4) ORDER BY tid, start_ns"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One program as an agent outside and one inside a time namespace record it."""
    folder = tmp_path_factory.mktemp("shifted")
    for name in ("program", "outside", "inside"):
        (folder / name).mkdir()
    options = ["--record-all"]
    with (
        waiting(simulation(folder / "program"), [native.build("sandboxed"), 2]) as process,
        tracing(folder / "outside", pids=[process.pid], options=options) as outside,
        tracing(folder / "inside", pids=[process.pid], options=options, within=SHIFTED) as inside,
    ):
        process.go().finish()
        for tracer in (outside, inside):
            wait_for_end(tracer)
    return outside.database, inside.database


def test_calls_have_the_same_times_inside_and_outside(recorded: tuple[Path, Path]) -> None:
    outside, inside = (np.array(rows(path, CALLS)) for path in recorded)
    assert len(outside) > 20
    assert outside[:, :2].tolist() == inside[:, :2].tolist()
    apart_ns = np.abs(outside[:, 2] - inside[:, 2])
    print(f"\n{len(apart_ns)} calls, apart {np.median(apart_ns)} ns, at most {apart_ns.max()} ns")
    assert apart_ns.max() < APART_NS


def test_pairs_of_clocks_are_those_of_the_kernel(recorded: tuple[Path, Path]) -> None:
    offsets = [rows(path, "SELECT unix_ns - mono_ns FROM raw_clock_pairs") for path in recorded]
    assert all(offsets)
    found = [offset for of_one in offsets for (offset,) in of_one]
    assert max(found) - min(found) < APART_NS


@pytest.mark.parametrize(
    "question",
    [
        "SELECT start_ns FROM raw_processes WHERE is_traced",
        "SELECT min(sync_end_ns) FROM raw_sync_intervals",
        "SELECT max(time_ns) FROM raw_progress_marks",
    ],
)
def test_what_else_has_a_time_has_the_same(recorded: tuple[Path, Path], question: str) -> None:
    outside, inside = (rows(path, question) for path in recorded)
    assert len(outside) == len(inside)
    assert all(abs(one[0] - other[0]) < APART_NS for one, other in zip(outside, inside, strict=True))
