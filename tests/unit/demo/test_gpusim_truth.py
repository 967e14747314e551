"""What the ground-truth file says, against what a program is known to have done."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import json
from pathlib import Path

import pytest

from ingero.demo.gpusim import truth
from tests.unit.gpusim_fixtures import Rig, finish, gpusim_lib, rig

MS = 1_000_000

MANY_CALLS = """
    import threading
    work = kernel(1000)
    error, address = malloc(4096)
    host = c.create_string_buffer(4096)
    def run():
        for i in range(2000):
            launch(work)
            if i % 10 == 0:
                check(runtime.cudaMemcpyAsync(address, c.addressof(host), 64, 1, None))
            if i % 100 == 0:
                check(runtime.cudaStreamSynchronize(None))
    threads = [threading.Thread(target=run) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""


def _counts(run: truth.Truth, layer: str, names: tuple[str, ...]) -> list[tuple[int, int]]:
    return [(run.calls[layer, name].outer, run.calls[layer, name].nested) for name in names]


@pytest.mark.parametrize("runtime", ["11", "12", "13"])
@pytest.mark.parametrize("gpa", ["exported", "internal"])
def test_every_call_is_counted_once_in_each_layer(rig: Rig, runtime: str, gpa: str) -> None:
    children = [rig.start(MANY_CALLS, runtime=runtime, gpa=gpa, sched="block") for _ in range(2)]
    for child in children:
        finish(child)
    expected = [2 * 4 * 2000, 2 * 4 * 200, 2 * 4 * 20, 2]
    run = rig.truth()
    outer = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc")
    nested = ("cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuMemAlloc_v2")
    assert _counts(run, "runtime", outer) == [(count, 0) for count in expected]
    assert _counts(run, "driver", nested) == [(0, count) for count in expected]


def test_one_file_per_process_adds_up_to_the_same(rig: Rig) -> None:
    pattern = rig.trace.with_name("truth.%p")
    children = [rig.start(MANY_CALLS, trace=pattern, sched="block") for _ in range(2)]
    for child in children:
        finish(child)
    assert len(list(rig.trace.parent.glob("truth.*"))) == 2
    assert truth.read_all(pattern).count("cudaLaunchKernel") == 2 * 4 * 2000


def test_a_forked_child_writes_a_file_of_its_own(rig: Rig) -> None:
    pattern = rig.trace.with_name("truth.%p")
    pids = rig.run(
        """
        import os
        read, write = os.pipe()
        child = os.fork()
        for _ in range(3 if child == 0 else 5):
            check(malloc(4096)[0])
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        print(json.dumps([os.getpid(), child]))
        """,
        trace=pattern,
    )
    counts = [truth.read(str(pattern).replace("%p", str(pid))).count("cudaMalloc") for pid in pids]
    assert counts == [5, 3]


def test_driver_calls_of_the_application_are_not_nested(rig: Rig) -> None:
    rig.run("check(malloc(4096)[0]); cuda = driver(); [check(cuda.cuCtxSynchronize()) for _ in range(7)]")
    calls = rig.truth().calls["driver", "cuCtxSynchronize"]
    assert (calls.outer, calls.nested) == (7, 0)


def test_errors_are_counted_and_not_ready_is_none(rig: Rig) -> None:
    rig.run(
        """
        launch(kernel(PLUG_NS))
        assert runtime.cudaStreamQuery(None) == 600
        assert malloc(1 << 50)[0] == 2
        """
    )
    calls = rig.truth().calls
    assert calls["runtime", "cudaStreamQuery"].errors == 0
    assert calls["runtime", "cudaMalloc"].errors == 1


def test_an_sync_interval_has_its_begin_first_enqueue_device_end_and_return(rig: Rig) -> None:
    rig.run(
        """
        import time
        work = kernel(20 * MS)
        for _ in range(3):
            time.sleep(0.01)
            launch(work)
            launch(work)
            check(runtime.cudaStreamSynchronize(None))
            check(runtime.cudaStreamSynchronize(None))  # nothing enqueued: no sync interval of its own
        """,
        sched="block",
    )
    syncs = rig.truth().interval_ends
    assert syncs["enqueues"].tolist() == [2, 2, 2]
    assert syncs["begin_ns"].tolist() == [0, *syncs["return_ns"][:2].tolist()]
    assert (syncs["first_enqueue_ns"][1:] - syncs["begin_ns"][1:] >= 10 * MS).all()
    assert (syncs["device_end_ns"] - syncs["first_enqueue_ns"] >= 40 * MS).all()
    assert (syncs["return_ns"] >= syncs["device_end_ns"]).all()


def test_an_event_that_later_work_has_overtaken_syncs_nothing(rig: Rig) -> None:
    rig.run(
        """
        work = kernel(5 * MS)
        launch(work)
        overtaken = recorded_event()
        launch(work)
        check(runtime.cudaEventSynchronize(overtaken))
        check(runtime.cudaEventSynchronize(recorded_event()))
        """
    )
    run = rig.truth()
    assert [run.function_names[sync["function"]] for sync in run.syncs] == ["cudaEventSynchronize"] * 2
    assert run.interval_ends["enqueues"].tolist() == [2]


def test_a_device_synchronization_syncs_every_stream(rig: Rig) -> None:
    rig.run(
        """
        for where in (stream(), stream(), None):
            launch(kernel(2 * MS), where)
        check(runtime.cudaDeviceSynchronize())
        """
    )
    run = rig.truth()
    assert len(set(run.interval_ends["stream"].tolist())) == 3
    assert run.syncs["stream"].tolist() == [0]


def test_a_blocking_copy_is_a_sync(rig: Rig) -> None:
    rig.run(
        """
        error, address = malloc(4096)
        host = c.create_string_buffer(4096)
        launch(kernel(2 * MS))
        check(runtime.cudaMemcpy(c.addressof(host), address, 4096, 2))
        """
    )
    run = rig.truth()
    assert [run.function_names[sync["function"]] for sync in run.interval_ends] == ["cudaMemcpy"]
    assert run.interval_ends["enqueues"].tolist() == [2]


ADDRESSES = """
    cuda = driver()
    addresses = {}
    for name, version in (("cuLaunchKernel", 4000), ("cuMemAlloc", 3020), ("cuStreamSynchronize", 2000)):
        for flags in (0, 2):
            address, found = c.c_void_p(), c.c_int()
            resolve = cuda.cuGetProcAddress_v2
            check(resolve(name.encode(), c.byref(address), version, c.c_uint64(flags), c.byref(found)))
            symbol = {"cuMemAlloc": "cuMemAlloc_v2"}.get(name, name)
            if flags and symbol != "cuMemAlloc_v2":
                symbol += "_ptsz"
            addresses[f"{symbol}/{flags}"] = address.value == c.cast(cuda[symbol], c.c_void_p).value
    print(json.dumps(addresses))
"""


@pytest.mark.parametrize(("gpa", "is_exported"), [("exported", True), ("internal", False)])
def test_the_driver_hands_out_exported_or_internal_entries(rig: Rig, gpa: str, is_exported: bool) -> None:
    addresses = rig.run(ADDRESSES, gpa=gpa)
    assert len(addresses) == 6
    assert set(addresses.values()) == {is_exported}


def test_an_internal_entry_begins_with_a_nop_too(rig: Rig) -> None:
    assert (
        rig.run(
            """
            address = c.c_void_p()
            check(driver().cuGetProcAddress_v2(b"cuLaunchKernel", c.byref(address), 4000, c.c_uint64(0), None))
            print(c.cast(address, c.POINTER(c.c_ubyte))[0])
            """,
            gpa="internal",
        )
        == 0x90
    )


def test_the_version_decides_which_function_a_name_means(rig: Rig) -> None:
    assert rig.run(
        """
        cuda, same = driver(), []
        for name, version, symbol in (
            ("cuStreamBeginCapture", 10000, "cuStreamBeginCapture"),
            ("cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"),
            ("cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"),
            ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
        ):
            address = c.c_void_p()
            check(cuda.cuGetProcAddress_v2(name.encode(), c.byref(address), version, c.c_uint64(0), None))
            same.append(address.value == c.cast(cuda[symbol], c.c_void_p).value)
        missing = cuda.cuGetProcAddress_v2(b"cuNoSuchThing", c.byref(address), 12000, c.c_uint64(0), None)
        print(json.dumps([same, missing]))
        """
    ) == [[True] * 4, 500]


def test_a_missing_file_says_which_variable_makes_one(tmp_path: Path) -> None:
    with pytest.raises(truth.TruthError, match="No such file") as error:
        truth.read(tmp_path / "none")
    assert "GPUSIM_TRACE" in error.value.hint


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text(json.dumps({}))
    with pytest.raises(truth.TruthError, match="too short"):
        truth.read(tmp_path / "other")
