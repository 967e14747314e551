"""Every event says whose it is: rank, world size, container, communicator, device; also of who is no target."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingero.demo.gpusim.truth import read
from ingero.demo.workloads.program import Program
from ingero.ops import OPS
from tests.integration.container_groups import docker_path, group
from tests.integration.targets import WAITER, Simulation, rows, simulation, until, wait_for_end
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

RANKS = 8
TRAINER = ("--steps", "3", "--layers", "2", "--us", "5", "--workers", "1", "--cpu-ms", "0.1", "--nbytes", "4096")
CALLS = "source IN (1, 4, 8, 9)"
COLLECTIVE = ("rank", "ranks", "comm", "nth", "bytes", "type", "reduce_op")  # of the simulator's record of one


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank as it was started."""

    rank: int
    pid: int
    container: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """Eight ranks, each in a container and on a device of its own, recorded from their first call to their end."""

    members: Sequence[Member]
    folder: Path
    database: Path

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Rows of the recording."""
        return rows(self.database, sql)


def trainer(stack: ExitStack, simulated: Simulation, rank: int, gate: Path) -> tuple[Program, Member]:
    """One rank, in a group of its own, with the variables that torchrun sets; it waits for the gate."""
    container, path = docker_path()
    folder = stack.enter_context(group(path))
    command = [sys.executable, "-m", "ingero.demo.workloads.train", *TRAINER, "--rank", str(rank)]
    command += ["--world", str(RANKS), "--uid", str(simulated.folder / "meeting"), "--out", os.devnull]
    libraries = ":".join(map(str, simulated.mapped()))
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    program = Program(
        [sys.executable, "-c", WAITER, str(gate), libraries, *command],
        environment=simulated.environment | variables,
        cgroups=[folder],
    )
    stack.enter_context(program)
    return program, Member(rank=rank, pid=program.pid, container=container)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    simulated = simulation(tmp_path_factory.mktemp("ranks"), devices=RANKS)
    gate = simulated.folder / "go"
    with ExitStack() as stack:
        started = [trainer(stack, simulated, rank, gate) for rank in range(RANKS)]
        for program, _ in started:
            program.wait_for("loaded")
        pids = [program.pid for program, _ in started]
        with tracing(simulated.folder, pids=pids, options=["--record-all"]) as tracer:
            gate.touch()
            for program, _ in started:
                program.finish()
            wait_for_end(tracer)
    return Job(members=[member for _, member in started], folder=simulated.folder, database=tracer.database)


def test_every_call_has_the_rank_the_world_size_and_the_container_of_its_process(job: Job) -> None:
    found = job.query(
        f"SELECT DISTINCT e.pid, e.rank, e.local_rank, e.world_size, c.container_id, c.runtime "
        f"FROM events e LEFT JOIN containers c ON c.cgroup_id = e.cgroup_id WHERE {CALLS} ORDER BY e.rank"
    )
    assert found == [(one.pid, one.rank, one.rank, RANKS, one.container, "docker") for one in job.members]


def test_every_call_after_the_choice_of_a_device_is_on_it(job: Job) -> None:
    found = job.query(
        f"SELECT DISTINCT e.rank, e.gpu_id FROM events e WHERE {CALLS} AND timestamp > (SELECT max(timestamp) FROM "
        f"cuda_events WHERE pid = e.pid AND op = 'cudaSetDevice') ORDER BY e.rank"
    )
    assert found == [(rank, rank) for rank in range(RANKS)]


def test_every_sync_has_the_rank_and_the_device(job: Job) -> None:
    found = job.query("SELECT DISTINCT rank, gpu_id FROM sync_intervals ORDER BY rank")
    assert found == [(rank, rank) for rank in range(RANKS)]


def test_the_calls_of_each_rank_are_the_simulators_own(job: Job) -> None:
    name_of = {symbol: op.name for op in OPS for symbol in op.symbols}
    for one in job.members:
        expected: Counter[str] = Counter()
        for (_, symbol), calls in read(job.folder / f"truth.{one.pid}").calls.items():
            if symbol in name_of:
                expected[name_of[symbol]] += calls.outer
        counted = job.query(f"SELECT op_name, sum(count) FROM op_stats WHERE rank = {one.rank} GROUP BY op_name")
        assert +Counter(dict(counted)) == +expected  # type: ignore[arg-type]


def test_every_collective_has_the_rank_the_container_the_communicator_and_the_bytes_that_the_library_saw(
    job: Job,
) -> None:
    communicators: set[tuple[int, object]] = set()
    for one in job.members:
        truth = read(job.folder / f"truth.{one.pid}")
        expected = [
            (truth.function_names[int(seen["function"])], *(int(seen[name]) for name in COLLECTIVE), one.container)
            for seen in truth.collectives
        ]
        found = job.query(
            f"SELECT op, rank, nranks, communicator, sequence, bytes, datatype, reduce_op, c.container_id, "
            f"comm_id_hash FROM nccl_events n JOIN containers c USING (cgroup_id) WHERE datatype AND n.pid = {one.pid} "
            f"ORDER BY communicator, sequence"
        )
        assert [row[:-1] for row in found] == sorted(expected, key=lambda row: row[3:5])
        assert {row[1] for row in found} == {one.rank}
        assert len(found) > 1
        communicators |= {(int(seen["comm_id"]), row[-1]) for seen, row in zip(truth.collectives, found, strict=True)}
    assert len(communicators) == 1, "one communicator, by its hash as by the library's own identity"
    assert None not in dict(communicators).values()


def test_the_sums_of_collectives_are_the_simulators_bytes_on_each_rank(job: Job) -> None:
    for one in job.members:
        truth = read(job.folder / f"truth.{one.pid}").collectives
        found = job.query(
            f"SELECT sum(count), sum(bytes) FROM op_stats WHERE rank = {one.rank} AND bytes AND source = 9"
        )
        assert found == [(len(truth), int(truth["bytes"].sum()))]


def test_every_communicator_has_the_rank_and_the_size_that_its_making_names(job: Job) -> None:
    found = job.query("SELECT pid, rank, nranks, origin, ended_by, comm_id_hash FROM communicators ORDER BY rank")
    made = ("ncclCommInitRank", "ncclCommDestroy", found[0][-1])
    assert found == [(one.pid, one.rank, RANKS, *made) for one in job.members]


def test_a_worker_has_the_rank_and_the_container_of_its_trainer(job: Job) -> None:
    found = job.query(
        "SELECT DISTINCT w.rank, t.rank, w.cgroup_id = t.cgroup_id FROM processes w JOIN processes t "
        "ON t.pid = w.parent_pid ORDER BY 1"
    )
    assert found == [(rank, rank, 1) for rank in range(RANKS)]


def test_the_totals_of_a_tenant_are_those_of_its_processes(job: Job) -> None:
    found = job.query(
        "SELECT c.container_id, t.launches FROM tenants t JOIN containers c ON c.cgroup_id = t.cgroup_id "
        "WHERE t.launches > 0"
    )
    launches = job.query(
        "SELECT rank, sum(count) FROM op_stats WHERE op_name LIKE '%LaunchKernel%' GROUP BY rank ORDER BY rank"
    )
    container = {one.rank: one.container for one in job.members}
    assert sorted(found) == sorted((container[rank], count) for rank, count in launches)  # type: ignore[index]


def test_explain_names_rank_and_container(job: Job) -> None:
    command = [sys.executable, "-m", "ingero.cli.main", "explain", "--db", str(job.database)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: an incident was found, on a busy machine
    text = done.stdout
    for one in job.members:
        assert f"[{one.pid}], rank {one.rank} of {RANKS}, container {one.container[:12]}" in text


CALLING = """
import ctypes, os, sys, time
runtime = ctypes.CDLL("libcudart.so.12")
print("loaded", file=sys.stderr, flush=True)
begin, moved = sys.argv[1:]
for size, gate in ((4096, begin), (8192, moved)):
    while not os.path.exists(gate):
        time.sleep(0.005)
    assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size)) == 0
    print("called", size, file=sys.stderr, flush=True)
"""


def test_an_event_of_a_process_that_moves_has_the_container_of_that_moment(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    gates = [tmp_path / "begin", tmp_path / "moved"]
    (first, first_path), (second, second_path) = docker_path(), docker_path()
    with (
        group(first_path) as one,
        group(second_path) as other,
        Program(
            [sys.executable, "-c", CALLING, *map(str, gates)], environment=simulated.environment, cgroups=[one]
        ) as program,
    ):
        program.wait_for("loaded")
        with tracing(tmp_path, pids=[program.pid], options=["--record-all"]) as tracer:
            gates[0].touch()
            program.wait_for("called")
            (other / "cgroup.procs").write_text(str(program.pid))
            gates[1].touch()
            program.finish()
            wait_for_end(tracer)
    found = rows(
        tracer.database,
        "SELECT e.bytes, c.container_id FROM cuda_events e JOIN containers c ON c.cgroup_id = e.cgroup_id "
        "WHERE e.op = 'cudaMalloc' ORDER BY e.bytes",
    )
    assert found == [(4096, first), (8192, second)]


BUSY = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("busy", file=sys.stderr, flush=True)
while True:
    pass
"""


def test_a_noisy_neighbors_container_and_pod_are_named(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    container, pod_uid = secrets.token_hex(32), "11111111-2222-3333-4444-555555555555"
    path = f"/kubepods-ingero-test/burstable/pod{pod_uid}/{container}"
    cpu = str(min(os.sched_getaffinity(0)))
    names = {"POD_NAME": "noisy-7", "POD_NAMESPACE": "tenant-b"}
    with (
        group(path) as folder,
        Program([sys.executable, "-c", BUSY, cpu], environment=simulated.environment) as affected,
        Program([sys.executable, "-c", BUSY, cpu], environment={**os.environ, **names}, cgroups=[folder]) as noisy,
    ):
        affected.wait_for("busy")
        noisy.wait_for("busy")
        with tracing(tmp_path, pids=[affected.pid]) as tracer:
            until(lambda: bool(culprit(tracer.database, noisy.pid)), "the neighbor is charged")
        found = culprit(tracer.database, noisy.pid)
    assert found == [(container, "noisy-7", "tenant-b", "kubernetes", pod_uid)]


def culprit(database: Path, pid: int) -> list[tuple[object, ...]]:
    """The container of a culprit, by the published views."""
    return rows(
        database,
        "SELECT DISTINCT c.container_id, c.pod, c.namespace, c.orchestrator, c.pod_uid FROM culprits k "
        "JOIN containers c ON c.cgroup_id = k.culprit_cgroup_id WHERE k.culprit_pid = ?",
        pid,
    )


def test_every_group_of_a_recording_has_a_row_for_its_name(job: Job) -> None:
    used = (
        "SELECT cgroup_id FROM events UNION SELECT cgroup_id FROM processes "
        "UNION SELECT culprit_cgroup_id FROM culprits"
    )
    named = "SELECT cgroup_id FROM containers"
    assert job.query(f"SELECT cgroup_id FROM ({used}) WHERE cgroup_id <> 0 AND cgroup_id NOT IN ({named})") == []
