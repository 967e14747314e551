"""Calls that wait although they are asynchronous by name: launches on a full queue, copies of ordinary memory."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import pytest

from ingero.demo.gpusim.knobs import Knobs
from tests.unit.gpusim_fixtures import Rig, gpusim_lib, rig

BUSY, DONE = 600, 0  # cudaErrorNotReady, cudaSuccess
MS = 1_000_000

COPIES = """
    BYTES = 4 << 20
    IN, OUT, INSIDE = 1, 2, 3
    pageable, registered = c.create_string_buffer(BYTES), c.create_string_buffer(BYTES)
    pinned = c.c_void_p()
    check(runtime.cudaHostAlloc(c.byref(pinned), c.c_size_t(BYTES), 0))
    check(runtime.cudaHostRegister(c.byref(registered), c.c_size_t(BYTES), 0))
    device, other = malloc(BYTES)[1], malloc(BYTES)[1]
    host = {"pageable": c.addressof(pageable), "registered": c.addressof(registered), "pinned": pinned.value}
    memory, way = sys.argv[1:]
    to, source, kind = {
        "in": lambda: (device, host[memory], IN),
        "out": lambda: (host[memory], device, OUT),
        "inside": lambda: (device, other, INSIDE),
    }[way]()
    launch(kernel(PLUG_NS, "plug"))
    plug = recorded_event()
    check(runtime.cudaMemcpyAsync(to, source, BYTES, kind, None))
    print(runtime.cudaEventQuery(c.c_void_p(plug)))
"""


@pytest.mark.parametrize(
    ("memory", "way", "expected"),
    [
        ("pageable", "in", DONE),
        ("pageable", "out", DONE),
        ("registered", "in", BUSY),
        ("pinned", "out", BUSY),
        ("pinned", "inside", BUSY),
    ],
)
def test_an_asynchronous_copy_waits_for_the_stream_if_its_memory_is_pageable(
    rig: Rig, memory: str, way: str, expected: int
) -> None:
    assert rig.run(COPIES, memory, way) == expected


def test_a_copy_from_pageable_memory_begins_after_its_wait_and_ends_the_sync_interval_before(rig: Rig) -> None:
    rig.run(
        """
        error, device = malloc(4 << 20)
        host = c.create_string_buffer(4 << 20)
        for _ in range(3):
            launch(kernel(20 * MS))
            check(runtime.cudaMemcpyAsync(device, c.addressof(host), 4 << 20, 1, None))
        """
    )
    seen = rig.truth()
    assert seen.interval_ends["enqueues"].tolist() == [1, 2, 2]  # the copy is the first of what follows
    assert (seen.interval_ends["first_enqueue_ns"][1:] >= seen.interval_ends["return_ns"][:-1]).all()
    assert (seen.syncs["return_ns"] >= seen.syncs["device_end_ns"]).all()


@pytest.mark.parametrize(
    ("kib", "expected"),
    [(64, [BUSY] * 5), (1024, [BUSY, BUSY, DONE, DONE, DONE]), (2048, [BUSY, BUSY, DONE, DONE, DONE])],
)
def test_up_to_two_mib_are_taken_along_while_no_more_than_one_such_copy_is_on_its_way(
    rig: Rig, kib: int, expected: list[int]
) -> None:
    """As on an H200: of 24 in a row the third waited for the kernel before them."""
    assert (
        rig.run(
            """
            BYTES = int(sys.argv[1]) << 10
            error, device = malloc(BYTES)
            host = c.create_string_buffer(BYTES)
            launch(kernel(PLUG_NS, "plug"))
            plug = c.c_void_p(recorded_event())
            found = []
            for _ in range(5):
                check(runtime.cudaMemcpyAsync(device, c.addressof(host), BYTES, 1, None))
                found.append(runtime.cudaEventQuery(plug))
            print(json.dumps(found))
            """,
            str(kib),
        )
        == expected
    )
    assert len(rig.truth().syncs) == 0  # how far the stream was is not what the third had waited for


@pytest.mark.parametrize(("way", "least_ms"), [("in", 5.5), ("out", 0)])  # one that wakes late finds them all there
def test_a_thread_that_sleeps_for_the_stream_copies_while_it_runs(rig: Rig, way: str, least_ms: float) -> None:
    """64 MiB, of which 12 move in a millisecond: once asleep, behind a kernel of 30 ms."""
    slept, ran_ms = rig.run(
        """
        import resource, time
        BYTES = 64 << 20
        error, device = malloc(BYTES)
        host = c.create_string_buffer(BYTES)
        check(runtime.cudaStreamSynchronize(None))
        launch(kernel(30 * MS))
        before, ran = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.thread_time_ns()
        to, source, kind = {
            "in": (device, c.addressof(host), 1), "out": (c.addressof(host), device, 2),
        }[sys.argv[1]]
        check(runtime.cudaMemcpyAsync(to, source, BYTES, kind, None))
        ran = time.thread_time_ns() - ran
        print(json.dumps([resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before, ran / MS]))
        """,
        way,
        sched="block",
    )
    assert slept == 1
    assert least_ms <= ran_ms < 20


def test_a_copy_to_pageable_memory_returns_a_little_after_its_end(rig: Rig) -> None:
    rig.run(
        """
        error, device = malloc(64)
        host = c.create_string_buffer(64)
        for _ in range(5):
            launch(kernel(5 * MS))
            check(runtime.cudaMemcpyAsync(c.addressof(host), device, 64, 2, None))
        """
    )
    syncs = rig.truth().interval_ends
    assert syncs["enqueues"].tolist() == [2] * 5
    assert (syncs["return_ns"] - syncs["device_end_ns"] >= 5_000).all()


def test_the_queue_takes_1022_and_the_next_launch_waits_for_the_first_of_them(rig: Rig) -> None:
    assert rig.run(
        """
        work = kernel(1000)
        launch(kernel(PLUG_NS, "plug"))
        plug = c.c_void_p(recorded_event())
        for _ in range(1021):
            launch(work)
        before = runtime.cudaEventQuery(plug)
        launch(work)
        print(json.dumps([before, runtime.cudaEventQuery(plug)]))
        """
    ) == [BUSY, DONE]


def test_each_launch_on_a_full_queue_waits_for_one_end(rig: Rig) -> None:
    with Knobs(rig.ctl) as knobs:
        knobs.queue_depth = 2
    between_ns = rig.run(
        """
        import time
        work = kernel(5 * MS)
        launch(work)
        launch(work)
        returned_ns = []
        for _ in range(20):
            launch(work)
            returned_ns.append(time.monotonic_ns())
        print(json.dumps([after - before for before, after in zip(returned_ns, returned_ns[1:])]))
        """
    )
    assert sum(between_ns) >= 18 * 5 * MS  # the first may be late
    assert min(between_ns) < 6 * MS  # late ones are not the simulation's
