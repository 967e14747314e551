"""Programs that cost more to read than to make: the agent goes on, others are recorded, and it ends when it is told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.agent import peak_rss_bytes
from tests.integration.hostile_programs import KINDS, OTHER
from tests.integration.targets import rows, simulation
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration
_SECONDS = 4
_MOST_STILL_NS = 6_000_000_000  # one file on a machine that is busy with other things; nothing where it is not
_MOST_MORE_BYTES = 300 << 20
_QUIET_BYTES = 160 << 20  # of the agent, its probes and the processes that read for it
_IN_A_CONTAINER = ["unshare", "--pid", "--fork", "--kill-child"]  # another owner of its files to the agent
_SEED = int(os.environ.get("INGERO_HOSTILE_SEED", "7"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_others_are_recorded_and_the_agent_ends_when_told(
    tmp_path: Path, kind: Callable[[Path, Path, random.Random], list[str]]
) -> None:
    ours, its = tmp_path / "ours", tmp_path / "its"
    for folder in (ours, its, its / "work"):
        folder.mkdir()
    mine, hostile = simulation(ours), simulation(its)
    command = kind(its / "work", hostile.libraries, random.Random(_SEED))
    library = str(mine.libraries / "libcudart.so.12")
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, library],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=mine.environment,
    )  # fmt: skip
    nothing = subprocess.DEVNULL
    enemy = subprocess.Popen([*_IN_A_CONTAINER, *command], env=hostile.environment, stdout=nothing, stderr=nothing)
    assert other.stdin
    try:
        time.sleep(1)
        assert enemy.poll() is None
        with tracing(tmp_path, pids=[other.pid, enemy.pid], options=["--stack"]) as tracer:
            other.stdin.write("\n")
            other.stdin.flush()
            time.sleep(_SECONDS)
            other.terminate()
            made = int(other.communicate()[0])
            used = sum(map(peak_rss_bytes, [tracer.pid, *_readers(tracer.pid)]))
            begin = time.monotonic()
            drops = tracer.stop()
            took_s = time.monotonic() - begin
    finally:
        enemy.kill()
        enemy.wait()
        other.kill()
        other.wait()
    assert drops.get("loop_stood_still_ns", 0) < _MOST_STILL_NS
    assert used < _QUIET_BYTES + _MOST_MORE_BYTES
    assert took_s < 20, "no more than the machine is busy with other things"
    counted = rows(
        tmp_path / "recording.db",
        "SELECT sum(count) FROM raw_op_stats JOIN raw_processes p USING (process) WHERE p.pid = ?",
        other.pid,
    )
    assert counted[0][0] >= made * 0.95
    named = rows(
        tmp_path / "recording.db",
        "SELECT count(*) FROM raw_stacks s JOIN raw_processes p USING (process) WHERE p.pid = ? AND s.frames LIKE ?",
        other.pid,
        "%py_func%",
    )
    assert named[0][0] > 0, "the other's stacks are resolved"


def _readers(pid: int) -> list[int]:
    """The processes that read for an agent: the one that it has made, and those that it has."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    inner = [Path(f"/proc/{child}/task/{child}/children").read_text().split() for child in children]
    return [int(one) for one in (*children, *(one for some in inner for one in some))]
