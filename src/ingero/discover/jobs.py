"""Finds the scheduler job of a process, by its cgroup path and its environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ingero.discover.containers import Placement, slurm_job_of
from ingero.discover.rooted import RootFiles

_WORD = re.compile(r"[\w.@\[\]+-]{1,128}")
_SPECIAL_STEPS = {0xFFFFFFFA: "interactive", 0xFFFFFFFB: "batch", 0xFFFFFFFC: "extern"}  # slurm.h
_MAX_AD_BYTES = 256 << 10
_AD_NUMBER = re.compile(rb"^(ClusterId|ProcId)\s*=\s*(\d{1,12})\s*$", re.MULTILINE | re.IGNORECASE)

# Each with where the form comes from.
_PATHS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"/pbs_jobs\.service/(?:jobid|jobs)/([^/]+)"), "pbs"),  # openpbs, hook pbs_cgroups, cgroup v1 and v2
    (
        re.compile(r"/pbspro(?:\.service|\.slice)?/(?:jobid/|pbspro-)?(\d[^/]*?)(?:\.slice)?(?=/|\Z)"),
        "pbs",
    ),  # before 20
    (re.compile(r"/lsf/[^/]+/job\.(\d+(?:\[\d+\])?)\.[^/]+"), "lsf"),  # IBM, "Control job processes with Linux cgroups"
    (re.compile(r"/(?:imp-)?shell-\d+-(f[1-9A-HJ-NP-Za-km-z]+)\.service"), "flux"),  # flux-core, sdexec
    (re.compile(r"/htcondor/condor_[^/]*?_(slot\d+(?:_\d+)?(?:@[^/]+)?)(?=/|\Z)"), "htcondor"),  # HTCondor, BASE_CGROUP
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A scheduler job. id: as the scheduler's commands take it; step: a part of it, if the scheduler has steps."""

    scheduler: str
    id: str
    step: str | None = None


def job_of(
    place: Placement, cgroup_path: str, environ: Mapping[str, str], pid: int, files: RootFiles | None = None
) -> Job | None:
    """The job of a process: the scheduler that allocated its resources comes before one inside it.

    The environment says more than the group, which may hold several jobs; without one, the group's path.
    """
    return (
        _slurm(place, environ)
        or _named("flux", environ.get("FLUX_JOB_ID"))
        or _named("pbs", environ.get("PBS_JOBID"))
        or _lsf(environ)
        or _htcondor(environ, pid, files or RootFiles())
        or job_in_path(place, cgroup_path)
        or _grid_engine(environ)
        or _named("ray", environ.get("RAY_JOB_ID"))
    )


def job_in_path(place: Placement, cgroup_path: str) -> Job | None:
    """The job that a cgroup path alone shows."""
    if place.job:
        return Job(scheduler="slurm", id=place.job, step=place.step)
    for pattern, scheduler in _PATHS:
        if match := pattern.search(cgroup_path):
            return _named(scheduler, match[1])
    return None


def _slurm(place: Placement, environ: Mapping[str, str]) -> Job | None:
    job = slurm_job_of(environ)
    if job is None:
        return None
    if place.step is not None and place.job in (None, job):
        return Job(scheduler="slurm", id=job, step=place.step)
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    if not re.fullmatch(r"[0-9]{1,10}", step):
        return Job(scheduler="slurm", id=job)
    return Job(scheduler="slurm", id=job, step=_SPECIAL_STEPS.get(int(step), step))


def _lsf(environ: Mapping[str, str]) -> Job | None:
    index = environ.get("LSB_JOBINDEX", "0")
    job = environ.get("LSB_JOBID", "")
    return _named("lsf", f"{job}[{index}]" if job and index not in ("", "0") else job)


def _grid_engine(environ: Mapping[str, str]) -> Job | None:
    if "SGE_ROOT" not in environ or "QUEUE" not in environ:  # many programs have a JOB_ID
        return None
    task = environ.get("SGE_TASK_ID", "undefined")
    job = environ.get("JOB_ID", "")
    return _named("gridengine", f"{job}.{task}" if job and task != "undefined" else job)


def _htcondor(environ: Mapping[str, str], pid: int, files: RootFiles) -> Job | None:
    """The job's number stands in its ad, a file that the starter writes into the scratch folder."""
    ad = environ.get("_CONDOR_JOB_AD", "")
    if not ad.startswith("/"):
        return None
    try:
        text = files.read(pid, ad.lstrip("/"), _MAX_AD_BYTES)
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        text = b""
    numbers = {name.lower(): number.decode() for name, number in _AD_NUMBER.findall(text)}
    if b"clusterid" in numbers:
        return Job(scheduler="htcondor", id=f"{numbers[b'clusterid']}.{numbers.get(b'procid', '0')}")
    return _named("htcondor", environ.get("_CONDOR_SLOT"))


def _named(scheduler: str, name: str | None) -> Job | None:
    return Job(scheduler=scheduler, id=name) if name and _WORD.fullmatch(name) else None
