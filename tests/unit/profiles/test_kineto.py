"""Traces of PyTorch's profiler, old and new: calls, activities, ranges and stacks are read as they were meant."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ingero.events import HostMemory
from ingero.ops import BY_ID
from ingero.profiles import columns
from ingero.profiles.kineto import NO_EVENT, UNREADABLE_ARGS
from ingero.profiles.model import NO_TIME, ActivityKind, Direction, Frame, Notes, Profile, ProfileError, RangeKind
from tests.unit.profiles import files
from tests.unit.profiles.files import call, copy, event, kernel, new_trace, old_trace, read, training

Array = np.ndarray[tuple[int, ...], np.dtype[np.void]]


def names(profile: Profile) -> list[str]:
    """The names of the calls, in order."""
    return [BY_ID[op].name for op in profile.calls["op"].tolist()]


def ranges(profile: Profile, kind: RangeKind) -> list[str]:
    """The names of the ranges of a kind."""
    rows = profile.ranges[profile.ranges["kind"] == kind]
    return [profile.texts[index] for index in rows["name"].tolist()]


def test_times_count_from_the_base_of_the_file() -> None:
    (profile,) = read(new_trace([call("cudaLaunchKernel", 1.5, 2.25, 1)]))
    assert profile.calls[["start_ns", "end_ns"]].tolist() == [(files.BASE_NS + 1500, files.BASE_NS + 3750)]
    assert profile.origin.has_unix_times


def test_times_of_the_unix_clock_keep_each_nanosecond() -> None:
    data = new_trace([call("cudaLaunchKernel", 0, 0, 1)], baseTimeNanoseconds=0)
    (profile,) = read(data.replace(b'"ts": 0', b'"ts": 1712195495519689.047').replace(b'"dur": 0', b'"dur": 6.765'))
    assert profile.calls[["start_ns", "end_ns"]].tolist() == [(1712195495519689047, 1712195495519695812)]


def test_a_file_without_a_date_says_so_and_keeps_its_order() -> None:
    notes = Notes()
    (profile,) = read(new_trace(baseTimeNanoseconds=None), notes=notes)
    assert not profile.origin.has_unix_times
    assert profile.begin_ns == 1_000_000_000_000_000_000 + 100_000
    assert notes.lacks == ["trace.json does not say when it was recorded: its times are counted from 2001-09-09"]


def test_an_array_of_events_is_read_as_well_as_an_object() -> None:
    (profile,) = read(json.dumps(training()).encode())
    assert len(profile.calls) == 5 * files.STEPS


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000, 1 << 20])
def test_the_chunks_in_which_a_file_comes_change_nothing(chunk_bytes: int) -> None:
    (whole,), (parts,) = read(new_trace()), read(new_trace(), chunk_bytes=chunk_bytes)
    assert whole.texts == parts.texts
    for name in ("calls", "activities", "ranges"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist()


def test_rank_host_and_gpu_are_those_of_the_file() -> None:
    (profile,) = read(new_trace())
    assert (profile.pid, profile.name, profile.rank, profile.world_size) == (files.PID, "python3", 1, 2)
    assert (profile.gpus[0].name, profile.origin.cuda_ver) == ("NVIDIA H100", "12.4")
    assert profile.threads == {files.MAIN: "pt_main"}


def test_only_outermost_calls_count() -> None:
    (profile,) = read(new_trace())
    assert set(names(profile)) == {"cudaMemcpyAsync", "cudaLaunchKernel"}
    assert {BY_ID[op].name: count for op, count in profile.nested.items()} == {"cuLaunchKernel": 4 * files.STEPS}


def test_a_call_that_is_stored_under_two_names_counts_once() -> None:
    twice = [call("cudaLaunchKernel", 10, 5, 1), call("cudaLaunchKernel_ptsz", 10, 5, 1)]
    (profile,) = read(new_trace([*twice, kernel("k", 20, 5, 1)]))
    assert names(profile) == ["cudaLaunchKernel"]


def test_calls_that_follow_each_other_within_the_clock_step_all_count() -> None:
    (profile,) = read(new_trace([call("cudaLaunchKernel", 10, 2, 1), call("cudaEventRecord", 12, 0, 2)]))
    assert len(profile.calls) == 2


def test_the_profilers_own_synchronizations_are_left_out_and_counted() -> None:
    notes = Notes()
    own = [*training(), call("cudaDeviceSynchronize", 9000, 50, 9001)]
    (profile,) = read(new_trace(own), notes=notes)
    assert "cudaDeviceSynchronize" not in names(profile)
    assert notes.remarks["left out, device synchronizations that the profiler made itself"] == 2


def test_a_synchronization_of_the_program_stays() -> None:
    (profile,) = read(new_trace([*training(), call("cudaDeviceSynchronize", 1050, 20, 9001)]))
    assert names(profile).count("cudaDeviceSynchronize") == 1


def test_a_call_has_stream_device_bytes_and_direction_of_what_it_enqueued() -> None:
    (profile,) = read(new_trace())
    copied = profile.calls[profile.calls["bytes"] > 0]
    assert set(copied[["device", "stream", "bytes", "direction"]].tolist()) == {(0, 7, 4096, Direction.HOST_TO_GPU)}
    launched = profile.calls[profile.calls["function"] > 0]
    assert {profile.texts[index] for index in launched["function"].tolist()} == set(files.KERNELS)


def test_an_activity_knows_its_call_and_its_host_memory() -> None:
    (profile,) = read(new_trace())
    copies = profile.activities[profile.activities["kind"] == ActivityKind.MEMCPY]
    assert set(copies["host_memory"].tolist()) == {HostMemory.PAGEABLE}
    starts = profile.calls["start_ns"][profile.calls["bytes"] > 0]
    assert copies["call_ns"].tolist() == starts.tolist()


def test_the_stream_of_a_wait_is_the_one_that_the_profiler_names() -> None:
    wait = event("cuda_sync", "Stream Sync", 60, 20, cuda_sync_kind="Stream Sync", stream=20, correlation=3)
    events = [call("cudaLaunchKernel", 10, 5, 1), kernel("k", 20, 5, 1)]
    events += [call("cudaStreamSynchronize", 60, 20, 3), wait | {"pid": 0, "tid": 20}]
    (profile,) = read(new_trace(events))
    assert profile.calls["stream"].tolist() == [7, 20]
    assert profile.activities["kind"].tolist() == [ActivityKind.KERNEL, ActivityKind.SYNC]


def test_the_stream_of_a_wait_is_else_the_one_that_its_thread_used_last() -> None:
    events = [call("cudaLaunchKernel", 10, 5, 1), kernel("k", 20, 5, 1), call("cudaStreamSynchronize", 60, 20, 3)]
    (profile,) = read(new_trace(events))
    assert profile.calls["stream"].tolist() == [7, 7]


def test_activities_without_call_and_calls_without_activity_are_kept_and_counted() -> None:
    notes = Notes()
    (profile,) = read(new_trace([call("cudaLaunchKernel", 10, 5, 1), kernel("k", 20, 5, 2)]), notes=notes)
    assert (len(profile.calls), profile.activities["call_ns"].tolist()) == (1, [0])
    assert notes.remarks["kept, GPU activities whose call is not in the file"] == 1
    assert notes.remarks["kept, launches and copies whose GPU activity is not in the file"] == 1


def test_ranges_are_told_apart() -> None:
    (profile,) = read(new_trace([*training(1), event("user_annotation", "## forward ##", 410, 30)]))
    assert ranges(profile, RangeKind.STEP) == ["ProfilerStep#3"]
    assert ranges(profile, RangeKind.DATA_LOADING) == ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"]
    assert ranges(profile, RangeKind.RANGE) == ["## forward ##"]
    assert ranges(profile, RangeKind.OPERATOR) == ["aten::linear"] * 4


def test_the_stack_of_a_call_is_innermost_first_and_without_what_stands_for_modules() -> None:
    (profile,) = read(new_trace())
    stacks = {profile.stacks[index] for index in profile.calls["stack"].tolist()}
    linear = Frame("", 0, "<built-in method linear of type object>")
    module = Frame("torch/nn/modules/module.py", 1501, "_call_impl")
    assert stacks == {(linear, module, Frame("train.py", 88, "step"))}


def test_a_file_of_2021_is_read_with_its_stacks() -> None:
    (profile,) = read(old_trace())
    assert profile.begin_ns == 1_623_142_623_000_100_000
    assert (len(profile.calls), len(profile.activities)) == (5 * files.STEPS, 5 * files.STEPS)
    assert profile.calls["stream"].tolist() == [7] * (5 * files.STEPS)
    assert len(ranges(profile, RangeKind.STEP)) == files.STEPS
    launched = profile.calls[profile.calls["function"] > 0]
    frames = profile.stacks[launched["stack"][0]]
    assert [frame.file for frame in frames[:2]] == ["/env/site-packages/torch/nn/linear.py", "train.py"]


def test_hip_calls_are_known_by_their_cuda_names() -> None:
    hip = ["hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemcpyWithStream", "hipStreamSynchronize", "hipGetDevice"]
    (profile,) = read(new_trace([call(name, 10 * index, 5, index + 1) for index, name in enumerate(hip)]))
    assert names(profile) == ["cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpy", "cudaStreamSynchronize"]


def test_a_collective_names_its_process_group() -> None:
    told = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
    events = [call("cudaLaunchKernel", 10, 5, 1), kernel("ncclDevKernel_AllReduce", 20, 50, 1, **told)]
    (profile,) = read(new_trace(events))
    assert [(group.name, group.ranks, group.size) for group in profile.groups] == [("0", (0, 1), 2)]
    assert profile.activities["group"].tolist() == [0]


def test_two_processes_of_one_file_are_told_apart() -> None:
    other = [one | {"pid": 4200} for one in (call("cudaLaunchKernel", 10, 5, 9001), call("cudaMalloc", 20, 5, 9002))]
    first, second = read(new_trace([*training(), *other, kernel("k", 20, 5, 9001)]))
    assert (first.pid, second.pid) == (files.PID, 4200)
    assert [second.texts[index] for index in second.activities["name"].tolist()] == ["k"]


def test_a_cut_file_gives_everything_before_the_cut_and_says_where_it_is() -> None:
    notes, data = Notes(), new_trace()
    (profile,) = read(data[: data.index(b"ProfilerStep#7")], notes=notes)
    assert len(profile.calls) == 4 * 5
    assert notes.lacks[0].startswith("trace.json is cut after ")


BAD = [
    (event("cuda_runtime", "cudaMalloc", -5, 1, correlation=1), NO_TIME),
    (event("cuda_runtime", "cudaMalloc", 5, -1, correlation=1), NO_TIME),
    (event("cuda_runtime", "cudaMalloc", 1e300, 1, correlation=1), NO_TIME),
    (event("cuda_runtime", "cudaMalloc", 5, 1e16, correlation=1), NO_TIME),
    ({"ph": "X", "cat": "kernel", "name": "k", "dur": 5}, NO_TIME),
    (event("cuda_runtime", "cudaMalloc", 5, 1) | {"ts": "yesterday"}, NO_TIME),
    (event("cuda_runtime", "cudaMalloc", 5, 1) | {"args": [1, 2]}, UNREADABLE_ARGS),
    (event("kernel", "k", 5, 1, device=[0]), UNREADABLE_ARGS),
    ([1, [2]], NO_EVENT),
    (event("cuda_runtime", "cudaMalloc", 5, 1) | {"name": {"a": 1}}, NO_EVENT),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_record_is_dropped_and_counted(bad: object, reason: str) -> None:
    notes = Notes()
    (profile,) = read(json.dumps({"traceEvents": [*training(), bad]}).encode(), notes=notes)
    assert len(profile.calls) == 5 * files.STEPS
    assert notes.dropped == {reason: 1}


def test_what_is_not_json_but_meant_well_is_read() -> None:
    first = json.dumps(copy("Memcpy DtoD", 10, 5, 1, 8)).replace("8}", '8, "bandwidth": inf, "other": -nan}')
    second = json.dumps(call("cudaMalloc", 20, 5, 2)).replace("cudaMalloc", "cuda\x01Malloc").encode()
    third = json.dumps(call("cudaFree", 30, 5, 3)).encode().replace(b"cudaFree", b"cudaFree\xff")
    notes = Notes()
    (profile,) = read(b'{"traceEvents": [' + b",".join([first.encode(), second, third]) + b"]}", notes=notes)
    assert not notes.dropped
    assert (len(profile.activities), len(profile.texts)) == (1, 4)


def test_a_long_name_is_cut() -> None:
    (profile,) = read(new_trace([kernel("k" * 100_000, 10, 5, 1), call("cudaMalloc", 1, 1, 1)]))
    assert max(map(len, profile.texts)) == columns.MAX_TEXT_CHARACTERS


def test_more_names_than_allowed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_TEXTS", 3)
    notes = Notes()
    read(new_trace([kernel(f"k{index}", 10 * index, 5, index) for index in range(10)]), notes=notes)
    assert notes.dropped == {columns.TOO_MANY_TEXTS: 8}


def test_more_rows_than_allowed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_ROWS", 3)
    notes = Notes()
    (profile,) = read(new_trace([kernel("k", 10 * index, 5, index) for index in range(10)]), notes=notes)
    assert (len(profile.activities), notes.dropped) == (3, {columns.TOO_MANY_ROWS: 7})


def test_a_file_without_events_is_no_process() -> None:
    assert read(new_trace([])) == []


def test_processes_that_are_named_by_texts_stay_apart() -> None:
    """Tools that put the files of all ranks into one name them so."""
    found = []
    for rank in range(2):
        for one in training(3):
            args = {key: value + 10_000 * rank if key == "correlation" else value for key, value in one["args"].items()}
            is_gpu = one.get("cat") in ("kernel", "gpu_memcpy")
            found.append(one | {"pid": 0 if is_gpu else f"rank {rank}", "args": args})
    first, second = read(new_trace(found))
    assert first.pid != second.pid
    assert [len(one.calls) for one in (first, second)] == [len(one.activities) for one in (first, second)] == [15, 15]


def test_a_file_of_operators_alone_says_what_to_profile() -> None:
    events = [one for one in training() if one.get("cat") in ("cpu_op", "user_annotation")]
    with pytest.raises(ProfileError) as raised:
        read(new_trace(events))
    assert raised.value.hint == "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


def test_a_file_that_is_cut_before_its_first_call_says_so() -> None:
    data = new_trace()
    with pytest.raises(ProfileError, match="is cut before the first GPU call"):
        read(data[: data.index(b"cudaDeviceSynchronize")])


@pytest.mark.parametrize(
    ("hip", "cuda"),
    [
        ("hipLaunchKernel", "cudaLaunchKernel"),
        ("hipDrvLaunchKernelEx", "cuLaunchKernelEx"),
        ("hipMemcpyAsync_spt", "cudaMemcpyAsync"),
        ("hipCtxSynchronize", "cuCtxSynchronize"),
        ("hipModuleLoadDataEx", "cuModuleLoadDataEx"),
        ("cudaLaunch_v3020", "cudaLaunchKernel"),
    ],
)
def test_calls_of_hip_and_of_earlier_cuda_have_the_names_of_todays(hip: str, cuda: str) -> None:
    (profile,) = read(new_trace([call(hip, 1, 2, 1)]))
    assert names(profile) == [cuda]
