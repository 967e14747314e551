"""What an import writes: rows of a recording that every command can read, and nothing that is not in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingero.diagnose.diagnosis import diagnose
from ingero.profiles.place import function_id
from ingero.profiles.reading import read_profiles
from ingero.profiles.recording import NOT_SHOWN, write_recording
from ingero.store.reader import open_reader
from tests.unit.profiles import files
from tests.unit.profiles.files import call, database, kernel, new_trace, nsight_tables
from tests.unit.profiles.test_unpacking import ranks, tar_of

Row = tuple[Any, ...]


def imported(tmp_path: Path, data: bytes, *, name: str = "trace.json") -> Path:
    """The recording of a file with these bytes."""
    source = tmp_path / name
    source.write_bytes(data)
    return recorded(tmp_path, source)


def recorded(tmp_path: Path, *sources: Path) -> Path:
    """The recording of these files."""
    read = read_profiles(sources)
    write_recording(tmp_path / "run.db", read.profiles, read.notes, files=read.files)
    return tmp_path / "run.db"


def rows(path: Path, sql: str) -> list[Row]:
    """What a query of the views answers."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [tuple(row) for row in db.execute(sql)]
    finally:
        db.close()


def test_each_outermost_call_has_a_row(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(3)))
    found = rows(path, "SELECT op_name, count(*), sum(duration_ns), sum(arg0), max(stream) FROM events GROUP BY 1")
    assert found == [("cudaLaunchKernel", 12, 96_000, 0, 7), ("cudaMemcpyAsync", 3, 180_000, 3 * 4096, 7)]


def test_the_direction_of_a_copy_is_its_cuda_memcpy_kind(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(3)))
    assert rows(path, "SELECT DISTINCT arg2 FROM events WHERE op_name = 'cudaMemcpyAsync'") == [(1,)]


def test_a_copy_says_its_host_memory_and_its_way(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(3)))
    assert rows(path, "SELECT DISTINCT host_memory FROM cuda_events WHERE op = 'cudaMemcpyAsync'") == [("pageable",)]
    found = rows(path, "SELECT op_name, host_to_gpu_bytes, gpu_to_host_bytes, blocked_ns FROM copies")
    assert found == [("cudaMemcpyAsync", 3 * 4096, 0, 180_000)]


def test_sums_of_each_second_are_those_of_the_calls(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(baseTimeNanoseconds=files.BASE_NS + 997_000_000))  # a second ends in it
    sums = rows(path, "SELECT op_name, count(*), sum(count), sum(sum_ns), sum(nested) FROM op_stats GROUP BY 1")
    assert sums == [
        ("cuLaunchKernel", 1, 0, 0, 24),
        ("cudaLaunchKernel", 2, 24, 192_000, 0),
        ("cudaMemcpyAsync", 2, 6, 360_000, 0),
    ]
    assert rows(path, "SELECT sum(count) FROM kernel_launches") == [(24,)]


def test_kernels_have_the_same_number_in_every_recording(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(3)))
    found = rows(path, "SELECT function, name, short_name FROM raw_kernels ORDER BY 2 DESC")
    names = sorted(files.KERNELS, reverse=True)
    assert [row[0] for row in found] == [function_id(name) for name in names]
    assert [row[1:] for row in found] == list(zip(names, ("at::native::elementwise<...>", "sm90_gemm"), strict=True))


def test_activities_have_kind_kernel_call_and_memory(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(1)))
    columns = "kind, kernel_name, bytes, direction, host_memory, gpu_id, stream, timestamp - call_ns"
    assert rows(path, f"SELECT {columns} FROM gpu_activities ORDER BY timestamp LIMIT 2") == [
        ("memcpy", None, 4096, "host_to_gpu", "pageable", 0, 7, 20_000),
        ("kernel", files.KERNELS[0], 0, None, None, 0, 7, 15_000),
    ]


def test_ranges_are_stored_with_their_kind(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(3)))
    assert rows(path, "SELECT kind, count(*), sum(duration_ns) FROM user_ranges GROUP BY 1") == [
        ("data_loading", 3, 900_000),
        ("operator", 12, 240_000),
        ("step", 3, 2_970_000),
    ]


def test_steps_are_those_that_repeat_and_agree_with_the_marks(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace())
    found = rows(path, "SELECT how, step_type, launches, copies, host_to_gpu_bytes, blocked_copy_ns FROM steps")
    assert found == [("both", "4 launches, 1 copies", 4, 1, 4096, 60_000)] * files.STEPS


def test_marked_steps_are_taken_where_nothing_repeats(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(2)))
    assert rows(path, "SELECT how, duration_ns, launches FROM steps") == [("user", 990_000, 4)] * 2


def test_steps_without_marks_are_found_by_repetition(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(unmarked()))
    assert rows(path, "SELECT how, count(*) FROM steps GROUP BY 1") == [("repetition", files.STEPS)]


def unmarked() -> list[files.Event]:
    """Six steps whose program says nothing of them."""
    return [one for one in files.training() if not str(one.get("name")).startswith("ProfilerStep")]


def marked(*marks: tuple[float, float]) -> list[files.Event]:
    """The same with marks (begin, end) in steps."""
    spans = [(100 + begin * files.STEP_US, (end - begin) * files.STEP_US - 10) for begin, end in marks]
    marking = [
        files.event("user_annotation", f"iteration {number}", begin, lasting)
        for number, (begin, lasting) in enumerate(spans)
    ]
    return [*unmarked(), *marking]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        (((0, 3), (3, 6)), ("user", 2, 12)),  # three layers each
        (((0, 3), (0, 1), (1, 2), (3, 6), (3, 6)), ("user", 2, 12)),  # with others inside, and one twice
        (((0, 1), (1, 2)), ("repetition", 6, 4)),  # of two steps only
        (((0, 6),), ("repetition", 6, 4)),  # of the whole loop
    ],
)
def test_marks_around_all_work_are_the_steps_whatever_repeats(
    tmp_path: Path, marks: tuple[tuple[float, float], ...], expected: Row
) -> None:
    path = imported(tmp_path, new_trace(marked(*marks)))
    assert rows(path, "SELECT how, count(*), launches FROM steps GROUP BY how, launches") == [expected]


def test_a_file_without_calls_has_the_steps_of_what_its_gpu_did(tmp_path: Path) -> None:
    events = [one for one in unmarked() if one.get("cat") not in ("cuda_runtime", "cuda_driver")]
    path = imported(tmp_path, new_trace(events))
    assert rows(path, "SELECT count(*), device, stream FROM raw_steps") == [(6, 0, 7)]
    ((mean,),) = rows(path, "SELECT avg(duration_ns) FROM steps WHERE start_ns > (SELECT min(start_ns) FROM steps)")
    assert mean == pytest.approx(1_000_000, rel=0.05)


@pytest.mark.parametrize("missing", [("kernel",), ("kernel", "gpu_memcpy")])
def test_of_launches_whose_kernels_are_not_in_the_file_nothing_is_said_to_repeat(
    tmp_path: Path, missing: tuple[str, ...]
) -> None:
    path = imported(tmp_path, new_trace([one for one in unmarked() if one.get("cat") not in missing]))
    assert rows(path, "SELECT count(*) FROM steps") == [(0,)]
    with open_reader(path) as reader:
        window = reader.time_range()
        assert window is not None
        found = diagnose(reader, window)
    assert found.profiles is None or found.profiles.reports == ()
    assert found.incidents == ()
    assert not any("GPU busy" in verdict.text for verdict in found.verdicts)


def test_a_copy_that_waited_marks_how_far_the_gpu_was(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(3)))
    found = rows(path, "SELECT kind, position, stream FROM progress_marks")
    assert found == [("copy", 5, 7), ("copy", 10, 7)]  # what lay before it; before the first there was nothing


def test_a_synchronization_marks_how_far_each_stream_was(tmp_path: Path) -> None:
    events = [*files.training(3), call("cudaDeviceSynchronize", 1850, 100, 9001)]
    path = imported(tmp_path, new_trace(events))
    assert rows(path, "SELECT position FROM progress_marks WHERE kind = 'sync'") == [(10,)]


def test_stacks_are_stored_innermost_first_with_what_called_the_library(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.training(3)))
    ((frames, count),) = rows(
        path, "SELECT s.frames, count(*) FROM events e JOIN stack_traces s ON s.hash = e.stack_hash GROUP BY s.hash"
    )
    assert count == 15
    assert [frame.get("py_file", frame.get("symbol")) for frame in json.loads(frames)] == [
        "<built-in method linear of type object>",
        "torch/nn/modules/module.py",
        "train.py",
    ]


def test_ranks_of_a_job_are_its_processes_in_their_order(tmp_path: Path) -> None:
    path = imported(tmp_path, tar_of(ranks(3)), name="job.tar.gz")
    found = rows(path, "SELECT rank, world_size, cmdline FROM processes ORDER BY process")
    assert found == [(0, 3, "rank0.json"), (1, 3, "rank1.json"), (2, 3, "rank2.json")]
    assert rows(path, "SELECT count(DISTINCT process) FROM events") == [(3,)]


def test_process_groups_become_communicators_that_ranks_share(tmp_path: Path) -> None:
    sources = []
    for rank in (0, 1):
        told = {
            "Collective name": "allreduce",
            "Process Group Name": "7",
            "Process Group Ranks": [0, 1],
            "Group size": 2,
        }
        events = [call("cudaLaunchKernel", 10, 5, 1), kernel("ncclDevKernel_AllReduce", 20, 50, 1, **told)]
        source = tmp_path / f"rank{rank}.json"
        source.write_bytes(new_trace(events, distributedInfo={"rank": rank, "world_size": 2}))
        sources.append(source)
    path = recorded(tmp_path, *sources)
    found = rows(path, "SELECT comm_id_hash, rank, nranks, collectives FROM communicators ORDER BY rank")
    assert found[0][0] == found[1][0]
    assert [row[1:] for row in found] == [(0, 2, 1), (1, 2, 1)]
    assert rows(path, "SELECT rank, communicator FROM gpu_activities ORDER BY 1") == [(0, 1), (1, 2)]


def test_the_session_says_what_it_is_and_what_is_not_in_it(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace())
    with open_reader(path) as reader:
        (session,) = reader.sessions()
    assert json.loads(session.options) == {"import": "PyTorch profiler", "files": "trace.json"}
    assert set(json.loads(session.not_traced).values()) == {NOT_SHOWN}
    assert (session.node, session.gpu_model, session.cuda_ver) == ("imported", "NVIDIA H100", "12.4")
    assert session.started_ns == files.BASE_NS + 99_000


def test_the_host_of_an_nsight_export_is_the_node(tmp_path: Path) -> None:
    path = recorded(tmp_path, database(tmp_path / "profile.sqlite", nsight_tables()))
    assert rows(path, "SELECT node, cpu_cores, gpu_model FROM sessions") == [("node-7", 18, "NVIDIA A100")]
    assert rows(path, "SELECT uuid FROM gpus") == [("GPU-cf6b97c0",)]
    assert rows(path, "SELECT kind, count(*) FROM progress_marks GROUP BY 1") == [("copy", 12), ("sync", 12)]


def test_what_was_dropped_is_among_the_drops(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace([*files.training(), call("cudaMalloc", -5, 1, 1)]))
    found = rows(path, "SELECT counter, reason, count FROM drops")
    assert found == [("profile_records_dropped", "records of the profile without a usable time", 1)]


def test_nothing_is_found_in_a_healthy_profile(tmp_path: Path) -> None:
    path = imported(tmp_path, new_trace(files.busy_training()))
    with open_reader(path) as reader:
        window = reader.window(None, 1 << 62)
        assert window is not None
        assert diagnose(reader, window).incidents == ()


def test_a_launch_on_a_full_queue_marks_what_had_just_ended(tmp_path: Path) -> None:
    events = []
    for number in range(1200):  # the GPU takes ten times as long as the launch of each kernel
        begin = 10.0 * number
        waits = number == 1100
        events.append(call("cudaLaunchKernel", begin, 500.0 if waits else 5.0, number + 1))
        events.append(kernel("k", 20 + 100.0 * number, 99, number + 1))
    path = imported(tmp_path, new_trace([one for one in events if one["ts"] <= 11_000 or one["cat"] == "kernel"]))
    (mark,) = rows(path, "SELECT kind, position, timestamp FROM progress_marks")
    assert mark == ("full_queue", 114, files.BASE_NS + 11_500_000)
