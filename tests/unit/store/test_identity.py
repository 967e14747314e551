"""The published views say whose an event is: containers, tenants, GPUs; two machines never mix."""

from __future__ import annotations

from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.ops import BY_NAME
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

NODES = ("gpu-1", "gpu-2")
GROUP = 77  # the kernels of two machines may well give two groups the same id
MS = 1_000_000


def fill(writer: Writer) -> None:
    """Two trainers in a pod, on the second of the GPUs they see, and a process in no container."""
    session = writer.session
    inside, outside = (int(key) for key in writer.cgroup_keys(np.array([GROUP, GROUP + 1], np.uint64)))
    writer.append(
        tables.CGROUPS,
        tables.CGROUPS.rows(
            2,
            cgroup_id=[inside, outside],
            kernel_cgroup_id=[GROUP, GROUP + 1],
            node=writer.node,
            container_id=["c" * 64, ""],
            pod=[f"train-{writer.node}", ""],
            orchestrator=["kubernetes", ""],
            cgroup_path=["/kubepods/x", ""],
        ),
    )
    for pid, group in ((10, inside), (11, inside), (12, outside)):
        process = writer.process_id(pid, 1)
        writer.append(
            tables.PROCESSES,
            tables.PROCESSES.rows(1, process=process, session=session, pid=pid, start_ns=1, cgroup_id=group),
        )
        for name, count, size in (("cudaLaunchKernel", 5, 0), ("cudaMemcpy", 2, 300), ("cudaMalloc", 1, 9000)):
            op = BY_NAME[name]
            row = tables.OP_STATS.rows(
                1, session=session, start_ns=1, process=process, source=int(op.source), op=op.code, count=count,
                sum_ns=count * MS, bytes=size,
            )  # fmt: skip
            writer.append(tables.OP_STATS, row)
        writer.append(
            tables.THREAD_STATE_SECONDS,
            tables.THREAD_STATE_SECONDS.rows(
                2, session=session, start_ns=[1, 2], process=process, run_ns=7, runq_ns=4, throttled_ns=0, yielded_ns=1,
                sleep_ns=0, io_ns=0, uninterruptible_ns=0, stopped_ns=0,
            ),
        )  # fmt: skip
        for device in (-1, 1):
            row = tables.EVENTS.rows(
                1, session=session, start_ns=5, process=process, pid=pid, tid=pid, source=1, op=3, gpu_id=device,
                cgroup_id=group,
            )  # fmt: skip
            writer.append(tables.EVENTS, row)
    first = writer.process_id(10, 1)
    writer.append(tables.PROCESS_GPUS, tables.PROCESS_GPUS.rows(1, process=first, ordinal=1, uuid=f"GPU-{writer.node}"))
    row = tables.GPUS.rows(1, session=session, uuid=f"GPU-{writer.node}", gpu_index=3, name="H100")
    writer.append(tables.GPUS, row)


@pytest.fixture
def db(tmp_path: Path) -> apsw.Connection:
    path = tmp_path / "a.db"
    for node in NODES:
        with Writer(path, session=SessionFacts(uuid=node, started_ns=1, boot_id=node), node=node) as writer:
            fill(writer)
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)


def test_a_join_on_the_group_never_crosses_machines(db: apsw.Connection) -> None:
    found = db.execute("SELECT DISTINCT e.node, c.node, c.pod FROM events e JOIN containers c USING (cgroup_id)")
    assert {row for row in found if row[2]} == {(node, node, f"train-{node}") for node in NODES}
    assert all(event == container for event, container, _ in db.execute(
        "SELECT e.node, c.node, e.id FROM events e JOIN containers c ON c.cgroup_id = e.cgroup_id"
    ))  # fmt: skip


def test_what_is_not_known_of_a_group_is_null(db: apsw.Connection) -> None:
    found = db.execute(
        "SELECT DISTINCT container_id, pod, namespace, orchestrator, runtime, slurm_job, ecs_task, unit, cgroup_path "
        "FROM containers WHERE kernel_cgroup_id = ?",
        (GROUP + 1,),
    )
    assert found.fetchall() == [(None,) * 9]


def test_the_sums_of_a_tenant_are_exact(db: apsw.Connection) -> None:
    found = db.execute(
        "SELECT c.pod, t.processes, t.launches, t.gpu_wait_ns, t.copied_bytes, t.run_ns, t.runq_ns, t.yielded_ns "
        "FROM tenants t JOIN containers c ON c.cgroup_id = t.cgroup_id WHERE c.node = 'gpu-1' ORDER BY 2"
    )
    assert found.fetchall() == [(None, 1, 5, 2 * MS, 300, 14, 8, 2), ("train-gpu-1", 2, 10, 4 * MS, 600, 28, 16, 4)]


def test_a_device_that_is_not_known_is_null_and_one_that_is_has_its_gpu(db: apsw.Connection) -> None:
    found = db.execute(
        "SELECT DISTINCT e.pid, e.gpu_id, e.gpu_uuid, g.name, g.gpu_index FROM cuda_events e "
        "LEFT JOIN gpus g ON g.session = e.session AND g.uuid = e.gpu_uuid WHERE e.node = 'gpu-2' ORDER BY 1, 2"
    )
    unknown = [(pid, gpu, None, None, None) for pid in (11, 12) for gpu in (None, 1)]
    assert found.fetchall() == [(10, None, None, None, None), (10, 1, "GPU-gpu-2", "H100", 3), *unknown]


def test_the_device_of_a_sync_is_null_where_it_is_not_known(db: apsw.Connection) -> None:
    columns = [row[1] for row in db.execute("SELECT * FROM pragma_table_info('sync_intervals')")]
    assert {"device", "gpu_id", "gpu_uuid"} <= set(columns)
