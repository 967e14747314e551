"""discover.jobs: the scheduler's job of a process, by the forms that schedulers document or make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.discover.containers import Placement, placement_of
from ingero.discover.jobs import Job, job_in_path, job_of
from ingero.discover.rooted import RootFiles

CONDOR = "/system.slice/htcondor/condor_var_lib_condor_execute_slot1_2@node7"

# Each with where the form comes from.
PATHS: list[tuple[str, str, Job | None]] = [
    ("slurm.schedmd.com", "/slurm/uid_1000/job_77/step_0/task_3", Job(scheduler="slurm", id="77", step="0")),
    ("openpbs, cgroup v1", "/pbs_jobs.service/jobid/2404743.opbs", Job(scheduler="pbs", id="2404743.opbs")),
    ("openpbs, cgroup v2", "/pbs_jobs.service/jobs/123[4].pbs", Job(scheduler="pbs", id="123[4].pbs")),
    ("PBS Pro before 20", "/pbspro/0.headnode", Job(scheduler="pbs", id="0.headnode")),
    ("the same with a slice", "/pbspro.slice/pbspro-12.headnode.slice", Job(scheduler="pbs", id="12.headnode")),
    ("IBM Spectrum LSF", "/lsf/cluster1/job.4108.13212.1594366455", Job(scheduler="lsf", id="4108")),
    (
        "flux-core, sdexec",
        "/system.slice/imp-shell-0-f2Tb5xYz.service",
        Job(scheduler="flux", id="f2Tb5xYz"),
    ),
    ("HTCondor, cgroup v2", CONDOR, Job(scheduler="htcondor", id="slot1_2@node7")),
    (
        "HTCondor, cgroup v1",
        "/htcondor/condor_var_lib_condor_execute_slot1",
        Job(scheduler="htcondor", id="slot1"),
    ),
    ("no job", "/user.slice/user-1000.slice/session-3.scope", None),
    ("PBS's daemon", "/pbs_jobs.service", None),
]


@pytest.mark.parametrize(("path", "job"), [row[1:] for row in PATHS], ids=[row[0] for row in PATHS])
def test_the_path_of_a_group_names_its_job(path: str, job: Job | None) -> None:
    assert job_in_path(placement_of(path), path) == job


def told(environ: dict[str, str], path: str = "/", proc: Path = Path("/nowhere")) -> Job | None:
    return job_of(placement_of(path), path, environ, 7, RootFiles(proc))


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3"}, Job(scheduler="slurm", id="77", step="3")),
        ({"SLURM_JOBID": "77"}, Job(scheduler="slurm", id="77")),
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "4294967291"}, Job(scheduler="slurm", id="77", step="batch")),
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "4294967290"}, Job(scheduler="slurm", id="77", step="interactive")),
        ({"FLUX_JOB_ID": "f2Tb5x"}, Job(scheduler="flux", id="f2Tb5x")),
        ({"PBS_JOBID": "123[4].server"}, Job(scheduler="pbs", id="123[4].server")),
        ({"LSB_JOBID": "4108", "LSB_JOBINDEX": "0"}, Job(scheduler="lsf", id="4108")),
        ({"LSB_JOBID": "4108", "LSB_JOBINDEX": "12"}, Job(scheduler="lsf", id="4108[12]")),
        ({"SGE_ROOT": "/opt/sge", "QUEUE": "all.q", "JOB_ID": "9"}, Job(scheduler="gridengine", id="9")),
        ({"JOB_ID": "9"}, None),
        ({"RAY_JOB_ID": "01000000"}, Job(scheduler="ray", id="01000000")),
        ({"RAY_JOB_ID": "01000000", "SLURM_JOB_ID": "77"}, Job(scheduler="slurm", id="77")),
        ({"_CONDOR_JOB_AD": "/gone", "_CONDOR_SLOT": "slot1_2"}, Job(scheduler="htcondor", id="slot1_2")),
        ({"PBS_JOBID": "$PBS_JOBID"}, None),
        ({"FLUX_JOB_ID": "x" * 500}, None),
        ({}, None),
    ],
)
def test_the_environment_names_the_job(environ: dict[str, str], job: Job | None) -> None:
    assert told(environ) == job


def test_the_number_of_a_sluid_stands_in_the_environment_its_step_in_the_path() -> None:
    path = "/system.slice/slurmstepd.scope/s8G5M22WGXB100/step_batch/user/task_0"
    assert told({"SLURM_JOB_ID": "77"}, path) == Job(scheduler="slurm", id="77", step="batch")
    assert told({}, path) is None


def test_an_environment_of_another_job_does_not_take_the_step_of_the_group() -> None:
    path = "/system.slice/slurmstepd.scope/job_78/step_0"
    assert told({"SLURM_JOB_ID": "77"}, path) == Job(scheduler="slurm", id="77")
    assert told({}, path) == Job(scheduler="slurm", id="78", step="0")


def an_ad(tmp_path: Path, text: str) -> Path:
    scratch = tmp_path / "7/root/scratch"
    scratch.mkdir(parents=True)
    (scratch / ".job.ad").write_text(text)
    return tmp_path


def test_htcondors_number_stands_in_the_jobs_ad(tmp_path: Path) -> None:
    proc = an_ad(tmp_path, 'Owner = "me"\nProcId = 3\nClusterId = 4711\nArgs = "ClusterId = 1"\n')
    assert told({"_CONDOR_JOB_AD": "/scratch/.job.ad"}, CONDOR, proc) == Job(scheduler="htcondor", id="4711.3")
    assert told({"_CONDOR_JOB_AD": "scratch/.job.ad"}, "/", proc) is None
    assert told({"_CONDOR_JOB_AD": "/scratch\0/.job.ad"}, "/", proc) is None


NAMES = ["SLURM_JOB_ID", "SLURM_STEP_ID", "FLUX_JOB_ID", "PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX", "_CONDOR_JOB_AD"]


@given(st.dictionaries(st.sampled_from([*NAMES, "_CONDOR_SLOT", "RAY_JOB_ID"]), st.binary().map(os.fsdecode)))
def test_any_environment_gives_a_job_that_a_database_takes_or_none(environ: dict[str, str]) -> None:
    job = job_of(Placement(), "/", environ, 0, RootFiles(Path("/nowhere")))
    if job is not None:
        assert 0 < len(job.id) < 300
        job.id.encode()
