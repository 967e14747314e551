"""NCCL as recorded is NCCL as the simulated library saw it: communicators, bytes, sequence, groups."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from ingero.capture.loop.drops import MEANINGS
from tests.integration.nccl_jobs import Job, job_of, ranks, rendezvous, traced_ranks
from tests.integration.targets import rows, simulation, until, wait_for_end
from tests.integration.tracing import tracing

RECORDED = """
SELECT pid, communicator, sequence, bytes, datatype, coalesce(reduce_op, -1), coalesce(root, peer, -1), rank, nranks,
       op, comm_id_hash, group_id IS NOT NULL
FROM nccl_events WHERE datatype IS NOT NULL AND ret_code = 0
"""


def assert_is_true(job: Job) -> Counter[str]:
    """Every recorded operation is one that the library saw, with all that it says; how many, by operation."""
    truth = job.simulated.truth()
    seen = defaultdict(list)
    for one in truth.collectives:
        name = truth.function_names[int(one["function"])]
        seen[int(one["pid"]), int(one["comm"]), name, int(one["nth"]), int(one["bytes"]), int(one["root"])].append(one)
    identities: set[tuple[int, int]] = set()
    counts: Counter[str] = Counter()
    for row in job.rows(RECORDED):
        pid, handle, sequence, size, kind, reduce_op, root, rank, nranks, op, comm_hash, is_grouped = row
        found = seen.get((pid, handle, op, sequence, size, root), [])
        assert len(found) == 1, row
        expected = [int(found[0][name]) for name in ("type", "reduce_op", "root", "rank", "ranks", "is_grouped")]
        assert [kind, reduce_op, root, rank, nranks, is_grouped] == expected, row
        identities.add((int(found[0]["comm_id"]), comm_hash))
        counts[op] += 1
    assert len({ours for _, ours in identities} - {None}) == len(identities), "one hash is one communicator"
    assert len({truths for truths, _ in identities}) == len(identities), "it is equal on all ranks"
    assert not {name for name in MEANINGS if name.startswith("communicator")} & job.drops.keys()
    return counts


def assert_sums_are_true(job: Job) -> None:
    """The exact sums: calls and bytes of each operation, recorded or not."""
    truth = job.simulated.truth()
    calls: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for one in truth.collectives:
        name = truth.function_names[int(one["function"])]
        calls[name] += 1
        size[name] += int(one["bytes"])
    sums = job.rows("SELECT op_name, sum(count) - sum(errors), sum(bytes) FROM op_stats WHERE source = 9 GROUP BY 1")
    stored = {name: (count, total) for name, count, total in sums if name in calls}
    assert stored == {name: (calls[name], size[name]) for name in calls}


@pytest.fixture(scope="module")
def every_call(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Three ranks that make every call."""
    return job_of(tmp_path_factory.mktemp("every_call"), "every_call", 3)


def test_every_operation_has_its_communicator_type_bytes_and_place(every_call: Job) -> None:
    counts = assert_is_true(every_call)
    expected = dict.fromkeys(
        (
            *("ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclAlltoAll", "ncclReduce", "ncclBroadcast"),
            *("ncclGather", "ncclScatter", "ncclBcast"),
        ),
        15,
    )
    assert counts == {**expected, "ncclSend": 9, "ncclRecv": 9}
    assert_sums_are_true(every_call)


def test_the_latest_collective_of_each_communicator_is_stored(every_call: Job) -> None:
    truth, latest = every_call.simulated.truth(), {}
    for one in sorted(truth.collectives, key=lambda collective: int(collective["nth"])):
        name = truth.function_names[int(one["function"])]
        if name not in {"ncclSend", "ncclRecv"}:
            latest[int(one["pid"]), int(one["comm"])] = (int(one["nth"]), name, int(one["bytes"]))
    stored = every_call.rows(
        "SELECT pid, handle, collectives, last_op, last_bytes FROM communicators WHERE last_at AND last_tid"
    )
    assert {(pid, handle): tuple(last) for pid, handle, *last in stored} == latest


def test_the_sequence_counts_collectives_that_have_no_record(tmp_path: Path) -> None:
    job = job_of(tmp_path, "many", 2)
    recorded = assert_is_true(job)["ncclAllReduce"]
    assert 0 < recorded < 6000, "a selection"
    assert_sums_are_true(job)
    assert job.rows("SELECT rank, collectives FROM communicators ORDER BY 2, 1") == [
        (0, 1000),
        (1, 1000),
        (0, 2000),
        (1, 2000),
    ]


def test_with_every_call_recorded_the_sequence_has_no_gap(tmp_path: Path) -> None:
    job = job_of(tmp_path, "many", 2, "--record-all")
    if job.drops.get("call_records_ring_full"):
        pytest.fail("records were lost, so that gaps prove nothing")
    sequences = defaultdict(list)
    for rank, comm_hash, sequence in job.rows("SELECT rank, comm_id_hash, sequence FROM nccl_events WHERE datatype"):
        sequences[comm_hash, rank].append(sequence)
    assert sorted(map(len, sequences.values())) == [1000, 1000, 2000, 2000]
    assert all(sorted(one) == list(range(1, len(one) + 1)) for one in sequences.values())


def test_split_communicators_have_one_hash_per_color_and_the_right_ranks(tmp_path: Path) -> None:
    job = job_of(tmp_path, "splits", 4)
    assert assert_is_true(job) == {"ncclAllReduce": 4 + 3 + 4 + 4 + 3}
    found = job.rows("SELECT origin, comm_id_hash, count(*), max(nranks), sum(rank) FROM communicators GROUP BY 1, 2")
    assert sorted((origin, members, nranks, total) for origin, _, members, nranks, total in found) == [
        ("ncclCommInitRank", 4, 4, 6),
        ("ncclCommShrink", 3, 3, 3),
        ("ncclCommSplit", 2, 2, 1),
        ("ncclCommSplit", 2, 2, 1),
        ("ncclCommSplit", 2, 2, 1),
        ("ncclCommSplit", 2, 2, 1),
        ("ncclCommSplit", 3, 3, 3),
        ("ncclCommSplit", 4, 4, 6),
    ]


def test_each_way_to_make_a_communicator_names_it(tmp_path: Path) -> None:
    job = job_of(tmp_path, "makings", 2)
    assert assert_is_true(job) == {"ncclAllReduce": 6}
    found = job.rows("SELECT origin, count(*), count(DISTINCT comm_id_hash) FROM communicators GROUP BY 1 ORDER BY 1")
    assert found == [
        ("ncclCommInitRank", 2, 1),
        ("ncclCommInitRankConfig", 2, 1),
        ("ncclCommInitRankScalable", 2, 1),
    ]


def test_one_process_that_holds_all_ranks_has_a_communicator_each(tmp_path: Path) -> None:
    job = job_of(tmp_path, "one_process", 1, devices=3)
    assert assert_is_true(job) == {"ncclAllReduce": 3}
    assert job.rows("SELECT origin, rank, nranks FROM communicators ORDER BY rank") == [
        ("ncclCommInitAll", rank, 3) for rank in range(3)
    ]


def test_calls_of_a_group_say_so_and_name_the_call_that_ends_it(every_call: Job) -> None:
    groups = every_call.rows(
        "SELECT tid, group_id, group_concat(op, ' ' ORDER BY timestamp) FROM nccl_events WHERE group_id GROUP BY 1, 2"
    )
    assert [ops for _, _, ops in groups] == ["ncclGroupStart ncclSend ncclRecv ncclGroupEnd"] * 9


def test_a_handle_used_again_is_another_communicator(tmp_path: Path) -> None:
    job = job_of(tmp_path, "reuse", 2)
    assert assert_is_true(job) == {"ncclAllReduce": 12}
    found = job.rows(
        "SELECT ended_by, collectives, count(*), count(DISTINCT comm_id_hash), count(DISTINCT handle) "
        "FROM communicators WHERE ended_at > created_at GROUP BY 1, 2 ORDER BY 1"
    )
    assert [(by, count, rows_, hashes) for by, count, rows_, hashes, _ in found] == [
        ("ncclCommAbort", 2, 2, 1),
        ("ncclCommFinalize", 2, 4, 2),
    ]
    refused = job.rows("SELECT sequence, bytes, datatype FROM nccl_events WHERE op = 'ncclAllReduce' AND ret_code <> 0")
    assert refused == [(None, None, None)] * 6, "a refused call is no step of the sequence"
    assert job.drops["datatype_unknown"] == 6


def test_what_was_made_before_the_agent_is_null_and_never_0(tmp_path: Path) -> None:
    simulated = simulation(tmp_path, devices=2)
    with rendezvous() as meeting, ranks(simulated, "late", 2, meeting) as processes:
        for process in processes:
            process.wait_for("at")
        with tracing(tmp_path, pids=[process.pid for process in processes]) as tracer:
            Path(f"{meeting}.tracing").touch()
            for process in processes:
                process.wait_for("at")
            until(
                lambda: rows(tracer.database, "SELECT count(*) FROM communicators") == [(6,)], "communicators are there"
            )
            made_before = "SELECT DISTINCT comm_id_hash, rank, nranks, origin, note FROM communicators WHERE "
            world = rows(tracer.database, made_before + "origin IS NULL")
            assert world == [(None, None, None, None, "created before tracing began")]
            child = rows(tracer.database, made_before + "origin = 'ncclCommSplit'")
            assert child == [(None, None, None, "ncclCommSplit", "its parent was created before tracing began")]
            after = rows(tracer.database, "SELECT rank, nranks FROM communicators WHERE origin = 'ncclCommInitRank'")
            assert sorted(after) == [(0, 2), (1, 2)]
            Path(f"{meeting}.asking").touch()
            for process in processes:
                process.finish()
            tracer.stop()
    events = "SELECT DISTINCT comm_id_hash, rank, nranks, sequence FROM nccl_events WHERE datatype AND communicator IN "
    unknown = "(SELECT handle FROM communicators WHERE origin IS NULL)"
    found = rows(tracer.database, events + unknown)
    assert sorted(found) == [(None, 0, 2, None), (None, 1, 2, None)], "what it was asked is known, the rest is not"


def test_ranks_that_wait_for_a_dead_one_are_told_by_how_far_each_came(tmp_path: Path) -> None:
    simulated = simulation(tmp_path, devices=3)
    with rendezvous() as meeting, traced_ranks(simulated, "killed", 3, meeting) as traced:
        for program in traced.ranks:
            program.wait_for("at")
        traced.ranks[-1].process.kill()
        database = traced.tracer.database
        hung = "SELECT count(DISTINCT pid) FROM raw_in_flight WHERE source = 1"
        until(lambda: rows(database, hung) == [(2,)], "the wait of the others is seen while it lasts")
        assert rows(database, "SELECT rank, collectives FROM communicators ORDER BY rank") == [(0, 2), (1, 2), (2, 1)]
        for program in traced.ranks[:-1]:
            assert program.process.poll() is None, "the wait goes on, as it would without tracing"
            program.process.kill()
        wait_for_end(traced.tracer)
    assert rows(database, "SELECT count(*) FROM communicators WHERE ended_at IS NOT NULL") == [(3,)]


def test_a_library_without_symbols_but_its_exports_is_enough(tmp_path: Path) -> None:
    library = simulation(tmp_path).libraries / "libnccl.so.2"
    subprocess.run(["strip", "--strip-all", library], check=True)
    names = subprocess.run(["nm", library], capture_output=True, text=True, check=False)
    assert names.stdout == "", "only the dynamic symbols are left"
    assert assert_is_true(job_of(tmp_path, "makings", 2)) == {"ncclAllReduce": 6}


def test_each_collective_finds_the_wait_that_followed_it(tmp_path: Path) -> None:
    job = job_of(tmp_path, "stragglers", 3, "--record-all")
    waits = job.rows("SELECT rank, sequence, device_wait_ns, waited_by FROM nccl_waits WHERE sequence > 2")
    assert {by for *_, by in waits} == {"stream"}
    least: dict[int, tuple[int, int]] = {}
    for rank, sequence, device_wait_ns, _ in waits:
        least[sequence] = min(least.get(sequence, (device_wait_ns, rank)), (device_wait_ns, rank))
    assert len(waits) == 3 * len(least)
    assert {rank for _, rank in least.values()} == {1}, "the straggler waits least, in each collective"
