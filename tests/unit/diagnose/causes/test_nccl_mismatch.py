"""nccl-mismatch: hung ranks whose collectives differ at one place; the same ones hang for another reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Severity
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
