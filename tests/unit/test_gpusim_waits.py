"""Calls that wait although they are asynchronous by name: launches on a full queue, copies of ordinary memory."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import pytest
from gpusim_fixtures import Rig, gpusim_lib, rig

from ingero.demo.gpusim.knobs import Knobs

BUSY, DONE = 600, 0  # cudaErrorNotReady, cudaSuccess
MS = 1_000_000

COPIES = """
    BYTES = 1 << 20
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


def test_a_copy_from_pageable_memory_begins_after_its_wait_and_ends_the_epoch_before(rig: Rig) -> None:
    rig.run(
        """
        error, device = malloc(1 << 20)
        host = c.create_string_buffer(1 << 20)
        for _ in range(3):
            launch(kernel(20 * MS))
            check(runtime.cudaMemcpyAsync(device, c.addressof(host), 1 << 20, 1, None))
        """
    )
    seen = rig.truth()
    assert seen.drains["enqueues"].tolist() == [1, 2, 2]  # the copy is the first of what follows
    assert (seen.drains["first_enqueue_ns"][1:] >= seen.drains["return_ns"][:-1]).all()
    assert (seen.syncs["return_ns"] >= seen.syncs["device_end_ns"]).all()


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
    drains = rig.truth().drains
    assert drains["enqueues"].tolist() == [2] * 5
    assert (drains["return_ns"] - drains["device_end_ns"] >= 5_000).all()


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
