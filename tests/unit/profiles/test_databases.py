"""Profiles in SQLite: Nsight Systems of several ages, and RPD."""

from __future__ import annotations

from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.events import HostMemory
from ingero.ops import BY_ID
from ingero.profiles.model import NO_TIME, ActivityKind, Direction, Profile, ProfileError, RangeKind
from ingero.profiles.reading import ImportedProfiles, read_profiles
from tests.unit.profiles import files
from tests.unit.profiles.files import Tables, database, nsight_tables, older_nsight_tables, rpd_tables


def imported(tmp_path: Path, tables: Tables) -> ImportedProfiles:
    """What is read of such a file."""
    return read_profiles([database(tmp_path / "profile.sqlite", tables)])


def names(profile: Profile) -> set[str]:
    """The names of its calls."""
    return {BY_ID[op].name for op in profile.calls["op"].tolist()}


def test_each_process_of_an_nsight_export_has_its_calls_and_its_gpu(tmp_path: Path) -> None:
    read = imported(tmp_path, nsight_tables())
    assert [(one.pid, set(one.activities["device"].tolist())) for one in read.profiles] == [(300, {0}), (301, {1})]
    first = read.profiles[0]
    assert names(first) == {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"}
    assert (len(first.calls), len(first.activities)) == (5 * files.STEPS, 5 * files.STEPS)
    assert (first.name, first.threads, first.origin.host, first.origin.cpu_count) == (
        *("torchrun", {300: "main thread"}),
        *("node-7", 18),
    )


def test_times_of_nsight_are_those_of_the_unix_clock(tmp_path: Path) -> None:
    first = imported(tmp_path, nsight_tables()).profiles[0]
    assert first.begin_ns == files.EPOCH_NS


def test_copies_of_nsight_say_their_direction_and_memory(tmp_path: Path) -> None:
    work = imported(tmp_path, nsight_tables()).profiles[0].activities
    copies = work[work["kind"] == ActivityKind.MEMCPY]
    assert set(copies["direction"].tolist()) == {Direction.GPU_TO_HOST}
    assert set(copies["host_memory"].tolist()) == {HostMemory.PAGEABLE}
    assert set(copies["bytes"].tolist()) == {256}


def test_ranges_of_nvtx_are_data_loading_operators_and_no_marks(tmp_path: Path) -> None:
    first = imported(tmp_path, nsight_tables(steps=1)).profiles[0]
    told = [(RangeKind(kind), first.texts[name]) for kind, name in first.ranges[["kind", "name"]].tolist()]
    assert told == [(RangeKind.DATA_LOADING, "data_loading"), (RangeKind.OPERATOR, "aten::addmm")]


def test_an_export_of_2021_without_processes_and_memory_kinds_is_read(tmp_path: Path) -> None:
    read = imported(tmp_path, older_nsight_tables())
    (profile,) = read.profiles
    assert (profile.pid, len(profile.activities)) == (300, 4 * files.STEPS)
    assert set(profile.activities["host_memory"].tolist()) == {HostMemory.UNKNOWN}
    assert (profile.activities["call_ns"] > 0).all()
    assert "does not say when it was recorded" in read.notes.lacks[0]


def test_gpus_of_nsight_are_known_but_not_whose_device_they_are(tmp_path: Path) -> None:
    (gpu,) = imported(tmp_path, nsight_tables()).profiles[0].gpus
    assert (gpu.ordinal, gpu.uuid, gpu.name) == (-1, "GPU-cf6b97c0", "NVIDIA A100")


def test_an_rpd_file_is_read(tmp_path: Path) -> None:
    (profile,) = imported(tmp_path, rpd_tables()).profiles
    assert names(profile) == {"cudaLaunchKernel", "cudaMemcpy", "cudaStreamSynchronize"}
    kinds = profile.activities["kind"].tolist()
    assert (kinds.count(ActivityKind.KERNEL), kinds.count(ActivityKind.MEMCPY)) == (files.STEPS, files.STEPS)
    copies = profile.activities[profile.activities["kind"] == ActivityKind.MEMCPY]
    assert set(copies[["bytes", "direction"]].tolist()) == {(512, Direction.GPU_TO_HOST)}
    assert {profile.texts[name] for name in profile.ranges["name"].tolist()} == {"forward pass"}
    assert (profile.activities["call_ns"] > 0).all()


@pytest.mark.parametrize("value", [None, -(1 << 70), "soon", b"\xff\xfe", float("inf"), 1e300, 1 << 62])
def test_a_time_that_is_none_drops_its_row_only(tmp_path: Path, value: object) -> None:
    tables = nsight_tables(processes=1)
    columns, rows = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    bad = float(value) if isinstance(value, int) and abs(value) > 1 << 63 else value
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = (columns, [*rows, (5, bad, (1 << 56) | (300 << 24) | 300, 9001, 1)])
    read = imported(tmp_path, tables)
    assert (len(read.profiles[0].calls), read.notes.dropped[NO_TIME]) == (5 * files.STEPS, 1)


def test_names_that_are_no_utf8_and_numbers_of_no_text_are_harmless(tmp_path: Path) -> None:
    tables = nsight_tables(processes=1)
    tables["StringIds"] = ("id, value", [(4, b"gemm\xff\x1b[2J"), (1, "cudaLaunchKernel_v7000"), ("x", "y"), (9, None)])
    (profile,) = imported(tmp_path, tables).profiles
    assert names(profile) == {"cudaLaunchKernel"}
    assert any("\ufffd" in text for text in profile.texts)


def test_a_view_in_the_place_of_a_table_is_not_asked(tmp_path: Path) -> None:
    path = database(tmp_path / "profile.sqlite", nsight_tables())
    db = apsw.Connection(str(path))
    db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME RENAME TO hidden")
    db.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS SELECT *, randomblob(10) AS evil FROM hidden")
    db.close()
    read = read_profiles([path])
    assert sum(len(profile.calls) for profile in read.profiles) == 0
    assert sum(len(profile.activities) for profile in read.profiles) > 0


def test_a_generated_column_is_not_computed(tmp_path: Path) -> None:
    tables = nsight_tables(processes=1)
    path = database(tmp_path / "profile.sqlite", tables)
    db = apsw.Connection(str(path))
    db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY RENAME COLUMN bytes TO size")
    db.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN bytes AS (length(hex(zeroblob(1000))))")
    db.close()
    (profile,) = read_profiles([path]).profiles
    assert profile.activities["bytes"].max() == 0


def test_the_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = database(tmp_path / "profile.sqlite", nsight_tables())
    before = path.read_bytes()
    read_profiles([path])
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (before, ["profile.sqlite"])


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "other.sqlite", {"things": ("a, b", [(1, 2)])})
    with pytest.raises(ProfileError, match="neither of Nsight Systems nor of RPD"):
        read_profiles([path])


@pytest.mark.parametrize("kept", [600, -8192])
def test_a_database_that_is_cut_is_refused(tmp_path: Path, kept: int) -> None:
    whole = database(tmp_path / "whole.sqlite", nsight_tables())
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole.read_bytes()[:kept])
    with pytest.raises(ProfileError, match="cannot be read"):
        read_profiles([cut])


def test_a_database_with_a_damaged_page_gives_what_lies_before_it(tmp_path: Path) -> None:
    path = database(tmp_path / "profile.sqlite", nsight_tables(steps=200))
    data = bytearray(path.read_bytes())
    last = data.rindex(b"aten::addmm") // 4096 * 4096
    data[last : last + 4096] = bytes(4096)
    path.write_bytes(data)
    read = read_profiles([path])
    assert any("is damaged: table" in text for text in read.notes.lacks)
    assert read.profiles


def test_processes_of_an_export_without_their_numbers_get_the_gpu_that_follows_their_calls(tmp_path: Path) -> None:
    """Both count their calls alike; one is 0.4 ms behind the other."""
    tables = nsight_tables()
    work = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "SYNCHRONIZATION")]
    for name, owner in (("CUPTI_ACTIVITY_KIND_RUNTIME", 2), *((name, 5) for name in work)):
        columns, rows = tables[name]
        late = [(row, 400_000 * (int(str(row[owner])) >> 24 & 1)) for row in rows]
        tables[name] = (columns, [(int(str(row[0])) + ns, int(str(row[1])) + ns, *row[2:]) for row, ns in late])
    for name in work:
        columns, rows = tables[name]
        tables[name] = (columns.replace(", globalPid", ""), [(*row[:5], *row[6:]) for row in rows])
    read = imported(tmp_path, tables)
    assert [np.unique(profile.activities["device"]).tolist() for profile in read.profiles] == [[0], [1]]
    assert [len(profile.activities) for profile in read.profiles] == [5 * files.STEPS] * 2


def test_what_an_export_has_beside_and_is_not_read_is_counted(tmp_path: Path) -> None:
    tables = nsight_tables() | {"SCHED_EVENTS": ("start, cpu, isSchedIn, globalTid", [(1, 0, 1, 7), (2, 0, 0, 7)])}
    remarks = imported(tmp_path, tables).notes.remarks
    assert remarks["left out, scheduler events: they do not say what a thread waited for"] == 2
