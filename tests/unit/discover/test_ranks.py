"""discover.ranks: the place of a process in a distributed job."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.discover.ranks import Rank, rank_in_title, rank_of

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
        (
            {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1"},
            Rank(rank=3, local_rank=1, world_size=None, launcher="pals"),
        ),
        (
            {"PMIX_RANK": "6", "PALS_RANKID": "6", "PALS_LOCAL_RANKID": "2", "PALS_LOCAL_SIZE": "4"},
            Rank(rank=6, local_rank=2, world_size=None, launcher="pals"),
        ),
        (
            {"FLUX_TASK_RANK": "7", "FLUX_TASK_LOCAL_ID": "3", "FLUX_JOB_SIZE": "8"},
            Rank(rank=7, local_rank=3, world_size=8, launcher="flux"),
        ),
        (
            {"JSM_NAMESPACE_RANK": "7", "JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_SIZE": "12", "PMIX_RANK": "7"},
            Rank(rank=7, local_rank=1, world_size=12, launcher="jsrun"),
        ),
        (
            {"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_SIZE": "2"},
            Rank(rank=1, local_rank=1, world_size=2, launcher="horovod"),
        ),
        (
            {"PADDLE_TRAINER_ID": "3", "PADDLE_TRAINERS_NUM": "8", "PADDLE_RANK_IN_NODE": "3"},
            Rank(rank=3, local_rank=3, world_size=8, launcher="paddle"),
        ),
        (
            {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "node1:1234"},
            Rank(rank=1, local_rank=None, world_size=4, launcher="jax"),
        ),
        (
            {"MVP_COMM_WORLD_RANK": "2", "MVP_COMM_WORLD_LOCAL_RANK": "0", "MVP_COMM_WORLD_SIZE": "4"},
            Rank(rank=2, local_rank=0, world_size=4, launcher="mvapich"),
        ),
        (
            {"PALS_RANKID": "7", "PALS_LOCAL_RANKID": "3", "PMI_RANK": "7", "PMI_LOCAL_RANK": "3", "PMI_SIZE": "8"},
            Rank(rank=7, local_rank=3, world_size=8, launcher="pals"),
        ),
        (
            {"COORDINATOR_ADDRESS": "j-worker-0", "NUM_PROCESSES": "4", "PROCESS_ID": "2"},
            Rank(rank=2, local_rank=None, world_size=4, launcher="jax"),
        ),
        (
            {"JAX_COORDINATOR_IP": "10.0.0.1", "NNODES": "4", "NODE_RANK": "2"},
            Rank(rank=2, local_rank=None, world_size=4, launcher="jax"),
        ),
        ({"MPT_MPI_RANK": "4"}, Rank(rank=4, local_rank=None, world_size=None, launcher="mpt")),
        ({"ALPS_APP_PE": "12"}, Rank(rank=12, local_rank=None, world_size=None, launcher="alps")),
        (
            {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NPROCS": "4", "SLURM_STEP_ID": "0"},
            Rank(rank=2, local_rank=0, world_size=4, launcher="slurm"),
        ),
    ],
)
def test_each_launchers_variables_are_understood(environ: dict[str, str], rank: Rank) -> None:
    assert rank_of(environ) == rank


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "first"},
        {"RANK": ""},
        {"RANK": "-1"},
        {"RANK": "3.0", "WORLD_SIZE": "8"},
        {"RANK": "\u0663", "WORLD_SIZE": "8"},
        {"WORLD_SIZE": "8"},
        {"RANK": "0", "WORLD_SIZE": "0"},
        {"PROCESS_ID": "2", "NUM_PROCESSES": "4"},
        {"NNODES": "4", "NODE_RANK": "2"},
        {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1"},  # torchrun itself
        {"VC_TASK_INDEX": "2", "VK_TASK_INDEX": "2"},
        {"JOB_COMPLETION_INDEX": "2"},
        {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2"},
        {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"},
        {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b", "MEGASCALE_SLICE_ID": "0"},
        {"VLLM_DP_RANK": "1", "VLLM_DP_SIZE": "2"},
        {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"},  # the MPI Operator's launcher
    ],
)
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


def test_below_slurms_daemon_pmix_has_the_rank_and_nobody_the_size() -> None:
    assert rank_of(DAEMON | {"PMIX_RANK": "6"}) == Rank(rank=6, local_rank=None, world_size=None, launcher="pmi")


@pytest.mark.parametrize(
    "environ",
    [
        SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4"},  # srun --mpi=pmi2
        SLURM | {"RANK": "3", "WORLD_SIZE": "4"},  # export RANK=$SLURM_PROCID
        {"RANK": "3", "WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3"},
    ],
)
def test_a_launcher_that_agrees_tells_the_local_rank(environ: dict[str, str]) -> None:
    rank = rank_of(environ)
    assert rank is not None
    assert (rank.rank, rank.local_rank, rank.world_size) == (3, 3, 4)


def test_a_launcher_that_disagrees_does_not() -> None:
    rank = rank_of(SLURM | {"RANK": "2", "WORLD_SIZE": "4"})
    assert rank == Rank(rank=2, local_rank=None, world_size=4, launcher="torchrun")


def test_a_pod_of_one_is_no_world_for_what_mpirun_starts_in_it() -> None:
    rank = rank_of(OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"})
    assert rank == Rank(rank=6, local_rank=2, world_size=8, launcher="openmpi")


def test_torchrun_of_one_in_each_task_is_a_world_of_its_own() -> None:
    rank = rank_of(SLURM | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"})
    assert rank == Rank(rank=0, local_rank=0, world_size=1, launcher="torchrun")


def test_a_local_rank_outside_the_world_is_none() -> None:
    rank = rank_of({"RANK": "0", "LOCAL_RANK": "9", "WORLD_SIZE": "2"})
    assert rank == Rank(rank=0, local_rank=None, world_size=2, launcher="torchrun")


def test_a_rank_outside_its_world_is_no_rank() -> None:
    assert rank_of({"RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}) is None


def test_a_stray_variable_does_not_outdo_a_launcher_that_names_its_whole_job() -> None:
    assert rank_of({"RANK": "0"} | SLURM) == Rank(rank=3, local_rank=3, world_size=4, launcher="slurm")


@pytest.mark.parametrize("step", ["4294967290", "4294967291", "4294967292", "x", ""])
def test_the_shell_of_salloc_and_other_steps_without_tasks_give_no_rank(step: str) -> None:
    assert rank_of(SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_ID": step}) is None


def lightning(local_rank: int, node: int, size: int) -> dict[str, str]:
    return {"LOCAL_RANK": str(local_rank), "NODE_RANK": str(node), "WORLD_SIZE": str(size), "MASTER_PORT": "40123"}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (lightning(1, 0, 2), 1),
        (SLURM | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"} | lightning(1, 0, 2), 1),
        (lightning(2, 1, 8), 6),  # 4 to a node: of 2 there is no third, of 8 no second node
        (lightning(0, 1, 8), None),  # 1, 2 or 4 to a node
        (lightning(3, 9, 8), None),
        (lightning(3, 0, 999_999_999), 3),
    ],
)
def test_lightnings_children_have_the_rank_that_their_node_and_place_leave(
    environ: dict[str, str], rank: int | None
) -> None:
    found = rank_of(environ)
    assert (found.rank if found else None) == rank


def tf_config(kind: str, index: object, **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        (tf_config("worker", 1, worker=["a:1", "b:1"]), (1, 2)),
        (tf_config("worker", 1, chief=["c:1"], worker=["a:1", "b:1"]), (2, 3)),
        (tf_config("chief", 0, chief=["c:1"], worker=["a:1", "b:1"]), (0, 3)),
        (tf_config("evaluator", 0, worker=["a:1"]), None),
        (tf_config("worker", 2, worker=["a:1", "b:1"]), None),
        (tf_config("worker", "x", worker=["a:1", "b:1"]), None),
        (tf_config("worker", "1", worker=["a:1", "b:1"]), (1, 2)),
        (tf_config("worker", 0, master=["m:1"], worker=["a:1", "b:1"]), (1, 3)),
        (tf_config("worker", 1.5, worker=["a:1", "b:1"]), None),
        (tf_config("worker", True, worker=["a:1", "b:1"]), None),
        (tf_config("ps", 0, worker=["a:1"], ps=["p:1"]), None),
        ({"TF_CONFIG": '{"cluster": {"worker": "abc"}, "task": {"type": "worker", "index": 1}}'}, None),
        ({"TF_CONFIG": '{"cluster": {"worker": {"1": "h:1"}}, "task": {"type": "worker", "index": 1}}'}, None),
        ({"TF_CONFIG": "[" * 5000}, None),
        ({"TF_CONFIG": "3"}, None),
    ],
)
def test_tensorflows_workers_follow_the_chief(environ: dict[str, str], rank: tuple[int, int] | None) -> None:
    found = rank_of(environ)
    assert ((found.rank, found.world_size) if found else None) == rank


@pytest.mark.parametrize(
    ("cmdline", "rank"),
    [
        (("VLLM::Worker_TP1",), 1),
        (("VLLM::Worker_TP1_EP1",), 1),
        (("VLLM::Worker_PP0_TP1",), 1),
        (("VLLM::Worker_PP1_TP1",), None),  # the number of ranks of a stage is not told
        (("VLLM::Worker_DP1_TP0",), None),
        (("VLLM::Worker_PCP0_TP1",), 1),
        (("VLLM::Worker_PCP1_TP1",), None),
        (("VLLM::EngineCore",), None),
        (("sglang::scheduler_TP3",), 3),
        (("sglang::scheduler_DP0_TP1",), 1),
        (("sglang::detokenizer",), None),
        (("python", "VLLM::Worker_TP1"), None),
        (("VLLM::Worker_TP1", "", ""), 1),
        ((), None),
    ],
)
def test_a_serving_engines_title_tells_the_rank(cmdline: tuple[str, ...], rank: int | None) -> None:
    found = rank_in_title(cmdline)
    assert (found.rank if found else None) == rank


VARIABLES = sorted({*TORCHRUN, *SLURM, *OPEN_MPI, *HYDRA, "PMIX_RANK", "NODE_RANK", "TF_CONFIG", "PALS_RANKID"})


@given(st.dictionaries(st.sampled_from(VARIABLES), st.one_of(st.binary().map(os.fsdecode), st.integers().map(str))))
def test_any_environment_gives_a_rank_that_a_database_takes_or_none(environ: dict[str, str]) -> None:
    rank = rank_of(environ)
    if rank is not None:
        assert 0 <= rank.rank < 2**31
        assert rank.world_size is None or rank.rank < rank.world_size < 2**31
        assert rank.local_rank is None or 0 <= rank.local_rank < 2**31
