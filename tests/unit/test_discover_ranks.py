"""discover.ranks: the place of a process in a distributed job."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    rank = rank_of(SLURM | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"})
    assert rank is not None
    assert rank.world_size == 2


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8"}
HYDRA = {"PMI_RANK": "6", "PMI_SIZE": "8", "MPI_LOCALRANKID": "2"}
DAEMON = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize("mpi", [OPEN_MPI, HYDRA])
def test_what_mpirun_starts_does_not_take_the_slurm_number_of_its_daemon(mpi: dict[str, str]) -> None:
    rank = rank_of(DAEMON | mpi)
    assert rank is not None
    assert (rank.rank, rank.local_rank, rank.world_size) == (6, 2, 8)


def test_torchrun_started_by_mpirun_under_slurm_has_the_last_word() -> None:
    assert rank_of(DAEMON | OPEN_MPI | TORCHRUN) == Rank(rank=5, local_rank=1, world_size=8, launcher="torchrun")


def test_srun_that_speaks_pmix_says_how_many_tasks_there_are() -> None:
    assert rank_of(SLURM | {"PMIX_RANK": "3"}) == Rank(rank=3, local_rank=3, world_size=4, launcher="slurm")


def test_a_rank_outside_its_world_is_no_rank() -> None:
    assert rank_of({"RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}) is None


def test_a_stray_variable_does_not_outdo_a_launcher_that_names_its_whole_job() -> None:
    assert rank_of({"RANK": "0"} | SLURM) == Rank(rank=3, local_rank=3, world_size=4, launcher="slurm")


VARIABLES = sorted({*TORCHRUN, *SLURM, *OPEN_MPI, *HYDRA, "PMIX_RANK", "MV2_COMM_WORLD_RANK"})


@given(st.dictionaries(st.sampled_from(VARIABLES), st.one_of(st.binary().map(os.fsdecode), st.integers().map(str))))
def test_any_environment_gives_a_rank_that_a_database_takes_or_none(environ: dict[str, str]) -> None:
    rank = rank_of(environ)
    if rank is not None:
        assert 0 <= rank.rank < 2**31
        assert rank.world_size is None or rank.rank < rank.world_size < 2**31
        assert rank.local_rank is None or 0 <= rank.local_rank < 2**31
