"""discover.cgroups and discover.containers: groups, limits, and who runs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingero.discover.cgroups import (
    CgroupMounts,
    IoLimit,
    Throttling,
    cpu_stat_file,
    find_cgroups,
    frozen_by,
    members,
    parse_cgroup,
    parse_cpu_list,
    read_cgroup,
    read_cpu_limits,
    read_io_limits,
    read_mounts,
    read_throttling,
)
from ingero.discover.containers import Placement, placement_of, pod_of
from ingero.discover.rooted import RootFiles

ID = "0123456789abcdef" * 4
POD = "11111111-2222-3333-4444-555555555555"
V2_ONLY = "30 23 0:26 / {root}/fs rw - cgroup2 cgroup2 rw\n"
V1 = (
    "30 23 0:26 / {root}/fs/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "31 23 0:27 / {root}/fs/memory rw - cgroup cgroup rw,memory\n"
    "32 23 0:28 / {root}/fs/unified rw - cgroup2 cgroup2 rw\n"
)


def a_proc(root: Path, mountinfo: str, cgroup: str) -> Path:
    """A made-up /proc with this process's mounts and the groups of process 7."""
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "7").mkdir()
    (proc / "self/mountinfo").write_text("1 1 0:1 / / rw - ext4 /dev/sda rw\n" + mountinfo.format(root=root))
    (proc / "7/cgroup").write_text(cgroup)
    return proc


def a_group(root: Path, path: str, **files: str) -> Path:
    folder = root / "fs" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


def test_the_id_of_a_group_is_the_inode_of_its_folder(tmp_path: Path) -> None:
    folder = a_group(tmp_path, "a/b")
    proc = a_proc(tmp_path, V2_ONLY, "0::/a/b\n")
    cgroup = read_cgroup(7, read_mounts(proc), proc)
    assert cgroup is not None
    assert (cgroup.id, cgroup.path) == (folder.stat().st_ino, "/a/b")


def test_where_memory_is_a_v1_controller_its_group_names_the_process(tmp_path: Path) -> None:
    folder = a_group(tmp_path, "memory/docker/x")
    a_group(tmp_path, "unified/shared.service")
    proc = a_proc(tmp_path, V1, "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/shared.service\n")
    cgroup = read_cgroup(7, read_mounts(proc), proc)
    assert cgroup is not None
    assert (cgroup.id, cgroup.path) == (folder.stat().st_ino, "/docker/x")


def test_a_group_outside_what_is_mounted_has_no_id(tmp_path: Path) -> None:
    a_group(tmp_path, ".")
    proc = a_proc(tmp_path, V2_ONLY, "0::/../other\n")
    cgroup = read_cgroup(7, read_mounts(proc), proc)
    assert cgroup is not None
    assert cgroup.id is None


def test_a_mount_of_a_part_of_the_hierarchy_is_understood(tmp_path: Path) -> None:
    folder = a_group(tmp_path, "b")
    proc = a_proc(tmp_path, "30 23 0:26 /a {root}/fs rw - cgroup2 cgroup2 rw\n", "0::/a/b\n")
    cgroup = read_cgroup(7, read_mounts(proc), proc)
    assert cgroup is not None
    assert cgroup.id == folder.stat().st_ino


def test_a_mount_point_with_a_blank_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "my groups"
    folder.mkdir()
    proc = a_proc(tmp_path, "30 23 0:26 / {root}/my\\040groups rw - cgroup2 cgroup2 rw\n", "0::/\n")
    cgroup = read_cgroup(7, read_mounts(proc), proc)
    assert cgroup is not None
    assert cgroup.id == folder.stat().st_ino


def test_a_process_that_is_gone_has_no_group(tmp_path: Path) -> None:
    proc = a_proc(tmp_path, V2_ONLY, "0::/\n")
    assert read_cgroup(8, read_mounts(proc), proc) is None


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "file"),
    [
        (V2_ONLY, "0::/docker/x\n", {"docker/x": {"cgroup_freeze": "1\n"}}, "docker/x/cgroup.freeze"),
        (V2_ONLY, "0::/docker/x\n", {"docker": {"cgroup_freeze": "1\n"}, "docker/x": {}}, "docker/cgroup.freeze"),
        (V2_ONLY, "0::/docker/x\n", {"docker/x": {"cgroup_freeze": "0\n"}}, ""),
        (
            V1 + "33 23 0:29 / {root}/fs/freezer rw - cgroup cgroup rw,freezer\n",
            "4:freezer:/docker/x\n0::/\n",
            {"freezer/docker/x": {"freezer_self_freezing": "1\n"}},
            "freezer/docker/x/freezer.state",
        ),
    ],
)
def test_the_file_that_froze_a_group_is_found_in_either_hierarchy(
    tmp_path: Path, mounts: str, groups: str, files: dict[str, dict[str, str]], file: str
) -> None:
    for path, texts in files.items():
        a_group(tmp_path, path, **texts)
    proc = a_proc(tmp_path, mounts, groups)
    seen = read_mounts(proc)
    cgroup = read_cgroup(7, seen, proc)
    assert cgroup
    assert frozen_by(cgroup, seen) == (tmp_path / "fs" / file if file else None)


def test_groups_are_found_by_their_ids(tmp_path: Path) -> None:
    deep, shallow = a_group(tmp_path, "a/b/c"), a_group(tmp_path, "d", cgroup_procs="7\n9\n")
    mounts = read_mounts(a_proc(tmp_path, V2_ONLY, "0::/\n"))
    top = (tmp_path / "fs").stat().st_ino
    found = find_cgroups({deep.stat().st_ino, shallow.stat().st_ino, top, 1}, mounts)
    assert {number: one.path for number, one in found.items()} == {
        deep.stat().st_ino: "/a/b/c",
        shallow.stat().st_ino: "/d",
        top: "/",
    }
    assert members(found[shallow.stat().st_ino], mounts) == [7, 9]


def test_a_group_with_an_unprintable_name_is_found(tmp_path: Path) -> None:
    folder = a_group(tmp_path, os.fsdecode(b"evil-\xff"))
    mounts = read_mounts(a_proc(tmp_path, V2_ONLY, "0::/\n"))
    found = find_cgroups({folder.stat().st_ino}, mounts)
    assert found[folder.stat().st_ino].path.encode() == b"/evil-\\udcff"


def test_a_path_with_colons_stays_whole() -> None:
    assert parse_cgroup("2:name=systemd:/a:b:c\n0::/x\n") == {"name=systemd": "/a:b:c", "": "/x"}


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    a_group(tmp_path, "pod", cpu_max="150000 100000\n")
    a_group(tmp_path, "pod/main", cpu_max="max 100000\n")
    proc = a_proc(tmp_path, V2_ONLY, "0::/pod/main\n")
    mounts = read_mounts(proc)
    cgroup = read_cgroup(7, mounts, proc)
    assert cgroup is not None
    limits = read_cpu_limits(cgroup, mounts)
    assert (limits.quota_cores, limits.quota_path) == (1.5, "/pod")


def test_a_v1_quota_is_read_from_its_own_hierarchy(tmp_path: Path) -> None:
    folder = a_group(tmp_path, "cpu,cpuacct/c")
    (folder / "cpu.cfs_quota_us").write_text("50000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    proc = a_proc(tmp_path, V1, "3:cpu,cpuacct:/c\n4:memory:/m\n")
    mounts = read_mounts(proc)
    cgroup = read_cgroup(7, mounts, proc)
    assert cgroup is not None
    assert read_cpu_limits(cgroup, mounts).quota_cores == 0.5
    assert cpu_stat_file(cgroup, mounts) == folder / "cpu.stat"


def test_no_quota_is_none(tmp_path: Path) -> None:
    folder = a_group(tmp_path, "cpu,cpuacct/c")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    proc = a_proc(tmp_path, V1, "3:cpu,cpuacct:/c\n")
    mounts = read_mounts(proc)
    cgroup = read_cgroup(7, mounts, proc)
    assert cgroup is not None
    assert read_cpu_limits(cgroup, mounts).quota_cores is None


def test_allowed_cpus_are_inherited(tmp_path: Path) -> None:
    parent = a_group(tmp_path, "pod")
    a_group(tmp_path, "pod/main")
    (parent / "cpuset.cpus.effective").write_text("0-1,4\n")
    proc = a_proc(tmp_path, V2_ONLY, "0::/pod/main\n")
    mounts = read_mounts(proc)
    cgroup = read_cgroup(7, mounts, proc)
    assert cgroup is not None
    assert read_cpu_limits(cgroup, mounts).cpus == frozenset({0, 1, 4})


def test_throttling_is_nanoseconds_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("nr_periods 9\nnr_throttled 3\nthrottled_time 5000\n")
    (tmp_path / "v2").write_text("usage_usec 1\nnr_periods 9\nnr_throttled 3\nthrottled_usec 5\n")
    expected = Throttling(throttled_periods=3, throttled_ns=5000)
    assert read_throttling(tmp_path / "v1") == read_throttling(tmp_path / "v2") == expected


def test_a_group_without_cpu_controller_has_no_throttling(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 1\n")
    assert read_throttling(tmp_path / "cpu.stat") is None
    assert read_throttling(tmp_path / "gone") is None


@pytest.mark.parametrize(("text", "cpus"), [("", set()), ("3", {3}), ("0-2,7", {0, 1, 2, 7})])
def test_a_cpu_list_is_parsed(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_no_hierarchy_at_all_is_no_error(tmp_path: Path) -> None:
    assert read_mounts(tmp_path) == CgroupMounts(by_controller={})


UNDERSCORED = POD.replace("-", "_")
PLACES = {
    f"/docker/{ID}": Placement(orchestrator="docker", runtime="docker", container_id=ID),
    f"/system.slice/docker-{ID}.scope": Placement(orchestrator="docker", runtime="docker", container_id=ID),
    f"/kubepods/burstable/pod{POD}/{ID}": Placement(orchestrator="kubernetes", container_id=ID, pod_uid=POD),
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope": (
        Placement(orchestrator="kubernetes", runtime="containerd", container_id=ID, pod_uid=POD)
    ),
    f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope": Placement(
        orchestrator="kubernetes", runtime="cri-o", container_id=ID, pod_uid=POD
    ),
    f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{ID}.scope": Placement(
        orchestrator="kubernetes", runtime="docker", container_id=ID, pod_uid=POD
    ),
    f"/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}": Placement(
        orchestrator="kubernetes", runtime="containerd", container_id=ID, pod_uid=POD
    ),
    f"/docker/{'f' * 64}/kubelet/kubepods/besteffort/pod{POD}/{ID}": Placement(
        orchestrator="kubernetes", container_id=ID, pod_uid=POD
    ),
    f"/machine.slice/libpod-{ID}.scope/container": Placement(orchestrator="podman", runtime="podman", container_id=ID),
    f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope": Placement(
        orchestrator="podman", runtime="podman", container_id=ID
    ),
    f"/k8s.io/{ID}": Placement(container_id=ID),
    f"/ecs/{'a' * 32}/{ID}": Placement(orchestrator="ecs", runtime="docker", container_id=ID, task="a" * 32),
    f"/ecs/{'a' * 32}/{'a' * 32}-1234": Placement(orchestrator="ecs", container_id=f"{'a' * 32}-1234", task="a" * 32),
    "/slurm/uid_1000/job_42/step_0/task_1": Placement(orchestrator="slurm", job="42", step="0"),
    "/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0": Placement(
        orchestrator="slurm", job="42", step="batch"
    ),
    "/lxc.payload.web/init.scope": Placement(orchestrator="lxc", runtime="lxc", container_id="web"),
    "/system.slice/trainer.service": Placement(orchestrator="systemd", unit="trainer.service"),
    "/user.slice/user-0.slice/session-3.scope": Placement(orchestrator="systemd", unit="session-3.scope"),
    "/": Placement(),
}


@pytest.mark.parametrize("path", PLACES)
def test_the_path_of_a_group_tells_who_runs_it(path: str) -> None:
    assert placement_of(path) == PLACES[path]


def test_the_monitor_of_a_container_is_not_in_it() -> None:
    assert not placement_of(f"/machine.slice/libpod-conmon-{ID}.scope").is_containerized


def test_the_downward_api_names_the_pod(tmp_path: Path) -> None:
    pod = pod_of(7, {"POD_NAME": "train-0", "POD_NAMESPACE": "ml"}, node_name="node-1", files=RootFiles(tmp_path))
    assert (pod.name, pod.namespace) == ("train-0", "ml")


def test_the_host_name_and_the_service_account_name_the_pod(tmp_path: Path) -> None:
    secret = tmp_path / "7/root/var/run/secrets/kubernetes.io/serviceaccount/namespace"
    secret.parent.mkdir(parents=True)
    secret.write_text("ml")
    pod = pod_of(7, {"HOSTNAME": "train-0"}, node_name="node-1", files=RootFiles(tmp_path))
    assert (pod.name, pod.namespace) == ("train-0", "ml")


def test_on_the_nodes_network_the_host_name_is_no_pod(tmp_path: Path) -> None:
    pod = pod_of(7, {"HOSTNAME": "node-1"}, node_name="node-1", files=RootFiles(tmp_path))
    assert (pod.name, pod.namespace) == (None, None)


def test_a_hostile_namespace_file_is_not_taken(tmp_path: Path) -> None:
    secret = tmp_path / "7/root/var/run/secrets/kubernetes.io/serviceaccount/namespace"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(b"\x1b[2J" + b"x" * 5000)
    assert pod_of(7, {}, node_name="n", files=RootFiles(tmp_path)).namespace is None


def test_io_limits_are_those_of_a_group_and_of_the_groups_around_it(tmp_path: Path) -> None:
    a_group(tmp_path, "a/b", io_max="8:0 rbps=1000 wbps=max riops=max wiops=7\n")
    a_group(tmp_path, "a", io_max="8:16 rbps=max wbps=5 riops=max wiops=max\n")
    proc = a_proc(tmp_path, V2_ONLY, "0::/a/b\n")
    cgroup = read_cgroup(7, read_mounts(proc), proc)
    assert cgroup is not None
    assert read_io_limits(cgroup, read_mounts(proc)) == (
        IoLimit(device="8:0", limit="rbps=1000", path="/a/b"),
        IoLimit(device="8:0", limit="wiops=7", path="/a/b"),
        IoLimit(device="8:16", limit="wbps=5", path="/a"),
    )


def test_io_limits_of_the_first_version_stand_in_a_file_each(tmp_path: Path) -> None:
    group = a_group(tmp_path, "blkio/job")
    (group / "blkio.throttle.read_bps_device").write_text("254:0 20971520\n")
    proc = a_proc(tmp_path, "30 23 0:26 / {root}/fs/blkio rw - cgroup cgroup rw,blkio\n", "5:blkio:/job\n")
    cgroup = read_cgroup(7, read_mounts(proc), proc)
    assert cgroup is not None
    limits = read_io_limits(cgroup, read_mounts(proc))
    assert limits == (IoLimit(device="254:0", limit="rbps=20971520", path="/job"),)
