"""A limit is changed by the command of whoever runs the cgroup."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.diagnose.limit_commands import (
    Weight,
    exclusive_cores,
    fix_for_managed_cgroup,
    set_cpus,
    set_memory,
    set_weight,
)
from ingero.store.records import Container

BARE = Container(
    cgroup_id=7,
    node="n",
    container_id="",
    cgroup_path="/jobs/7",
    pod="",
    namespace="",
    orchestrator="",
    runtime="",
    unit="",
)
POD = replace(BARE, container_id="c" * 64, pod="train-0", namespace="ml", orchestrator="kubernetes")
DOCKER = replace(BARE, container_id="d" * 64, orchestrator="docker", runtime="docker")
PODMAN = replace(BARE, container_id="e" * 64, orchestrator="podman", runtime="podman")
UNIT = replace(BARE, orchestrator="systemd", unit="fluent-bit.service")


@pytest.mark.parametrize(
    ("group", "command"),
    [
        (POD, "kubectl -n ml set resources deployment/<that made train-0> --limits=cpu=1500m"),
        (DOCKER, "sudo docker update --cpus=1.5 dddddddddddd"),
        (PODMAN, "sudo podman update --cpus=1.5 eeeeeeeeeeee"),
        (UNIT, "sudo systemctl set-property fluent-bit.service CPUQuota=150%"),
        (BARE, "echo '150000 100000' | sudo tee /sys/fs/cgroup/jobs/7/cpu.max  # v1: cpu.cfs_quota_us"),
        (None, "echo '150000 100000' | sudo tee <cgroup>/cpu.max  # v1: cpu.cfs_quota_us"),
    ],
)
def test_cpus_are_set_through_whoever_runs_the_group(group: Container | None, command: str) -> None:
    assert set_cpus(group, 1.5) == command


@pytest.mark.parametrize(
    ("group", "begin"),
    [(POD, "kubectl -n ml"), (DOCKER, "sudo docker update"), (UNIT, "sudo systemctl"), (BARE, "echo")],
)
def test_memory_is_set_through_whoever_runs_the_group(group: Container, begin: str) -> None:
    assert set_memory(group).startswith(begin)


def test_exclusive_cores_are_offered_only_where_a_way_is_known() -> None:
    pod, docker = exclusive_cores(POD), exclusive_cores(DOCKER)
    assert pod is not None
    assert "Guaranteed" in pod.text
    assert docker is not None
    assert "--cpuset-cpus" in docker.command
    assert exclusive_cores(UNIT) is None


@pytest.mark.parametrize(
    ("group", "command"),
    [
        (POD, "kubectl -n ml set resources deployment/<that made train-0> --requests=cpu=<cores>"),
        (DOCKER, "sudo docker update --cpu-shares=10240 dddddddddddd"),
        (UNIT, "sudo systemctl set-property fluent-bit.service CPUWeight=1000"),
        (BARE, "echo 1000 | sudo tee /sys/fs/cgroup/jobs/7/cpu.weight  # v1: 10240 to cpu.shares"),
        (None, "echo 1000 | sudo tee <cgroup>/cpu.weight  # v1: 10240 to cpu.shares"),
    ],
)
def test_a_weight_is_set_through_whoever_runs_the_group(group: Container | None, command: str) -> None:
    assert set_weight(group, Weight.MORE) == command


@pytest.mark.parametrize(
    ("beside", "place"),
    [
        ("/jobs/8", "echo 1 | sudo tee /sys/fs/cgroup/jobs/7/cpu.weight  # v1: 2 to cpu.shares"),
        ("/other/8", "echo 1 | sudo tee /sys/fs/cgroup/jobs/cpu.weight  # v1: 2 to cpu.shares"),
        ("/", "echo 1 | sudo tee /sys/fs/cgroup/jobs/7/cpu.weight  # v1: 2 to cpu.shares"),
    ],
)
def test_a_weight_counts_where_the_paths_part(beside: str, place: str) -> None:
    assert set_weight(BARE, Weight.LEAST, beside=replace(BARE, cgroup_id=8, cgroup_path=beside)) == place


def test_a_slice_that_parts_two_units_is_weighed_through_systemd() -> None:
    mine = replace(UNIT, cgroup_path="/system.slice/fluent-bit.service")
    other = replace(UNIT, cgroup_id=8, cgroup_path="/user.slice/session-3.scope", unit="session-3.scope")
    assert set_weight(mine, Weight.MORE, beside=other) == "sudo systemctl set-property system.slice CPUWeight=1000"


@pytest.mark.parametrize("name", ["x;touch PWNED;.scope", "job$(touch PWNED)", "a\ntouch PWNED", "--host=x;.slice"])
def test_name_of_a_control_group_is_one_word_of_the_command(tmp_path: Path, name: str) -> None:
    groups = (
        replace(BARE, cgroup_path=f"/user.slice/{name}"),
        replace(UNIT, unit=name, cgroup_path=f"/user.slice/{name}"),
        replace(DOCKER, container_id=name),
        replace(POD, pod=name, namespace=name),
    )
    for group in groups:
        cpus = exclusive_cores(group)
        commands = [
            set_cpus(group),
            set_memory(group),
            set_weight(group, Weight.LEAST),
            cpus.command if cpus else "",
        ]
        text = "\n".join(re.sub(r"<[a-z ]*", "x", command.replace(">", "")) for command in commands)
        subprocess.run(["bash", "-c", f"sudo() {{ :; }}; kubectl() {{ :; }}\n{text}"], cwd=tmp_path, check=False)
        assert not list(tmp_path.iterdir())
        assert all(command.isprintable() for command in commands)


JOB = replace(
    BARE,
    scheduler="slurm",
    job="78",
    job_step="0",
    cgroup_path="/system.slice/slurmstepd.scope/job_78/step_0/user/task_0",
)


def test_a_job_is_changed_through_its_scheduler() -> None:
    assert set_cpus(JOB, 1.5) == "sbatch --cpus-per-task=2 ..."
    assert set_memory(JOB) == "sbatch --mem=<more> ..."
    asked = fix_for_managed_cgroup(JOB, "python [7]")
    assert asked is not None
    assert "Slurm job 78 (python [7])" in asked.text
    assert asked.command == "sudo scontrol suspend 78"


@pytest.mark.parametrize(
    "unit",
    [
        "slurmstepd.scope",
        "node1_slurmstepd.scope",
        "slurmd.service",
        "containerd.service",
        "docker.service",
        "kubelet.service",
        "k3s.service",
        "k3s-agent.service",
        "rke2-server.service",
        "user@1000.service",
        "condor.service",
        "init.scope",
        "systemd-machined.service",
        "snap.lxd.daemon.service",
    ],
)
def test_a_manager_is_never_limited(unit: str) -> None:
    asked = fix_for_managed_cgroup(replace(BARE, unit=unit), "hog [7]")
    assert asked is not None
    assert (asked.command, unit in asked.text, "hog [7]" in asked.text) == ("", True, True)
    by_path = replace(BARE, unit="", cgroup_path=f"/system.slice/{unit}/inner")
    assert fix_for_managed_cgroup(by_path, "hog [7]") == asked


@pytest.mark.parametrize(
    ("path", "name", "command"),
    [
        (
            "/machine.slice/machine-qemu\\x2d1\\x2dwin10.scope/libvirt/emulator",
            "win10",
            "sudo virsh schedinfo --live win10 cpu_shares=2",
        ),
        (
            "/machine.slice/machine-qemu\\x2d12\\x2da\\x2db\\x3bid.scope/libvirt/vcpu3",
            "a-b;id",
            "sudo virsh schedinfo --live 'a-b;id' cpu_shares=2",
        ),
        ("/qemu.slice/100.scope", "100", "sudo qm set 100 --cpuunits 1"),
    ],
)
def test_a_virtual_machine_is_called_one_and_limited_through_its_manager(path: str, name: str, command: str) -> None:
    asked = fix_for_managed_cgroup(replace(BARE, cgroup_path=path, unit=path.split("/")[2]), "qemu-system-x86 [7]")
    assert asked is not None
    assert f"virtual machine {name} (qemu-system-x86 [7])" in asked.text
    assert asked.command == command


@pytest.mark.parametrize("group", [UNIT, POD, DOCKER, BARE, replace(BARE, unit="session-3.scope")])
def test_what_runs_its_own_work_may_be_limited(group: Container) -> None:
    assert fix_for_managed_cgroup(group, "hog [7]") is None


@pytest.mark.parametrize(
    ("owner", "command"),
    [
        ("deployment/train", "kubectl -n ml set resources deployment/train --limits=cpu=1500m"),
        ("pytorchjob/bert", "kubectl -n ml edit pytorchjob/bert  # resources.limits.cpu: 1500m"),
    ],
)
def test_a_pods_owner_is_named_where_it_is_known(owner: str, command: str) -> None:
    assert set_cpus(replace(POD, owner=owner), 1.5) == command
