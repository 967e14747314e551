"""discover.ranks: the place of a process in a distributed job."""

from __future__ import annotations

import pytest

from ingero.discover.ranks import Rank, rank_of

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (TORCHRUN, Rank(rank=5, local_rank=1, world_size=8, launcher="torchrun")),
        (SLURM, Rank(rank=3, local_rank=3, world_size=4, launcher="slurm")),
        (SLURM | TORCHRUN, Rank(rank=5, local_rank=1, world_size=8, launcher="torchrun")),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            Rank(rank=2, local_rank=0, world_size=4, launcher="openmpi"),
        ),
        (
            {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"},
            Rank(rank=2, local_rank=1, world_size=4, launcher="pmi"),
        ),
        ({"RANK": "0"}, Rank(rank=0, local_rank=None, world_size=None, launcher="torchrun")),
    ],
)
def test_each_launchers_variables_are_understood(environ: dict[str, str], rank: Rank) -> None:
    assert rank_of(environ) == rank


@pytest.mark.parametrize("environ", [{}, {"RANK": "first"}, {"RANK": ""}, {"RANK": "-1"}, {"WORLD_SIZE": "8"}])
def test_without_a_rank_there_is_none(environ: dict[str, str]) -> None:
    assert rank_of(environ) is None


def test_a_batch_script_is_not_rank_zero_of_its_tasks() -> None:
    assert rank_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None


def test_a_step_smaller_than_its_job_counts_its_own_tasks() -> None:
    rank = rank_of(SLURM | {"SLURM_STEP_NUM_TASKS": "2"})
    assert rank is not None
    assert rank.world_size == 2
