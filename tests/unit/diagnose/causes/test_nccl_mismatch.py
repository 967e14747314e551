"""nccl-mismatch: hung ranks whose collectives differ at one place; the same ones hang for another reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.demo.scripted_steps import BEGIN_NS
from ingero.diagnose.findings import Severity
from ingero.ops import OPS, Source
from ingero.units import SECOND_NS
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes
from tests.unit.diagnose.causes.ranks import diagnosed_ranks


def hanging(run: ScriptedRun, first: Actor, second: Actor, name: str, size_bytes: int, hangs: bool = True) -> None:
    """Both agree on collective 900; at 901 rank 0 reduces 1 MiB, and rank 1 does what it is told."""
    end = QUIET_S if hangs else LENGTH_S
    stack = run.stack([("/srv/train.py", 42, "step")])
    for actor in (first, second):
        run.train(actor, 0, end, Step())
        run.collective(actor, "ncclAllReduce", QUIET_S - 0.5, 900, 1 << 20)
    run.collective(first, "ncclAllReduce", QUIET_S - 0.01, 901, 1 << 20)
    run.collective(second, name, QUIET_S - 0.01, 901, size_bytes, stack=stack)
    for actor in (first, second) if hangs else ():
        run.open_call(actor, "cudaStreamSynchronize", QUIET_S, LENGTH_S - 1)


@pytest.mark.parametrize(
    ("name", "size_bytes", "text"),
    [
        ("ncclAllGather", 1 << 20, "rank 1 calls ncclAllGather of 1.00 MiB"),
        ("ncclAllReduce", 2 << 20, "rank 1 calls ncclAllReduce of 2.00 MiB"),
    ],
)
def test_what_the_ranks_disagree_about_is_said(tmp_path: Path, name: str, size_bytes: int, text: str) -> None:
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: hanging(run, first, second, name, size_bytes))
    assert causes(diagnosis) == ["nccl-mismatch"]
    incident = diagnosis.incidents[0]
    assert incident.severity is Severity.CRITICAL
    assert "they disagree about collective 901" in incident.summary
    assert text in incident.summary
    assert incident.line is not None
    assert incident.line.line == 42


def test_ranks_that_agree_hang_for_another_reason(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(
        tmp_path, lambda run, first, second: hanging(run, first, second, "ncclAllReduce", 1 << 20)
    )
    assert causes(diagnosis) == ["nccl-hang"]


def test_ranks_that_go_on_do_not_disagree(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(
        tmp_path, lambda run, first, second: hanging(run, first, second, "ncclAllGather", 1 << 20, hangs=False)
    )
    assert causes(diagnosis) == []


def test_without_open_calls_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(
        tmp_path,
        lambda run, first, second: hanging(run, first, second, "ncclAllGather", 1 << 20),
        not_traced={"in_flight": "no task iterator"},
    )
    assert "nccl-mismatch" in {one.cause for one in diagnosis.not_evaluated}


def counted(run: ScriptedRun, first: Actor, second: Actor, *calls: tuple[str, int, int], total: int = 900) -> None:
    """No collective has a row: (operation, how often, bytes of each) of rank 1; rank 0 reduces 900 times 1 MiB."""
    for rank, actor in enumerate((first, second)):
        run.train(actor, 0, QUIET_S, Step())
        run.communicator(actor, rank=rank, ranks=2, collectives=(900, total)[rank])
        for name, count, size in calls if rank else [("ncclAllReduce", 900, 1 << 20)]:
            run.op(actor, name, 1, count, 0.02, bytes=count * size)
        run.open_call(actor, "cudaStreamSynchronize", QUIET_S, LENGTH_S - 1)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (
            [("ncclAllReduce", 899, 1 << 20), ("ncclAllGather", 1, 1 << 20)],
            "rank 0 called ncclAllGather 0 times, rank 1 1; rank 0 called ncclAllReduce 900 times, rank 1 899",
        ),
        (
            [("ncclAllReduce", 899, 1 << 20), ("ncclAllReduce", 1, 2 << 20)],
            "rank 1 called ncclAllReduce for 1.00 MiB more than rank 0, as often",
        ),
    ],
    ids=["operation", "size"],
)
def test_what_was_only_counted_is_compared_by_its_counts(
    tmp_path: Path, calls: list[tuple[str, int, int]], text: str
) -> None:
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: counted(run, first, second, *calls))
    assert causes(diagnosis) == ["nccl-mismatch"]
    assert text in diagnosis.incidents[0].summary


@pytest.mark.parametrize(
    ("calls", "total"),
    [
        ([("ncclAllReduce", 900, 1 << 20)], 900),  # they agree
        ([("ncclAllReduce", 899, 1 << 20)], 899),  # one has not come to the last
        ([("ncclAllReduce", 850, 1 << 20), ("ncclAllGather", 1, 1 << 20)], 900),  # not all were counted
    ],
    ids=["agree", "late", "lost"],
)
def test_counts_that_prove_nothing_are_no_disagreement(
    tmp_path: Path, calls: list[tuple[str, int, int]], total: int
) -> None:
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: counted(run, first, second, *calls, total=total))
    assert causes(diagnosis) == ["nccl-hang"]


def latest(name: str, at_s: float, size_bytes: int = 1 << 20, tid: int = 1) -> dict[str, int]:
    """Columns of a communicator's latest collective (float32, summed)."""
    [op] = [op.code for op in OPS if op.name == name and op.source is Source.NCCL]
    return {
        "last_ns": BEGIN_NS + round(at_s * SECOND_NS),
        "last_tid": tid,
        "last_op": op,
        "last_bytes": size_bytes,
        "last_arg2": 7 | 1 << 8,
    }


def sampled_away(
    run: ScriptedRun, first: Actor, second: Actor, *communicators: tuple[dict[str, int], dict[str, int]]
) -> None:
    """No collective has a row. Of each communicator the columns of either rank."""
    for rank, actor in enumerate((first, second)):
        run.train(actor, 0, QUIET_S, Step())
        for number, columns in enumerate(communicators, 1):
            of_rank = {"collectives": 900, **columns[rank]}
            run.communicator(actor, rank=rank, ranks=2, comm_id_hash=76 + number, number=number, **of_rank)
        stack = run.stack([("/srv/train.py", 42 + rank, "step")])
        run.open_call(actor, "cudaStreamSynchronize", QUIET_S, LENGTH_S - 1, stack=stack)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (latest("ncclAllGather", 5.9), "rank 1 calls ncclAllGather of 1.00 MiB"),
        (latest("ncclAllReduce", 5.9, 2 << 20), "rank 1 calls ncclAllReduce of 2.00 MiB"),
    ],
    ids=["operation", "size"],
)
def test_the_latest_of_each_communicator_are_compared_though_none_was_recorded(
    tmp_path: Path, other: dict[str, int], text: str
) -> None:
    pair = (latest("ncclAllReduce", 5.9), other)
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: sampled_away(run, first, second, pair))
    assert causes(diagnosis) == ["nccl-mismatch"]
    incident = diagnosis.incidents[0]
    assert "they disagree about collective 900" in incident.summary
    assert text in incident.summary
    assert incident.line is not None
    assert incident.line.line == 43, "that of the call in which the rank hangs"


def reduced(at_s: float, collectives: int = 900, tid: int = 1) -> dict[str, int]:
    return {**latest("ncclAllReduce", at_s, tid=tid), "collectives": collectives}


@pytest.mark.parametrize(
    "pairs",
    [
        [(reduced(5.8), reduced(5.9)), (reduced(5.9), reduced(5.8))],  # both have called both
        [(reduced(5.9, 901), reduced(5.7)), (reduced(5.7), reduced(5.9, 901))],  # each waits in what the other lacks
    ],
    ids=["called", "waits"],
)
def test_two_communicators_in_opposite_orders_are_a_disagreement(
    tmp_path: Path, pairs: list[tuple[dict[str, int], dict[str, int]]]
) -> None:
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: sampled_away(run, first, second, *pairs))
    assert causes(diagnosis) == ["nccl-mismatch"]
    assert "two communicators in opposite orders" in diagnosis.incidents[0].summary


@pytest.mark.parametrize(
    "pairs",
    [
        [(reduced(5.8), reduced(5.81)), (reduced(5.9), reduced(5.91))],
        [(reduced(5.8, 901), reduced(5.9)), (reduced(5.9, 901), reduced(5.8))],  # one rank is ahead
    ],
    ids=["same", "ahead"],
)
def test_ranks_that_call_in_the_same_order_hang_for_another_reason(
    tmp_path: Path, pairs: list[tuple[dict[str, int], dict[str, int]]]
) -> None:
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: sampled_away(run, first, second, *pairs))
    assert causes(diagnosis) == ["nccl-hang"]
    assert "different orders" not in diagnosis.incidents[0].summary


@pytest.mark.parametrize(
    "pairs",
    [
        [(reduced(5.8), reduced(5.9)), (reduced(5.9, tid=2), reduced(5.8, tid=2))],
        [(reduced(5.9, 901), reduced(5.7)), (reduced(5.7, tid=2), reduced(5.9, 901, tid=2))],
        [(reduced(5.8), reduced(LENGTH_S)), (reduced(LENGTH_S), reduced(5.8))],
    ],
    ids=["threads", "threads that wait", "after the hang"],
)
def test_what_threads_call_or_what_came_later_proves_no_order(
    tmp_path: Path, pairs: list[tuple[dict[str, int], dict[str, int]]]
) -> None:
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: sampled_away(run, first, second, *pairs))
    assert causes(diagnosis) == ["nccl-hang"]
    assert "or they call their 2 communicators in different orders" in diagnosis.incidents[0].summary
