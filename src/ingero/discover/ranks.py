"""Finds the rank of a process in its distributed job, from its launcher's environment or its title.

What a program sets in its own environment while it runs (`os.environ["RANK"] = ...` before `mp.spawn`) cannot be seen
from outside. A communicator knows better than any of these: see `capture.processes`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_NUMBER = re.compile(r"[0-9]{1,9}")
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # slurm.h: the batch script, the shell of salloc, what is outside any step
_MAX_JSON = 64 << 10
_MAX_NODES = 1 << 16  # tried for Lightning's children


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The rank of a process in its job. None: the launcher does not say.

    local_rank: its number on its node; world_size: processes in the job.
    launcher: whose variables they are.
    """

    rank: int
    local_rank: int | None
    world_size: int | None
    launcher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The rank of a process in one NCCL communicator. comm_id_hash: equal on all its ranks; None: not known."""

    comm_id_hash: int | None
    rank: int
    nranks: int


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: tuple[str, ...]
    local_rank: tuple[str, ...]
    world_size: tuple[str, ...]
    needs: str = ""


# The innermost launcher comes first. torchrun is started by srun or mpirun. Inside a Slurm job mpirun and mpiexec start
# their own daemons by srun, and what these start inherits SLURM_PROCID and SLURM_STEP_ID of the daemon: only MPI's
# number is the rank's own (PRRTE and Hydra manuals, "slurm" launcher). Under srun alone both say the same.
_TORCHRUN = _Launcher("torchrun", ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",))
_LAUNCHERS = (
    _Launcher("horovod", ("HOROVOD_RANK",), ("HOROVOD_LOCAL_RANK",), ("HOROVOD_SIZE",)),
    _Launcher(
        "paddle",
        ("PADDLE_TRAINER_ID", "PADDLE_GLOBAL_RANK"),
        ("PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK"),
        ("PADDLE_TRAINERS_NUM", "PADDLE_GLOBAL_SIZE"),
    ),
    _Launcher("mindspore", ("RANK_ID",), ("LOCAL_RANK", "DEVICE_ID"), ("RANK_SIZE",), "RANK_SIZE"),
    _Launcher("jax", ("JAX_PROCESS_ID",), (), ("JAX_NUM_PROCESSES",)),
    _Launcher("jax", ("PROCESS_ID",), (), ("NUM_PROCESSES",), "COORDINATOR_ADDRESS"),  # Kubeflow's JAXJob
    _Launcher("jax", ("NODE_RANK",), (), ("NNODES",), "JAX_COORDINATOR_IP"),  # MaxText on GPUs: a process a node
    _Launcher("openmpi", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("mvapich", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("mvapich", ("MVP_COMM_WORLD_RANK",), ("MVP_COMM_WORLD_LOCAL_RANK",), ("MVP_COMM_WORLD_SIZE",)),
    _Launcher("jsrun", ("JSM_NAMESPACE_RANK",), ("JSM_NAMESPACE_LOCAL_RANK",), ("JSM_NAMESPACE_SIZE",)),
    _Launcher("flux", ("FLUX_TASK_RANK",), ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",)),
    _Launcher("pals", ("PALS_RANKID",), ("PALS_LOCAL_RANKID",), ("PALS_SIZE", "PMI_SIZE")),
    _Launcher(
        "pmi", ("PMI_RANK", "PMIX_RANK"), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PMIX_LOCAL_RANK"), ("PMI_SIZE",)
    ),
    _Launcher("mpt", ("MPT_MPI_RANK",), (), ()),
    _Launcher("alps", ("ALPS_APP_PE",), (), ()),
    # srun sets SLURM_STEP_ID; a batch script's own SLURM_PROCID is 0 whatever it starts.
    _Launcher(
        "slurm",
        ("SLURM_PROCID",),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        "SLURM_STEP_ID",
    ),
)
# What a serving engine calls its processes: of tensor-, pipeline- and data-parallel workers only the rank among
# those of one model replica is given, and only where one number gives it.
_TITLE = re.compile(r"(?:VLLM::Worker|sglang::scheduler)((?:_(?:DP|PP|PCP|TP|DCP|EP)\d{1,6})+)", re.IGNORECASE)
_TITLE_PART = re.compile(r"_(DP|PP|PCP|TP|DCP|EP)(\d+)", re.IGNORECASE)


def rank_of(environ: Mapping[str, str]) -> Rank | None:
    """The rank that an environment names, or None for a process that is not part of a distributed job.

    The innermost launcher counts; another that agrees with it may add what it does not say. RANK alone is ambiguous:
    without a size it yields to a launcher that names one. Children inherit the environment: a
    data loader's worker has the rank of its trainer.
    """
    innermost = (_named_by(_TORCHRUN, environ), _of_lightnings_child(environ))
    others = [_named_by(launcher, environ) for launcher in _LAUNCHERS]
    found = [rank for rank in (*innermost, *others, _of_tensorflow(environ)) if rank is not None]
    if found and _may_be_a_pods(found[0]) and any((one.world_size or 0) > 1 for one in found[1:]):
        del found[0]
    claimed = _claimed_rank(found)
    if claimed is None or claimed.local_rank is not None:
        return claimed
    alike = (one for one in found if one.rank == claimed.rank and one.world_size in (None, claimed.world_size))
    return replace(claimed, local_rank=next((one.local_rank for one in alike if one.local_rank is not None), None))


def _claimed_rank(found: Sequence[Rank]) -> Rank | None:
    """The authoritative rank among those of several launchers, innermost first."""
    whole = [one for one in found if one.world_size is not None]
    for rank in found:
        if rank.world_size is not None:
            return rank
        if rank.launcher != _TORCHRUN.name:
            return next((one for one in whole if one.rank == rank.rank), rank)
    return found[0] if found else None


def _may_be_a_pods(rank: Rank) -> bool:
    """RANK=0 of WORLD_SIZE=1 without LOCAL_RANK: an operator gives that to a pod, whatever is started in it."""
    return rank.launcher == _TORCHRUN.name and rank.world_size == 1 and rank.local_rank is None


def rank_among(members: Sequence[Membership], claimed: Rank | None) -> Rank | None:
    """The rank of a process by its communicators, oldest first, and by its launcher's claim.

    The communicator whose size is the job's world size; where none is as large, the launcher's word; where one is
    larger, or the size of the job is unknown, the largest. A process that is several ranks of one communicator has
    none by it.
    """
    several = {one.comm_id_hash for one in members if one.comm_id_hash is not None}
    hashes = [one.comm_id_hash for one in members if one.comm_id_hash is not None]
    if len(several) < len(hashes) and any(
        len({one.rank for one in members if one.comm_id_hash == comm}) > 1 for comm in several
    ):
        return claimed
    largest = max(members, key=lambda one: one.nranks, default=None)
    if largest is None or largest.nranks < 2:  # a communicator of one says nothing
        return claimed
    chosen: Membership | None = None
    if claimed is None:
        chosen = largest
    elif claimed.world_size is not None:
        whole = (one for one in members if one.nranks == claimed.world_size)
        chosen = next(whole, largest if largest.nranks > claimed.world_size else None)
    if chosen is None:
        return claimed
    is_same = claimed is not None and (claimed.rank, claimed.world_size) == (chosen.rank, chosen.nranks)
    local_rank = claimed.local_rank if claimed is not None and is_same else None
    return Rank(rank=chosen.rank, local_rank=local_rank, world_size=chosen.nranks, launcher="communicator")


def rank_in_title(cmdline: Sequence[str]) -> Rank | None:
    """The rank in the title that a serving engine gave its worker (`VLLM::Worker_TP1`), or None.

    With several kinds of parallelizm the numbers make no rank without the sizes, which the title does not hold; zeros
    beside one number change nothing.
    """
    title = _TITLE.match(cmdline[0]) if cmdline and not any(cmdline[1:]) else None
    if title is None:
        return None
    parts = {kind.upper(): int(number) for kind, number in _TITLE_PART.findall(title[1])}
    # tensor-parallel ranks come first in a replica: with one pipeline stage known to be the first, TP is the rank
    if any(parts.get(kind, 0) for kind in ("DP", "PP", "PCP")) or "TP" not in parts:
        return None
    return Rank(rank=parts["TP"], local_rank=None, world_size=None, launcher="title")


def _of_lightnings_child(environ: Mapping[str, str]) -> Rank | None:
    """The rank of a child of Lightning: node, local rank and world size; each node has equally many processes.

    None where more than one number of processes a node would fit.
    """
    local_rank, node = _number(environ, ("LOCAL_RANK",)), _number(environ, ("NODE_RANK",))
    size = _number(environ, ("WORLD_SIZE",))
    if local_rank is None or node is None or not size or local_rank >= size or environ.get("RANK"):
        return None
    counts = (size // nodes for nodes in range(node + 1, min(size, _MAX_NODES) + 1) if size % nodes == 0)
    fitting = [count for count in counts if count > local_rank]
    if node and len(fitting) != 1:
        return None
    rank = node * fitting[0] + local_rank if node else local_rank
    return Rank(rank=rank, local_rank=local_rank, world_size=size, launcher="lightning")


def _of_tensorflow(environ: Mapping[str, str]) -> Rank | None:
    """The rank in TF_CONFIG of MultiWorkerMirroredStrategy: chief (or master) before the workers (`tf.distribute`)."""
    text = environ.get("TF_CONFIG", "")
    if not text or len(text) > _MAX_JSON:
        return None
    try:
        config = json.loads(text)
        hosts = {kind: config["cluster"][kind] for kind in ("chief", "master", "worker") if kind in config["cluster"]}
        kind, index = config["task"]["type"], str(config["task"]["index"])
        kinds = list(hosts)
        before = sum(len(hosts[one]) for one in kinds[: kinds.index(kind)])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not all(isinstance(one, list) for one in hosts.values()):
        return None
    if not _NUMBER.fullmatch(index) or int(index) >= len(hosts[kind]):
        return None
    size = sum(map(len, hosts.values()))
    return Rank(rank=before + int(index), local_rank=None, world_size=size, launcher="tensorflow")


def _named_by(launcher: _Launcher, environ: Mapping[str, str]) -> Rank | None:
    rank, size = _number(environ, launcher.rank), _number(environ, launcher.world_size)
    if rank is None or (size is not None and rank >= size) or (launcher.needs and not environ.get(launcher.needs)):
        return None
    if launcher.name == "slurm" and not _is_tasks_step(environ["SLURM_STEP_ID"]):
        return None
    local_rank = _number(environ, launcher.local_rank)
    if local_rank is not None and size is not None and local_rank >= size:
        local_rank = None
    return Rank(rank=rank, local_rank=local_rank, world_size=size, launcher=launcher.name)


def _is_tasks_step(step: str) -> bool:
    """Whether a Slurm step was started by srun; in other steps each process claims to be task 0."""
    return step.isascii() and step.isdigit() and len(step) <= 10 and int(step) < _FIRST_SPECIAL_STEP


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of the variables that holds a number of at most nine digits; other text is ignored."""
    values = (environ.get(name, "").strip() for name in names)
    return next((int(value) for value in values if _NUMBER.fullmatch(value)), None)
