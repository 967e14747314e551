"""The rank of a process in its distributed job, from the environment that its launcher gave it.

What a program sets in its own environment while it runs (`os.environ["RANK"] = ...` before `mp.spawn`) cannot be seen
from outside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The place of one process among the processes of its job. None: the launcher does not say.

    local_rank: its number on its node; world_size: processes in the job.
    launcher: whose variables they are.
    """

    rank: int
    local_rank: int | None
    world_size: int | None
    launcher: str


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
_LAUNCHERS = (
    _Launcher("torchrun", ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",)),
    _Launcher("openmpi", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("mvapich", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("pmi", ("PMI_RANK", "PMIX_RANK"), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    # srun sets SLURM_STEP_ID; a batch script's own SLURM_PROCID is 0 whatever it starts.
    _Launcher(
        "slurm", ("SLURM_PROCID",), ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_STEP_ID"
    ),
)


def rank_of(environ: Mapping[str, str]) -> Rank | None:
    """The rank that an environment names, or None for a process that is not part of a distributed job.

    The innermost launcher that names the size of the job as well; without one, the innermost. Children inherit the
    environment: a data loader's worker has the rank of its trainer.
    """
    found = [rank for launcher in _LAUNCHERS if (rank := _named_by(launcher, environ)) is not None]
    return next((rank for rank in found if rank.world_size is not None), found[0] if found else None)


def _named_by(launcher: _Launcher, environ: Mapping[str, str]) -> Rank | None:
    rank, size = _number(environ, launcher.rank), _number(environ, launcher.world_size)
    if rank is None or (size is not None and rank >= size) or (launcher.needs and launcher.needs not in environ):
        return None
    return Rank(rank=rank, local_rank=_number(environ, launcher.local_rank), world_size=size, launcher=launcher.name)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of the variables that holds a number of at most nine digits; other text is ignored."""
    values = (environ.get(name, "").strip() for name in names)
    return next((int(value) for value in values if _NUMBER.fullmatch(value)), None)
