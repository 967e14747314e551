"""capture.identity and capture.gpus: a row for each group, written once, whatever becomes of the group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ingero.capture.host.gpus import GpuRows
from ingero.capture.loop.null_sink import NullSink
from ingero.capture.processes.cgroup_rows import CgroupRows
from ingero.discover.cgroups import Cgroup
from ingero.discover.gpus import Gpu
from ingero.identity import identity_text
from ingero.store.writing import tables
from ingero.store.writing.tables import Row, Table

NOWHERE = 2**40 + 1  # no group has this id


class MemorySink(NullSink):
    """A sink whose rows can be looked at."""

    def __init__(self) -> None:
        super().__init__("node-1")
        self.rows: list[tuple[Table, dict[str, object]]] = []

    def append(self, table: Table, rows: Sequence[Row]) -> int:
        self.rows += [(table, dict(zip(table.columns, row, strict=True))) for row in rows]
        return len(rows)

    def groups(self) -> list[tuple[object, object]]:
        return [(row["cgroup_id"], row["cgroup_path"]) for table, row in self.rows if table is tables.CGROUPS]


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.asarray(values, np.uint64)


def test_a_group_that_is_gone_still_has_a_row_so_that_joins_stay_whole() -> None:
    sink = MemorySink()
    CgroupRows(sink).keys(ids(NOWHERE))
    assert sink.groups() == [(NOWHERE, "")]


def test_a_group_is_written_once_and_none_is_no_group() -> None:
    sink = MemorySink()
    cgroups = CgroupRows(sink)
    for _ in range(3):
        assert cgroups.keys(ids(NOWHERE, 0, NOWHERE)).tolist() == [NOWHERE, 0, NOWHERE]
    assert sink.groups() == [(NOWHERE, "")]


def test_looking_for_groups_is_put_off_where_it_would_take_too_much_time() -> None:
    sink = MemorySink()
    times = iter(range(0, 10**12, 10**9))  # each look takes a second
    cgroups = CgroupRows(sink, clock=lambda: next(times))
    cgroups.keys(ids(NOWHERE))
    cgroups.keys(ids(NOWHERE + 1))
    assert sink.groups() == [(NOWHERE, "")]
    cgroups.seek(is_last=True)
    assert sink.groups() == [(NOWHERE, ""), (NOWHERE + 1, "")]


POD_GROUP = Cgroup(id=NOWHERE, path=f"/kubepods/pod11111111-2222-3333-4444-555555555555/{'a' * 64}", paths={})


def pods(sink: MemorySink) -> list[object]:
    return [row["pod"] for table, row in sink.rows if table is tables.CGROUPS]


def test_a_process_without_variables_does_not_take_the_name_of_its_pod_away() -> None:
    sink = MemorySink()
    cgroups = CgroupRows(sink)
    for environ in ({"POD_NAME": "train-0"}, {}):
        assert cgroups.write_group_of(2**22 + 1, POD_GROUP, environ)[0] == NOWHERE
    assert pods(sink) == ["train-0"]


def test_a_later_process_may_know_the_name_of_its_pod() -> None:
    sink = MemorySink()
    cgroups = CgroupRows(sink)
    for environ in ({}, {}, {"POD_NAME": "train-0"}):
        cgroups.write_group_of(2**22 + 1, POD_GROUP, environ)
    assert pods(sink) == ["", "train-0"]


def test_a_group_that_others_share_is_not_named_after_one_containers_process() -> None:
    sink = MemorySink()
    group = Cgroup(id=NOWHERE, path="/", paths={"memory": "/", "cpu": f"/docker/{'a' * 64}"})
    number, place = CgroupRows(sink).write_group_of(2**22 + 1, group, {})
    assert (number, place.container_id) == (NOWHERE, "a" * 64)
    assert [row["container_id"] for table, row in sink.rows if table is tables.CGROUPS] == [""]


def a_gpu(index: int, **values: tuple[str, ...]) -> Gpu:
    return Gpu(
        index=index, uuid=f"GPU-{index}", name="H100", memory_bytes=1, pci_bus_id="", max_sm_clock_mhz=None, **values
    )


@pytest.mark.parametrize(
    ("gpus", "device"),
    [([], -1), ([a_gpu(0)], 0), ([a_gpu(0), a_gpu(1)], -1), ([a_gpu(0, mig_uuids=("MIG-a",))], -1)],
)
def test_only_a_single_gpu_needs_no_choice(gpus: list[Gpu], device: int) -> None:
    assert GpuRows(MemorySink(), gpus).default_gpu == device


def test_ordinals_are_mapped_by_the_environment_of_the_process() -> None:
    _, mapped = mapped_by({"CUDA_VISIBLE_DEVICES": "1,0"}, {"GPU-0": "", "GPU-1": ""})
    assert mapped == {0: "GPU-1", 1: "GPU-0"}


def mapped_by(environ: dict[str, str], *listed: dict[str, str]) -> tuple[GpuRows, dict[int, str]]:
    """What a recording holds of process 5 on a machine with two GPUs; listed: where the driver has it, by second."""
    sink = MemorySink()
    gpus = GpuRows(sink, [a_gpu(0), a_gpu(1)])
    gpus.note_process(5, 2**22 + 1, environ, is_containerized=False)
    for one in listed:
        gpus.seen({5: one})
    rows = [row for table, row in sink.rows if table is tables.PROCESS_GPUS]
    written = {row["ordinal"]: row["uuid"] for row in rows}
    return gpus, {ordinal: uuid for ordinal, uuid in written.items() if uuid}


def test_of_several_gpus_the_environment_alone_proves_nothing() -> None:
    assert mapped_by({"CUDA_VISIBLE_DEVICES": "1,0"})[1] == {}
    assert mapped_by({"PATH": "/usr/bin"})[1] == {}


def test_a_process_that_sees_one_gpu_uses_it() -> None:
    assert mapped_by({"CUDA_VISIBLE_DEVICES": "1"})[1] == {0: "GPU-1"}
    assert mapped_by({"CUDA_VISIBLE_DEVICES": "1"}, {"GPU-1": ""})[1] == {-1: "GPU-1", 0: "GPU-1"}


def test_the_drivers_list_outdoes_the_environment_that_a_program_has_changed() -> None:
    assert mapped_by({"PATH": "/usr/bin"}, {"GPU-1": ""})[1] == {-1: "GPU-1"}
    assert mapped_by({"CUDA_VISIBLE_DEVICES": "0"}, {"GPU-1": ""})[1] == {-1: "GPU-1"}


def test_a_second_gpu_takes_back_that_there_is_one() -> None:
    assert mapped_by({"PATH": "/usr/bin"}, {"GPU-0": ""}, {"GPU-0": "", "GPU-1": ""})[1] == {0: "GPU-0", 1: "GPU-1"}
    assert mapped_by({}, {"GPU-0": ""}, {"GPU-1": ""})[1] == {}


def test_a_fork_sees_what_its_parent_saw_also_behind_a_title() -> None:
    sink = MemorySink()
    gpus = GpuRows(sink, [a_gpu(0), a_gpu(1)])
    gpus.note_process(5, 2**22 + 1, {"CUDA_VISIBLE_DEVICES": "1"}, is_containerized=False)
    gpus.on_fork(6, 5)
    rows = [(row["process"], row["uuid"]) for table, row in sink.rows if table is tables.PROCESS_GPUS]
    assert rows == [(5, "GPU-1"), (6, "GPU-1")]
    assert gpus.is_known(6)


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        ((None, None, None), ""),
        ((3, 8, None), "rank 3 of 8"),
        ((3, None, "a" * 64), f"rank 3, container {'a' * 12}"),
        ((None, None, "machine-with-a-name"), "container machine-with-a-name"),
    ],
)
def test_a_process_is_named_by_what_is_known(identity: tuple[int | None, int | None, str | None], text: str) -> None:
    assert identity_text(*identity) == text
