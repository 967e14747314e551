"""What only the bench of labeled runs does to a workload."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.incidents.ambient import favored
from bench.incidents.neighbors import NoisyNeighbor, SlowMount
from bench.incidents.recipes import BenchWorkload, Pulses
from ingero.demo.faults import Workload
from ingero.demo.faults.cpu import CpuHog
from ingero.demo.workloads.program import Program

pytestmark = pytest.mark.integration


def workload(pid: int, folder: Path) -> Workload:
    return BenchWorkload(pid=pid, knobs=folder / "gpu", host_knobs=folder / "host")


@contextmanager
def sleeper(cgroups: tuple[Path, ...] = ()) -> Iterator[Program]:
    with Program(["sleep", "60"], cgroups=cgroups) as program:
        yield program


def read_s(path: Path) -> float:
    began = time.monotonic()
    with path.open("rb", buffering=0) as file:
        file.read(1 << 20)
    return time.monotonic() - began


def container(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.rpartition("/docker/")[2] for line in lines if "/docker/" in line)


def test_a_slow_mount_takes_the_time_it_was_told(tmp_path: Path) -> None:
    recipe = SlowMount(ms_per_mib=200)
    with recipe.prepare(tmp_path) as setup:
        data = Path(setup.arguments[1])
        with recipe.apply(workload(os.getpid(), tmp_path)):
            assert read_s(data) >= 0.2
        assert min(read_s(data) for _ in range(5)) < 0.2
    assert not data.exists()


def test_a_noisy_neighbor_runs_in_another_container(tmp_path: Path) -> None:
    recipe = NoisyNeighbor(CpuHog(per_cpu=0.5, duty=0.1))
    with (
        recipe.prepare(tmp_path) as setup,
        sleeper(setup.cgroups) as program,
        recipe.apply(workload(program.pid, tmp_path)) as injection,
    ):
        containers = {container(pid) for pid in injection.culprits}
        assert len(containers) == 1
        assert container(program.pid) not in containers
    assert not setup.cgroups[0].exists()


def test_pulses_leave_the_process_running(tmp_path: Path) -> None:
    with sleeper() as program:
        with Pulses(0.5).apply(workload(program.pid, tmp_path)):
            state = Path(f"/proc/{program.pid}/status")
            while "T (stopped)" not in state.read_text():
                time.sleep(0.01)
        assert "T (stopped)" not in state.read_text()


def test_a_favoured_bench_is_put_back_where_it_was() -> None:
    before = Path("/proc/self/cgroup").read_text()
    with favored():
        assert Path("/proc/self/cgroup").read_text() != before
    assert Path("/proc/self/cgroup").read_text() == before
