"""Flame graphs and pprof profiles of recorded calls."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ingero.serve.export.flamegraph import NoBreakdownError, Weight, write_flamegraph
from ingero.serve.export.pprof import PprofWriter
from ingero.serve.export.samples import samples
from ingero.store.reader import open_reader
from ingero.store.streaming.streams import Streams
from tests.unit.export_recording import BEGIN_NS, make_recording, rows
from tests.unit.serve.test_export_timeline import WHOLE

OWN_LINE = "step: or so (train.py:42);Linear.forward (nn.py:34);at::native::gemm (libtorch_cuda.so)"
_CALLS = "FROM raw_events WHERE source IN (1, 4, 8, 9)"
_OFF_CPU = "runq_ns + throttled_ns + yielded_ns + sleep_ns + io_ns + uninterruptible_ns + stopped_ns"

# profile.proto of google/pprof: message -> (field, number, type, is repeated)
_PROFILE: dict[str, list[tuple[str, int, str, bool]]] = {
    "ValueType": [("type", 1, "INT64", False), ("unit", 2, "INT64", False)],
    "Label": [("key", 1, "INT64", False), ("str", 2, "INT64", False), ("num", 3, "INT64", False)],
    "Line": [("function_id", 1, "UINT64", False), ("line", 2, "INT64", False)],
    "Sample": [("location_id", 1, "UINT64", True), ("value", 2, "INT64", True), ("label", 3, "Label", True)],
    "Location": [("id", 1, "UINT64", False), ("line", 4, "Line", True)],
    "Function": [("id", 1, "UINT64", False), ("name", 2, "INT64", False), ("filename", 4, "INT64", False)],
    "Profile": [
        ("sample_type", 1, "ValueType", True),
        ("sample", 2, "Sample", True),
        ("location", 4, "Location", True),
        ("function", 5, "Function", True),
        ("string_table", 6, "STRING", True),
        ("time_nanos", 9, "INT64", False),
        ("duration_nanos", 10, "INT64", False),
        ("default_sample_type", 14, "INT64", False),
    ],
}


def profile_class() -> Any:
    """The message class that Google's protobuf library makes of the published field numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="pprof", syntax="proto3")
    for message, fields in _PROFILE.items():
        described = file.message_type.add(name=message)
        for name, number, kind, is_repeated in fields:
            field = described.field.add(name=name, number=number, label=3 if is_repeated else 1)
            if kind in _PROFILE:
                field.type, field.type_name = field.TYPE_MESSAGE, f".pprof.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pprof.Profile"))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recording(tmp_path_factory.mktemp("export") / "recording.db")


@pytest.fixture(scope="module")
def profile(database: Path) -> Any:
    written = bytearray()
    with open_reader(database) as reader:
        writer = PprofWriter(written.extend, WHOLE, has_breakdown=True)
        writer.write(samples(Streams(reader, WHOLE)))
        writer.finish()
    return profile_class().FromString(gzip.decompress(bytes(written)))


def collapsed(database: Path, weight: Weight) -> dict[str, int]:
    written = bytearray()
    with open_reader(database) as reader:
        write_flamegraph(samples(Streams(reader, WHOLE)), weight, written.extend)
    lines = [line.rpartition(" ") for line in written.decode().splitlines()]
    assert len({stack for stack, _, _ in lines}) == len(lines)
    return {stack: int(value) for stack, _, value in lines}


@pytest.mark.parametrize(
    ("weight", "total"),
    [(Weight.TIME, "sum(duration_ns)"), (Weight.CALLS, "count(*)"), (Weight.OFFCPU, f"sum({_OFF_CPU})")],
)
def test_the_weights_of_a_flame_graph_sum_up_to_the_database(database: Path, weight: Weight, total: str) -> None:
    assert [(sum(collapsed(database, weight).values()),)] == rows(database, f"SELECT {total} {_CALLS}")


def test_a_collapsed_stack_goes_from_the_process_to_the_call(database: Path) -> None:
    assert collapsed(database, Weight.TIME)[f"python3 [10], rank 0;{OWN_LINE};cudaMemcpyAsync"] == 8_000_000


def test_a_call_without_a_stack_says_so(database: Path) -> None:
    assert "python3 [20], rank 1;[no stack stored];cudaStreamSynchronize" in collapsed(database, Weight.TIME)


def test_time_off_the_cpu_of_calls_without_breakdown_is_an_error_and_not_zero(database: Path) -> None:
    with open_reader(database) as reader:
        without = [
            type(one)(
                process=one.process,
                pid=one.pid,
                op=one.op,
                places=one.places,
                calls=one.calls,
                time_ns=one.time_ns,
                offcpu_ns=None,
            )
            for one in samples(Streams(reader, WHOLE))
        ]
    with pytest.raises(NoBreakdownError):
        write_flamegraph(without, Weight.OFFCPU, lambda _: None)


def text(profile: Any, index: int) -> str:
    value: str = profile.string_table[index]
    return value


def labels(profile: Any, sample: Any) -> dict[str, str | int]:
    return {text(profile, one.key): text(profile, one.str) if one.str else one.num for one in sample.label}


def frames(profile: Any, sample: Any) -> list[tuple[str, str, int]]:
    """Innermost first: function, file, line."""
    locations = {one.id: one.line[0] for one in profile.location}
    functions = {one.id: one for one in profile.function}
    found = [locations[number] for number in sample.location_id]
    return [
        (text(profile, functions[one.function_id].name), text(profile, functions[one.function_id].filename), one.line)
        for one in found
    ]


def test_a_profile_has_counts_times_and_times_off_the_cpu(profile: Any) -> None:
    types = [(text(profile, one.type), text(profile, one.unit)) for one in profile.sample_type]
    assert types == [("calls", "count"), ("time", "nanoseconds"), ("off_cpu_time", "nanoseconds")]
    assert text(profile, profile.default_sample_type) == "time"


def test_the_values_of_a_profile_sum_up_to_the_database(profile: Any, database: Path) -> None:
    sums = tuple(sum(values) for values in zip(*(one.value for one in profile.sample), strict=True))
    assert [sums] == rows(database, f"SELECT count(*), sum(duration_ns), sum({_OFF_CPU}) {_CALLS}")


def test_a_profile_has_the_lines_of_python_and_the_native_functions(profile: Any) -> None:
    (sample,) = [one for one in profile.sample if labels(profile, one)["op"] == "cudaMemcpyAsync"]
    assert frames(profile, sample) == [
        ("cudaMemcpyAsync", "", 0),
        ("at::native::gemm", "libtorch_cuda.so", 0),
        ("Linear.forward", "/usr/lib/python3.11/site-packages/torch/nn.py", 34),
        ("step; or so", "/srv/train.py", 42),
    ]


def test_samples_are_labelled_with_call_process_and_rank(profile: Any) -> None:
    found = {tuple(sorted(labels(profile, one).items())) for one in profile.sample}
    wanted = {"op": "cudaStreamSynchronize", "pid": 20, "process": "python3", "rank": 1}
    assert tuple(sorted(wanted.items())) in found


def test_a_profile_says_when_it_was_taken(profile: Any) -> None:
    assert (profile.time_nanos, profile.duration_nanos) == (BEGIN_NS, WHOLE.duration_ns)


def test_the_first_string_of_a_profile_is_empty(profile: Any) -> None:
    assert profile.string_table[0] == ""
