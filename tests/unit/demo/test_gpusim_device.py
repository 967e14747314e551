"""The GPU's time: order, waiting, the bounded queue, copies, graphs, knobs. Times are the GPU's own, so a busy
host does not change them; PLUG_NS is how long a test has to enqueue what it measures behind a first kernel."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import pytest

from ingero.demo.gpusim.knobs import Knobs
from tests.unit.gpusim_fixtures import Rig, finish, gpusim_lib, rig, wait_until

MS = 1_000_000
RESOLUTION_NS = 64_000  # cudaEventElapsedTime's float, after seconds of uptime of a stream


def wait_for_open_call(rig: Rig, child: object, name: str) -> None:
    def is_open() -> bool:
        if not rig.trace.exists():
            return False
        calls = rig.truth().calls.get(("runtime", name))
        return calls is not None and calls.outer_in_flight == 1

    wait_until(is_open, child)  # type: ignore[arg-type]


@pytest.mark.parametrize("sched", ["spin", "yield", "block"])
def test_a_synchronization_returns_after_the_device_has_ended(rig: Rig, sched: str) -> None:
    rig.run(
        """
        work = kernel(20 * MS)
        for _ in range(5):
            launch(work)
            check(runtime.cudaStreamSynchronize(None))
        """,
        sched=sched,
    )
    syncs = rig.truth().syncs
    assert len(syncs) == 5
    assert (syncs["device_end_ns"] > syncs["enter_ns"]).all()
    assert (syncs["return_ns"] >= syncs["device_end_ns"]).all()


def test_kernels_of_one_stream_run_one_after_the_other(rig: Rig) -> None:
    assert rig.run(
        """
        where = stream()
        launch(kernel(PLUG_NS, "plug"), where)
        begin = recorded_event(where)
        for ms in (1, 2, 3):
            launch(kernel(ms * MS), where)
        print(elapsed_ns(begin, recorded_event(where)))
        """
    ) == pytest.approx(6 * MS, abs=RESOLUTION_NS)


def test_streams_overlap(rig: Rig) -> None:
    assert rig.run(
        """
        first, second = stream(), stream()
        launch(kernel(PLUG_NS, "plug"), first)
        begin = recorded_event(first)
        check(runtime.cudaStreamWaitEvent(second, begin, 0))
        launch(kernel(5 * MS), first)
        launch(kernel(5 * MS), second)
        end_of_first = recorded_event(first)
        check(runtime.cudaStreamWaitEvent(second, end_of_first, 0))
        print(elapsed_ns(begin, recorded_event(second)))
        """
    ) == pytest.approx(5 * MS, abs=RESOLUTION_NS)


def test_a_stream_goes_on_after_the_event_it_waits_for(rig: Rig) -> None:
    assert rig.run(
        """
        first, second = stream(), stream()
        begin = recorded_event(first)
        launch(kernel(PLUG_NS, "plug"), first)
        check(runtime.cudaStreamWaitEvent(second, recorded_event(first), 0))
        launch(kernel(5 * MS), first)  # after the recorded position: not waited for
        launch(kernel(1 * MS), second)
        end_of_second, end_of_first = recorded_event(second), recorded_event(first)
        print(elapsed_ns(end_of_second, end_of_first))
        """
    ) == pytest.approx(4 * MS, abs=RESOLUTION_NS)


def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(rig: Rig) -> None:
    assert rig.run(
        """
        blocking, independent = stream(0), stream(1)
        launch(kernel(PLUG_NS, "plug"), blocking)
        begin = recorded_event(blocking)
        launch(kernel(2 * MS))              # the legacy stream: after the plug
        launch(kernel(3 * MS), blocking)    # after the legacy stream
        launch(kernel(1 * MS), independent) # now
        check(runtime.cudaStreamSynchronize(independent))
        overtaken = runtime.cudaStreamQuery(c.c_void_p(blocking))
        print(json.dumps([elapsed_ns(begin, recorded_event(blocking)), overtaken]))
        """
    ) == [pytest.approx(5 * MS, abs=RESOLUTION_NS), 600]


def test_per_thread_default_streams_overlap(rig: Rig) -> None:
    rig.run(
        """
        import threading
        work = kernel(PLUG_NS)
        gate = threading.Barrier(2)
        def run():
            launch(kernel(1000), per_thread=True)  # creates the context
            gate.wait()
            launch(work, per_thread=True)
            check(runtime.cudaStreamSynchronize_ptsz(None))
        threads = [threading.Thread(target=run) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """
    )
    syncs = rig.truth().interval_ends
    assert len(set(syncs["stream"].tolist())) == 2
    assert abs(int(syncs["device_end_ns"][0]) - int(syncs["device_end_ns"][1])) < 400 * MS


def test_a_launch_waits_while_the_queue_is_full(rig: Rig) -> None:
    rig.run(
        """
        work = kernel(1 * MS)
        for _ in range(1024 + 100):
            launch(work)
        """
    )
    launches = rig.truth().calls["runtime", "cudaLaunchKernel"]
    assert launches.outer_ns > 50 * MS  # of 100 ms; while a loaded host is busy between the calls, the queue empties


def test_memory_beyond_the_limit_is_refused_until_some_is_freed(rig: Rig) -> None:
    with Knobs(rig.ctl) as knobs:
        knobs.mem_limit_bytes = 3 << 20
    assert rig.run(
        """
        error, first = malloc(2 << 20)
        check(error)
        refused, _ = malloc(2 << 20)
        remembered, forgotten = runtime.cudaGetLastError(), runtime.cudaGetLastError()
        check(runtime.cudaFree(first))
        print(json.dumps([refused, remembered, forgotten, malloc(2 << 20)[0]]))
        """
    ) == [2, 2, 0, 0]


def test_freeing_waits_for_the_device_but_ends_no_sync_interval(rig: Rig) -> None:
    rig.run(
        """
        error, address = malloc(4096)
        launch(kernel(30 * MS))
        check(runtime.cudaFree(address))
        """
    )
    truth = rig.truth()
    (sync,) = truth.syncs
    assert truth.function_names[sync["function"]] == "cudaFree"
    assert sync["return_ns"] >= sync["device_end_ns"] > sync["enter_ns"]
    assert len(truth.interval_ends) == 0


def test_a_copy_takes_its_bytes_over_the_bandwidth(rig: Rig) -> None:
    with Knobs(rig.ctl) as knobs:
        knobs.pcie_gbps = 2
    assert rig.run(
        """
        error, address = malloc(8_000_000)
        pinned = c.c_void_p()
        check(runtime.cudaMallocHost(c.byref(pinned), c.c_size_t(8_000_000)))
        launch(kernel(PLUG_NS, "plug"))
        begin = recorded_event()
        check(runtime.cudaMemcpyAsync(address, pinned, 8_000_000, 1, None))
        print(elapsed_ns(begin, recorded_event()))
        """
    ) == pytest.approx(4 * MS, abs=RESOLUTION_NS)


def test_a_small_copy_moves_the_bytes(rig: Rig) -> None:
    assert (
        rig.run(
            """
            error, address = malloc(16)
            there, back = c.create_string_buffer(b"fifteen letters", 16), c.create_string_buffer(16)
            check(runtime.cudaMemcpy(address, c.addressof(there), 16, 1))
            check(runtime.cudaMemcpy(c.addressof(back), address, 16, 2))
            print(json.dumps(back.value.decode()))
            """
        )
        == "fifteen letters"
    )


def test_a_graph_takes_its_longest_path(rig: Rig) -> None:
    assert rig.run(
        """
        first, second = stream(), stream()
        check(runtime.cudaStreamBeginCapture(first, 0))
        launch(kernel(2 * MS), first)
        check(runtime.cudaStreamWaitEvent(second, recorded_event(first), 0))
        launch(kernel(1 * MS), first)
        launch(kernel(5 * MS), second)
        check(runtime.cudaStreamWaitEvent(first, recorded_event(second), 0))
        launch(kernel(1 * MS), first)
        graph, executable = c.c_void_p(), c.c_void_p()
        check(runtime.cudaStreamEndCapture(first, c.byref(graph)))
        check(runtime.cudaGraphInstantiateWithFlags(c.byref(executable), graph, 0))
        launch(kernel(PLUG_NS, "plug"), first)
        begin = recorded_event(first)
        check(runtime.cudaGraphLaunch(executable, first))
        print(elapsed_ns(begin, recorded_event(first)))
        """
    ) == pytest.approx(8 * MS, abs=RESOLUTION_NS)


def test_a_knob_takes_effect_at_the_next_call(rig: Rig) -> None:
    with Knobs(rig.ctl) as knobs:
        child = rig.start(
            """
            work = kernel(2 * MS)
            launch(kernel(PLUG_NS, "plug"))
            first = recorded_event()
            launch(work)
            second = recorded_event()
            sys.stdin.readline()
            launch(kernel(PLUG_NS, "plug"))
            third = recorded_event()
            launch(work)
            print(json.dumps([elapsed_ns(first, second), elapsed_ns(third, recorded_event())]))
            """
        )
        wait_until(lambda: rig.trace.exists() and _launched(rig, 2), child)
        knobs.kernel_scale = 3
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        before, after = finish(child)
    assert before == pytest.approx(2 * MS, abs=RESOLUTION_NS)
    assert after == pytest.approx(6 * MS, abs=RESOLUTION_NS)


def _launched(rig: Rig, count: int) -> bool:
    calls = rig.truth().calls.get(("runtime", "cudaLaunchKernel"))
    return calls is not None and calls.outer == count


@pytest.mark.parametrize("sched", ["spin", "yield", "block"])
def test_a_hung_device_is_waited_for_until_it_goes_on(rig: Rig, sched: str) -> None:
    with Knobs(rig.ctl) as knobs:
        knobs.hang = 1
        child = rig.start("launch(kernel(1000)); check(runtime.cudaStreamSynchronize(None))", sched=sched)
        wait_for_open_call(rig, child, "cudaStreamSynchronize")
        assert len(rig.truth().syncs) == 0
        knobs.hang = 0
        finish(child)
    assert len(rig.truth().syncs) == 1


def test_a_device_error_is_what_waits_and_launches_return(rig: Rig) -> None:
    with Knobs(rig.ctl) as knobs:
        knobs.xid = 719
    assert rig.run(
        """
            work = kernel(1000)
            error = runtime.cudaLaunchKernel(work, Dim3(1, 1, 1), Dim3(1, 1, 1), None, 0, None)
            print(json.dumps([error, runtime.cudaStreamSynchronize(None)]))
            """
    ) == [719, 719]


def test_a_forked_child_cannot_use_its_parents_device(rig: Rig) -> None:
    assert (
        rig.run(
            """
            import os
            check(malloc(4096)[0])
            child = os.fork()
            if child == 0:
                os._exit(malloc(4096)[0])
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """
        )
        == 3
    )


def test_processes_share_a_device(rig: Rig) -> None:
    loop = """
        work = kernel(10 * MS)
        launch(work)
        check(runtime.cudaStreamSynchronize(None))
        for _ in range(20):
            launch(work)
            check(runtime.cudaStreamSynchronize(None))
    """
    children = [rig.start(loop, sched="block") for _ in range(2)]
    for child in children:
        finish(child)
    syncs = rig.truth().interval_ends
    assert len(set(syncs["pid"].tolist())) == 2
    # What one process takes from the other in its last kernels nobody pays back.
    assert syncs["device_end_ns"].max() - syncs["first_enqueue_ns"].min() > (42 - 3) * 10 * MS


def test_a_killed_process_leaves_neither_work_nor_memory_behind(rig: Rig) -> None:
    with Knobs(rig.ctl) as knobs:
        knobs.mem_limit_bytes = 3 << 20
    affected = rig.start(
        "check(malloc(2 << 20)[0]); launch(kernel(10**12)); check(runtime.cudaStreamSynchronize(None))"
    )
    wait_for_open_call(rig, affected, "cudaStreamSynchronize")
    affected.kill()
    affected.communicate()
    assert rig.run(
        """
        check(malloc(2 << 20)[0])
        where = stream()
        launch(kernel(PLUG_NS, "plug"), where)
        begin = recorded_event(where)
        launch(kernel(5 * MS), where)
        print(elapsed_ns(begin, recorded_event(where)))
        """
    ) == pytest.approx(5 * MS, abs=RESOLUTION_NS)


def test_devices_are_independent(rig: Rig) -> None:
    with Knobs(rig.ctl, device=1) as knobs:
        knobs.kernel_scale = 2
    assert rig.run(
        """
        times = []
        for device in (0, 1):
            check(runtime.cudaSetDevice(device))
            launch(kernel(PLUG_NS // 2, "plug"))
            begin = recorded_event()
            launch(kernel(3 * MS))
            times.append(elapsed_ns(begin, recorded_event()))
        print(json.dumps(times))
        """,
        devices=2,
    ) == [pytest.approx(3 * MS, abs=RESOLUTION_NS), pytest.approx(6 * MS, abs=RESOLUTION_NS)]
