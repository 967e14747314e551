"""discover.containers: who runs a process, by the forms of group paths that runtimes document or make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.discover.cgroups import parse_cgroup
from ingero.discover.containers import (
    Placement,
    owner_of,
    placement_among,
    placement_in,
    placement_of,
    pod_of,
    slurm_job_of,
)
from ingero.discover.rooted import RootFiles

ID, OTHER = "0123456789abcdef" * 4, "f" * 64
UID = "0c6a3b2e-9f51-4d7a-8f3e-2b1c4d5e6f70"
SLICE_UID = UID.replace("-", "_")
OTHER_UID = "11111111-2222-3333-4444-555555555555"
STATIC_UID = "8d5f1a6b7c9e0f1a2b3c4d5e6f708192"
TASK = "1234567890abcdef1234567890abcdef"


def kubernetes(runtime: str | None, uid: str = UID) -> Placement:
    return Placement(orchestrator="kubernetes", runtime=runtime, container_id=ID, pod_uid=uid)


def plain(runtime: str) -> Placement:
    return Placement(orchestrator=runtime, runtime=runtime, container_id=ID)


# Each with where the form comes from.
PATHS: list[tuple[str, str, Placement]] = [
    ("docs.docker.com, runtime metrics: cgroupfs driver", f"/docker/{ID}", plain("docker")),
    ("the same page: systemd driver", f"/system.slice/docker-{ID}.scope", plain("docker")),
    (
        "docs.docker.com, rootless mode with systemd",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope",
        plain("docker"),
    ),
    (
        "moby, --cgroup-parent=/training, cgroupfs: the parent replaces /docker",
        f"/training/{ID}",
        Placement(container_id=ID),
    ),
    ("docker in docker: the inner container", f"/docker/{OTHER}/docker/{ID}", plain("docker")),
    ("containerd, ctr with cgroupfs: /namespace/id", f"/default/{ID}", Placement(container_id=ID)),
    ("nerdctl with systemd", f"/system.slice/nerdctl-{ID}.scope", plain("containerd")),
    (
        "kubelet, cgroupfs driver, burstable (pkg/kubelet/cm: /kubepods/QOS/podUID)",
        f"/kubepods/burstable/pod{UID}/{ID}",
        kubernetes(None),
    ),
    ("kubelet, cgroupfs driver, guaranteed: no QOS level", f"/kubepods/pod{UID}/{ID}", kubernetes(None)),
    (
        "kubelet, systemd driver with containerd (cri: cri-containerd-ID.scope)",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        kubernetes("containerd"),
    ),
    (
        "kubelet, systemd driver, guaranteed, CRI-O (crio-ID.scope)",
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-{ID}.scope",
        kubernetes("cri-o"),
    ),
    (
        "CRI-O on cgroup v2 with crun: a group inside the scope",
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-{ID}.scope/container",
        kubernetes("cri-o"),
    ),
    ("CRI-O, cgroupfs driver", f"/kubepods/besteffort/pod{UID}/crio-{ID}", kubernetes("cri-o")),
    (
        "cri-dockerd with systemd",
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE_UID}.slice/docker-{ID}.scope",
        kubernetes("docker"),
    ),
    (
        "a static pod: its UID is the hash of its manifest",
        f"/kubepods/burstable/pod{STATIC_UID}/{ID}",
        kubernetes(None, STATIC_UID),
    ),
    (
        "containerd below a service, systemd naming with a cgroupfs runc (slice:prefix:id)",
        f"/system.slice/containerd.service/kubepods-burstable-pod{SLICE_UID}.slice:cri-containerd:{ID}",
        kubernetes("containerd"),
    ),
    (
        "kind: a kubelet inside a Docker container",
        f"/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        kubernetes("containerd"),
    ),
    (
        "k3s rootless",
        f"/user.slice/user-1000.slice/user@1000.service/app.slice/k3s-rootless.service/kubepods/burstable/pod{UID}/{ID}",
        kubernetes(None),
    ),
    ("podman, systemd manager", f"/machine.slice/libpod-{ID}.scope/container", plain("podman")),
    ("podman, cgroupfs manager", f"/libpod_parent/libpod-{ID}", plain("podman")),
    (
        "podman pod",
        f"/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope/container",
        plain("podman"),
    ),
    (
        "rootless podman",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        plain("podman"),
    ),
    (
        "Quadlet: podman as a service with --cgroups=split",
        f"/system.slice/llm.service/libpod-payload-{ID}",
        plain("podman"),
    ),
    (
        "Amazon ECS on EC2, cgroupfs (/ecs/TASK/CONTAINER)",
        f"/ecs/{TASK}/{ID}",
        Placement(orchestrator="ecs", runtime="docker", container_id=ID, task=TASK),
    ),
    (
        "Amazon ECS with the older path (/ecs/CLUSTER/TASK/CONTAINER)",
        f"/ecs/training/{TASK}/{ID}",
        Placement(orchestrator="ecs", runtime="docker", container_id=ID, task=TASK),
    ),
    (
        "Amazon ECS on EC2, systemd (ecs-agent: ecstasks-TASK.slice)",
        f"/ecstasks.slice/ecstasks-{TASK}.slice/docker-{ID}.scope",
        Placement(orchestrator="ecs", runtime="docker", container_id=ID, task=TASK),
    ),
    (
        "AWS Fargate: the id is the task's with a number",
        f"/ecs/{TASK}/{TASK}-0123456789",
        Placement(orchestrator="ecs", container_id=f"{TASK}-0123456789", task=TASK),
    ),
    (
        "slurm.schedmd.com, cgroup v1 plugin",
        "/slurm/uid_1000/job_4711/step_0/task_3",
        Placement(orchestrator="slurm", job="4711", step="0"),
    ),
    (
        "the same with several slurmd on a node",
        "/slurm_gpu07/uid_1000/job_4711/step_batch",
        Placement(orchestrator="slurm", job="4711", step="batch"),
    ),
    (
        "slurm.schedmd.com, cgroup v2 plugin",
        "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
        Placement(orchestrator="slurm", job="4711", step="0"),
    ),
    (
        "the same with several slurmd on a node",
        "/system.slice/gpu07_slurmstepd.scope/job_4711/step_extern/user/task_special",
        Placement(orchestrator="slurm", job="4711", step="extern"),
    ),
    (
        "LXD",
        "/lxc.payload.train/system.slice/ssh.service",
        Placement(orchestrator="lxc", runtime="lxc", container_id="train"),
    ),
    (
        "systemd-nspawn",
        "/machine.slice/machine-train.scope/payload",
        Placement(orchestrator="systemd-nspawn", runtime="systemd-nspawn", container_id="train"),
    ),
    ("systemd.io: a service", "/system.slice/train.service", Placement(orchestrator="systemd", unit="train.service")),
    (
        "systemd.io: a login",
        "/user.slice/user-1000.slice/session-3.scope",
        Placement(orchestrator="systemd", unit="session-3.scope"),
    ),
    (
        "systemd.io: a user's own service",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/notebook.service",
        Placement(orchestrator="systemd", unit="notebook.service"),
    ),
    ("the root", "/", Placement()),
    ("moby, --cgroup-parent=/foo/bar", f"/foo/bar/{ID}", Placement(container_id=ID)),
    ("tetragon: an id at the root", f"/{ID}", Placement(container_id=ID)),
    ("a GitHub runner's container", f"/actions_job/{ID}", Placement(container_id=ID)),
    (
        "netdata#13470: containerd without a parent group",
        f"/system.slice/containerd.service/cpuset/{ID}",
        Placement(container_id=ID),
    ),
    (
        "rootless podman, split groups in a user's service",
        f"/user.slice/user-1000.slice/user@1000.service/web.service/{ID}",
        Placement(container_id=ID),
    ),
    ("kernel, cgroup_namespaces(7): a pod beside the agent's", f"/../../pod{UID}/{ID}", kubernetes(None)),
    (
        "the same, of another class, systemd driver",
        f"/../kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        kubernetes("containerd"),
    ),
    ("k3s, cgroupfs driver, below its service", f"/system.slice/k3s.service/kubepods/pod{UID}/{ID}", kubernetes(None)),
    ("Kata Containers: the sandbox", f"/kubepods/burstable/pod{UID}/kata_{ID}", kubernetes(None)),
    ("nerdctl, systemd naming with a cgroupfs runc", f"/system.slice:nerdctl:{ID}", plain("containerd")),
    (
        "ctr run: the name is the id",
        "/default/train-7",
        Placement(orchestrator="containerd", runtime="containerd", container_id="train-7"),
    ),
    ("a unit in that folder", "/default/train.service", Placement(orchestrator="systemd", unit="train.service")),
    (
        "Amazon ECS, a task's UUID with Fargate's id",
        f"/ecs/{UID}/{TASK}-0123456789",
        Placement(orchestrator="ecs", container_id=f"{TASK}-0123456789", task=UID),
    ),
    (
        "AWS Fargate, one level",
        f"/ecs/{TASK}-0123456789",
        Placement(orchestrator="ecs", container_id=f"{TASK}-0123456789", task=TASK),
    ),
    (
        "slurm.schedmd.com, 26.05: a SLUID",
        "/system.slice/slurmstepd.scope/s8G5M22WGXB100/step_0/user/task_0",
        Placement(orchestrator="slurm", step="0"),
    ),
    (
        "the same, cgroup v1",
        "/slurm/uid_1000/s8G5M22WGXB100/step_batch",
        Placement(orchestrator="slurm", step="batch"),
    ),
    (
        "Slurm's daemon for processes that belong to no step",
        "/system.slice/slurmstepd.scope/system",
        Placement(orchestrator="systemd", unit="slurmstepd.scope"),
    ),
    ("Proxmox: LXC by number", "/lxc/101/ns", Placement(orchestrator="lxc", runtime="lxc", container_id="101")),
    (
        "Incus: an instance in a project",
        "/lxc.payload.ml_train-1/init.scope",
        Placement(orchestrator="lxc", runtime="lxc", container_id="ml_train-1"),
    ),
    (
        "libvirt's LXC driver",
        "/machine.slice/machine-lxc\\x2d4211\\x2dtrain.scope",
        Placement(orchestrator="lxc", runtime="lxc", container_id="train"),
    ),
    (
        "systemd-nspawn, a name with a hyphen",
        "/machine.slice/machine-train\\x2dbox.scope",
        Placement(orchestrator="systemd-nspawn", runtime="systemd-nspawn", container_id="train-box"),
    ),
    (
        "machinectl start, and what runs in it",
        "/machine.slice/systemd-nspawn@demo.service/payload/system.slice/train.service",
        Placement(orchestrator="systemd-nspawn", runtime="systemd-nspawn", container_id="demo"),
    ),
    (
        "nomadproject.io, exec driver, cgroup v2",
        f"/nomad.slice/share.slice/{UID}.train.scope",
        Placement(orchestrator="nomad", container_id=UID),
    ),
    (
        "the same, cgroup v1",
        f"/nomad/share/{UID}.train",
        Placement(orchestrator="nomad", container_id=UID),
    ),
    (
        "Cloud Foundry's Garden",
        "/system.slice/garden.service/garden/6f265890-5165-7fab-6b52-18d1",
        Placement(container_id="6f265890-5165-7fab-6b52-18d1"),
    ),
    (
        "Mesos containerizer",
        f"/mesos/{UID}",
        Placement(orchestrator="mesos", container_id=UID),
    ),
    ("Talos", "/podruntime/kubelet", Placement()),
    (
        "a snap",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/snap.jupyter.jupyter-1b.scope",
        Placement(orchestrator="systemd", unit="snap.jupyter.jupyter-1b.scope"),
    ),
    (
        "Apptainer --apply-cgroups: a scope, whose root is not the host's but whose devices are",
        "/user.slice/user-1000.slice/user@1000.service/user.slice/apptainer-4711.scope",
        Placement(orchestrator="systemd", unit="apptainer-4711.scope"),
    ),
    (
        "kubelet --cgroup-root=/kube",
        "/kube.slice/kube-kubepods.slice/kube-kubepods-burstable.slice/"
        f"kube-kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        kubernetes("containerd"),
    ),
    (
        "kind in a pod: the innermost pod",
        f"/kubepods/burstable/pod{OTHER_UID}/{OTHER}/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
        kubernetes("containerd"),
    ),
    ("docker in a pod", f"/kubepods/burstable/pod{UID}/{OTHER}/docker/{ID}", kubernetes("docker")),
    ("Ray's groups in a pod", f"/kubepods/pod{UID}/{ID}/ray-node_5a3f/user/workers", kubernetes(None)),
    ("k3s under OpenRC", f"/openrc.k3s/kubepods/burstable/pod{UID}/{ID}", kubernetes(None)),
    (
        "a unit that only has the word in its name",
        "/system.slice/kubepods-exporter.service",
        Placement(orchestrator="systemd", unit="kubepods-exporter.service"),
    ),
    ("runc's cgroupfs paths under Docker's systemd naming", f"/system.slice/system.slice:docker:{ID}", plain("docker")),
    (
        "the same, a step of a build by BuildKit",
        "/system.slice/system.slice:docker:jvifp9a6b1lxa1kuw8bwfcovf",
        Placement(),
    ),
    ("Sysbox", f"/docker/{OTHER}/syscont-cgroup-root/docker/{ID}", plain("docker")),
    (
        "GitLab Runner's slots",
        f"/runner.slice/runner-slot.slice/runner-slot-3.slice/docker-{ID}.scope",
        plain("docker"),
    ),
    ("cgroup-v2.rst: a zombie's group that is gone", f"/system.slice/docker-{ID}.scope (deleted)", plain("docker")),
    (
        "Podman's health check, a unit named by the id",
        f"/system.slice/{ID}.service",
        Placement(orchestrator="systemd", unit=f"{ID}.service"),
    ),
    (
        "Nomad's docker driver, 1.3 to 1.6",
        f"/nomad.slice/docker-{ID}.scope",
        Placement(orchestrator="nomad", runtime="docker", container_id=ID),
    ),
    (
        "Nomad's podman driver",
        f"/nomad.slice/libpod-{ID}.scope/container",
        Placement(orchestrator="nomad", runtime="podman", container_id=ID),
    ),
    (
        "Cloud Foundry's Garden, limits by good and bad use of the CPU (JDK, TestCgroupSubsystemController)",
        "/system.slice/garden.service/garden/good/2f57368b-0eda-4e52-64d8-af5c",
        Placement(container_id="2f57368b-0eda-4e52-64d8-af5c"),
    ),
    (
        "NixOS containers",
        "/machine.slice/container@media-01.service/payload/system.slice/train.service",
        Placement(orchestrator="systemd-nspawn", runtime="systemd-nspawn", container_id="media-01"),
    ),
    (
        "libvirt.org, cgroups: LXC without systemd",
        "/machine/engineering.partition/lxc-11111-container1.libvirt-lxc",
        Placement(orchestrator="lxc", runtime="lxc", container_id="container1"),
    ),
    (
        "the same, before names had numbers",
        "/machine/a-b.libvirt-lxc",
        Placement(orchestrator="lxc", runtime="lxc", container_id="a-b"),
    ),
    ("lxc-attach", "/lxc.payload.train/.lxc", Placement(orchestrator="lxc", runtime="lxc", container_id="train")),
    ("docker in LXC", f"/lxc/101/ns/docker/{ID}", plain("docker")),
    (
        "Podman in a job",
        f"/system.slice/slurmstepd.scope/job_77/step_0/user/task_0/libpod-{ID}",
        Placement(orchestrator="slurm", runtime="podman", container_id=ID, job="77", step="0"),
    ),
    (
        "slurmd in a container",
        f"/docker/{ID}/system.slice/slurmstepd.scope/job_77/step_extern/user/task_special",
        Placement(orchestrator="slurm", runtime="docker", container_id=ID, job="77", step="extern"),
    ),
    (
        "a service with groups of its own",
        "/system.slice/train.service/workers/3",
        Placement(orchestrator="systemd", unit="train.service"),
    ),
    ("Hadoop YARN", "/hadoop-yarn/container_1409135750325_48141_01_000001", Placement()),
]


@pytest.mark.parametrize(("path", "placement"), [row[1:] for row in PATHS], ids=[row[0] for row in PATHS])
def test_the_path_of_a_group_names_its_container(path: str, placement: Placement) -> None:
    assert placement_of(path) == placement


@pytest.mark.parametrize("path", [path for _, path, _ in PATHS if path != "/"])
def test_a_path_seen_from_inside_another_namespace_says_the_same(path: str) -> None:
    seen, whole = placement_of(f"/../..{path}"), placement_of(path)
    assert (seen.orchestrator, seen.job, seen.task) == (whole.orchestrator, whole.job, whole.task)


INNER = f"/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE_UID}.slice/crio-{ID}.scope"


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        (f"9:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n", plain("docker")),
        (f"7:devices:/docker/{ID}\n6:memory:/\n4:cpu:/docker/{ID}\n", plain("docker")),
        (f"9:memory:/docker/{OTHER}\n0::{INNER}\n", kubernetes("cri-o")),
        (
            "8:memory:/system.slice/slurmd.service\n5:freezer:/slurm/uid_1000/job_77/step_0\n",
            Placement(orchestrator="slurm", job="77", step="0"),
        ),
        (
            "12:memory:/user.slice\n1:name=systemd:/user.slice/user-0.slice/session-2.scope\n",
            Placement(orchestrator="systemd", unit="session-2.scope"),
        ),
        ("", Placement()),
    ],
)
def test_of_all_hierarchies_the_one_counts_that_tells_of_a_container(text: str, placement: Placement) -> None:
    paths = parse_cgroup(text)
    own = [paths["memory"]] if "memory" in paths else []
    assert placement_among([*own, *paths.values()]) == placement


CONTAINERS = [path for _, path, place in PATHS if place.is_containerized and not path.endswith(")")]


@pytest.mark.parametrize("inside", ["/init.scope", "/container", "/workers/3", "/system.slice/ssh.service"])
def test_groups_made_inside_a_container_belong_to_it(inside: str) -> None:
    assert [placement_of(f"{path}{inside}") for path in CONTAINERS] == [placement_of(path) for path in CONTAINERS]


OUTSIDE = (
    f"/docker/{OTHER}",
    f"/system.slice/docker-{OTHER}.scope",
    f"/machine.slice/libpod-{OTHER}.scope/container",
    f"/kubepods/burstable/pod{OTHER_UID}/{OTHER}",
    "/lxc.payload.outer",
    "/machine.slice/machine-outer.scope/payload",
)


@pytest.mark.parametrize("outside", OUTSIDE)
def test_the_innermost_container_and_pod_count(outside: str) -> None:
    for path in CONTAINERS:
        if not path.startswith("/default/"):  # which says nothing but at the root
            nested, alone = placement_of(f"{outside}{path}"), placement_of(path)
            assert nested.container_id == alone.container_id
            assert alone.pod_uid in (None, nested.pod_uid)
            assert (nested.job, nested.step, nested.task) == (alone.job, alone.step, alone.task)


@pytest.mark.parametrize(
    "path",
    [
        f"/machine.slice/libpod-conmon-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-conmon-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice",
        "/lxc.monitor.train",
        f"/docker/{ID[:-1]}",
        f"/docker/{ID}1",
        f"/user.slice/user-1000.slice/user@1000.service/libpod-{ID}{ID}",
        "/machine.slice/machine-qemu\\x2d1\\x2dwin10.scope/libvirt/emulator",
        "/machine.slice/machine-xen\\x2d1\\x2dwin10.scope",
        "/machine/vm-one.libvirt-qemu/vcpu0",
        "/qemu.slice/101.scope",
        "/firecracker/551e7604-e35c-42b3-b825-416853441234",
        "/system.slice/snap.lxd.daemon.service",
        "/machine.slice/machine-train.scope/supervisor",
        "/libpod_parent/conmon",
        "/machine.slice/systemd-vmspawn@demo.service",
        "/machine.slice/container@media-01.service/supervisor",
        "/libvirt/qemu/vm1",
        "/lxc.pivot",
        "/kubepods-exporter",
    ],
)
def test_what_only_watches_or_holds_containers_is_in_none(path: str) -> None:
    assert not placement_of(path).is_containerized


@pytest.mark.parametrize(
    ("environ", "orchestrator", "task"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", None),
        ({"ECS_CONTAINER_METADATA_URI_V4": f"http://169.254.170.2/v4/{TASK}-0123456789"}, "ecs", TASK),
        ({"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/ff4ac2f3-ae43"}, "ecs", None),
        ({"ECS_CONTAINER_METADATA_URI": "http://169.254.170.2/v3/x"}, "ecs", None),
        ({"NOMAD_ALLOC_ID": UID}, "nomad", None),
        ({"MESOS_TASK_ID": "train.1", "MESOS_SANDBOX": "/mnt/mesos/sandbox"}, "mesos", None),
        ({}, "docker", None),
    ],
)
def test_the_environment_names_an_orchestrator_that_the_path_hides(
    environ: dict[str, str], orchestrator: str, task: str | None
) -> None:
    placed = placement_in(placement_of(f"/docker/{ID}"), environ)
    assert (placed.orchestrator, placed.task, placed.container_id) == (orchestrator, task, ID)


def test_outside_a_container_an_exported_variable_means_nothing() -> None:
    unit = placement_of("/system.slice/kubelet.service")
    assert placement_in(unit, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == unit


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"SLURM_JOB_ID": "4711"}, "4711"),
        ({"SLURM_JOBID": "4711"}, "4711"),
        ({"SLURM_JOB_ID": "x"}, None),
        ({"SLURM_JOB_ID": "9" * 40}, None),
        ({}, None),
    ],
)
def test_the_slurm_job_is_a_number_or_none(environ: dict[str, str], job: str | None) -> None:
    assert slurm_job_of(environ) == job


def test_a_host_name_that_may_be_cut_off_is_no_pod(tmp_path: Path) -> None:
    assert pod_of(7, {"HOSTNAME": "a" * 63}, node_name="n", files=RootFiles(tmp_path)).name is None


def a_root(tmp_path: Path) -> Path:
    """The root folder of process 7, with its etc."""
    root = tmp_path / "proc/7/root"
    (root / "etc").mkdir(parents=True)
    return root


def host_name(tmp_path: Path) -> str | None:
    return pod_of(7, {}, node_name="n", files=RootFiles(tmp_path / "proc")).name


def test_a_link_in_a_container_does_not_lead_to_the_hosts_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of-the-host\n")
    (a_root(tmp_path) / "etc/hostname").symlink_to(secret)
    assert host_name(tmp_path) is None


def test_a_link_in_a_container_is_followed_inside_it(tmp_path: Path) -> None:
    root = a_root(tmp_path)
    (root / "run").mkdir()
    (root / "run/name").write_text("train-0\n")
    (root / "etc/hostname").symlink_to("/run/name")
    assert host_name(tmp_path) == "train-0"


def test_a_pipe_in_a_container_does_not_stop_the_agent(tmp_path: Path) -> None:
    os.mkfifo(a_root(tmp_path) / "etc/hostname")
    assert host_name(tmp_path) is None


@given(st.text(max_size=300))
def test_any_path_is_survived(path: str) -> None:
    placement_of(path)


PIECES = ["/docker", "/kubepods", f"/pod{UID}", f"/{ID}", "/slurm", "/job_1", ".slice", ".scope", "/ecs", "\n", "\0"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_order_of_known_pieces_gives_an_id_of_that_path_or_none(path: str) -> None:
    placement = placement_of(path)
    assert placement.container_id is None or placement.container_id in path
    assert placement.pod_uid in (None, UID)


@given(st.binary(max_size=300))
def test_any_group_file_gives_paths_that_a_database_takes(raw: bytes) -> None:
    for path in parse_cgroup(os.fsdecode(raw)).values():
        assert path.startswith("/")
        path.encode()


NAMES = ["POD_NAME", "POD_NAMESPACE", "HOSTNAME", "KUBERNETES_SERVICE_HOST", "ECS_CONTAINER_METADATA_URI_V4"]


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=300).map(os.fsdecode)))
def test_any_environment_gives_names_that_a_database_takes(environ: dict[str, str]) -> None:
    pod = pod_of(0, environ, node_name="n", files=RootFiles(Path("/nonexistent")))
    place = placement_in(placement_of(f"/docker/{ID}"), environ)
    for text in (pod.name, pod.namespace, place.task):
        assert text is None or (text.isascii() and 0 < len(text) <= 253)


@pytest.mark.parametrize(
    ("pod", "environ", "owner"),
    [
        ("train-7d9f8c6b5d-x2x4q", {}, "deployment/train"),
        ("my-llm-server-5bcc7f7d79-2zkqb", {}, "deployment/my-llm-server"),
        ("train-0", {}, None),  # a StatefulSet's, or a bare pod
        ("train-x2x4q", {}, None),  # a Job's, a DaemonSet's, a ReplicaSet's
        ("train-3-x2x4q", {"JOB_COMPLETION_INDEX": "3"}, "job/train"),
        ("train-3-x2x4q", {"JOB_COMPLETION_INDEX": "2"}, None),
        ("bert-worker-1", {"MASTER_ADDR": "bert-master-0"}, "pytorchjob/bert"),
        ("bert-worker-1", {}, None),
        ("llm-0-1", {"LWS_LEADER_ADDRESS": "llm-0.llm"}, "leaderworkerset/llm"),
        ("ray-gpu-worker-x2x4q", {"RAY_CLUSTER_NAME": "ray"}, "raycluster/ray"),
        ("a" * 63, {}, None),
        (None, {}, None),
    ],
)
def test_what_made_a_pod_is_said_where_its_name_leaves_no_doubt(
    pod: str | None, environ: dict[str, str], owner: str | None
) -> None:
    assert owner_of(pod, environ) == owner
