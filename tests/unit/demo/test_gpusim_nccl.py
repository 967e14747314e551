"""Ranks join through shared memory: nobody's collective ends before everybody's has begun."""

# ruff: noqa: F401, F811 (pytest finds fixtures by the names of imports and of arguments)

import textwrap
from pathlib import Path

import pytest

from tests.unit.gpusim_fixtures import Rig, finish, gpusim_lib, rig

MS = 1_000_000

CLIENT = """
    import os
    nccl = c.CDLL(os.path.join(os.environ["GPUSIM_LIB"], "libnccl.so.2"))
    class Id(c.Structure):
        _fields_ = (("path", c.c_char * 128),)
    nccl.ncclCommInitRank.argtypes = [c.c_void_p, c.c_int, Id, c.c_int]
    nccl.ncclAllReduce.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_void_p, c.c_void_p]
    nccl.ncclSend.argtypes = nccl.ncclRecv.argtypes = [
        c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_void_p, c.c_void_p]
    nccl.ncclCommSplit.argtypes = [c.c_void_p, c.c_int, c.c_int, c.c_void_p, c.c_void_p]
    path, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    check(malloc(4096)[0])
    comm = c.c_void_p()
    check(nccl.ncclCommInitRank(c.byref(comm), ranks, Id(path.encode()), rank))
    def all_reduce(count=1024, where=comm):
        check(nccl.ncclAllReduce(None, None, count, 7, 0, where, None))
    def value(name, where):
        out = c.c_int()
        check(getattr(nccl, name)(where, c.byref(out)))
        return out.value
"""


def ranks(rig: Rig, program: str, count: int = 2, **options: object) -> list[object]:
    uid = rig.ctl.with_name("uid")
    text = textwrap.dedent(CLIENT) + textwrap.dedent(program)
    children = [rig.start(text, uid, rank, count, **options) for rank in range(count)]
    return [finish(child) for child in children]


@pytest.mark.parametrize("sched", ["spin", "block"])
def test_a_collective_ends_after_the_last_rank_has_begun_it(rig: Rig, sched: str) -> None:
    ranks(
        rig,
        """
        if rank == 1:
            launch(kernel(100 * MS))  # a straggler on the GPU
        all_reduce()
        check(runtime.cudaStreamSynchronize(None))
        """,
        sched=sched,
        devices=2,
    )
    syncs = rig.truth().interval_ends
    late = syncs[syncs["enqueues"] == 2][0]
    early = syncs[syncs["enqueues"] == 1][0]
    assert early["device_end_ns"] == late["device_end_ns"]
    assert late["device_end_ns"] >= late["first_enqueue_ns"] + 100 * MS


def test_a_rank_that_runs_ahead_is_not_held_up_by_the_others_host(rig: Rig) -> None:
    ranks(
        rig,
        """
        for _ in range(300):
            all_reduce()
        check(runtime.cudaStreamSynchronize(None))
        """,
        sched="block",
    )
    truth = rig.truth()
    assert truth.calls["nccl", "ncclAllReduce"].outer == 600
    assert truth.calls["driver", "cuLaunchKernelEx"].nested == 600
    assert truth.interval_ends["enqueues"].sum() == 600


def test_bytes_over_the_link_decide_how_long_it_takes(rig: Rig) -> None:
    times = ranks(
        rig,
        """
        all_reduce()
        launch(kernel(PLUG_NS, "plug"))
        begin = recorded_event()
        all_reduce(25_000_000)  # 100 MB of float32: half of it passes a link of two ranks, twice
        print(elapsed_ns(begin, recorded_event()))
        """,
    )
    assert min(times) >= 1 * MS  # type: ignore[type-var]


def test_a_group_exchanges_in_both_directions_at_once(rig: Rig) -> None:
    ranks(
        rig,
        """
        for _ in range(20):
            check(nccl.ncclGroupStart())
            check(nccl.ncclSend(None, 1024, 7, 1 - rank, comm, None))
            check(nccl.ncclRecv(None, 1024, 7, 1 - rank, comm, None))
            check(nccl.ncclGroupEnd())
        check(runtime.cudaStreamSynchronize(None))
        """,
    )
    truth = rig.truth()
    assert truth.count("ncclSend") == truth.count("ncclRecv") == 40
    assert truth.calls["driver", "cuLaunchKernelEx"].nested == 40


def test_a_split_makes_communicators_of_equal_colors(rig: Rig) -> None:
    assert ranks(
        rig,
        """
        part = c.c_void_p()
        check(nccl.ncclCommSplit(comm, rank % 2, -rank, c.byref(part), None))
        all_reduce(where=part)
        check(runtime.cudaStreamSynchronize(None))
        print(json.dumps([value("ncclCommCount", part), value("ncclCommUserRank", part)]))
        """,
        count=3,
    ) == [[2, 1], [1, 0], [2, 0]]


def test_an_abort_ends_the_wait_for_a_missing_rank(rig: Rig) -> None:
    results = ranks(
        rig,
        """
        if rank == 0:
            all_reduce()
            waiting = runtime.cudaStreamQuery(None)
            check(nccl.ncclCommAbort(comm))
            check(runtime.cudaStreamSynchronize(None))
            print(waiting)
        """,
        sched="block",
    )
    assert results == [600, None]


def test_one_process_can_hold_all_ranks(rig: Rig) -> None:
    rig.run(
        CLIENT.split("    path,", maxsplit=1)[0]
        + """
    comms = (c.c_void_p * 2)()
    streams = []
    for device in range(2):
        check(runtime.cudaSetDevice(device))
        streams.append(stream())
    check(nccl.ncclCommInitAll(comms, 2, None))
    check(nccl.ncclGroupStart())
    for device in range(2):
        check(nccl.ncclAllReduce(None, None, 1024, 7, 0, comms[device], streams[device]))
    check(nccl.ncclGroupEnd())
    for device in range(2):
        check(runtime.cudaStreamSynchronize(streams[device]))
""",
        devices=2,
    )
    assert len(rig.truth().interval_ends) == 2


def test_the_shared_file_is_gone_once_everybody_has_joined(rig: Rig, tmp_path: Path) -> None:
    ranks(rig, "all_reduce(); check(runtime.cudaStreamSynchronize(None))")
    assert not (tmp_path / "uid").exists()
