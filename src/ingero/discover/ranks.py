"""The rank of a process in its distributed job, from the environment that its launcher gave it.

What a program sets in its own environment while it runs (`os.environ["RANK"] = ...` before `mp.spawn`) cannot be seen
from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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


# The innermost launcher comes first: torchrun is started by srun, not the other way round.
_LAUNCHERS = (
    _Launcher("torchrun", ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",)),
    _Launcher("openmpi", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("mvapich", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    # srun sets SLURM_STEP_ID; a batch script's own SLURM_PROCID is 0 whatever it starts.
    _Launcher(
        "slurm", ("SLURM_PROCID",), ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_STEP_ID"
    ),
    _Launcher("pmi", ("PMI_RANK", "PMIX_RANK"), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
)


def rank_of(environ: Mapping[str, str]) -> Rank | None:
    """The rank that an environment names, or None for a process that is not part of a distributed job."""
    for launcher in _LAUNCHERS:
        rank = _number(environ, launcher.rank)
        if rank is not None and (not launcher.needs or launcher.needs in environ):
            return Rank(
                rank=rank,
                local_rank=_number(environ, launcher.local_rank),
                world_size=_number(environ, launcher.world_size),
                launcher=launcher.name,
            )
    return None


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of the variables that holds a number; other text is ignored."""
    values = (environ.get(name, "").strip() for name in names)
    return next((int(value) for value in values if value.isascii() and value.isdigit()), None)
