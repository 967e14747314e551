"""discover.cgroups on real control groups of this machine, v1 or v2."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.discover.cgroups import (
    CgroupMounts,
    cpu_stat_file,
    read_cgroup,
    read_cpu_limits,
    read_mounts,
    read_throttling,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make control groups"),
]

BUSY = "while :; do :; done"


@contextlib.contextmanager
def a_group(mounts: CgroupMounts, controller: str) -> Iterator[Path]:
    """A fresh group below the root of a controller's hierarchy."""
    top = mounts.folder(controller, "/")
    assert top is not None
    folder = top / f"ingero-test-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        folder.rmdir()


@contextlib.contextmanager
def a_busy_process_in(folder: Path) -> Iterator[int]:
    process = subprocess.Popen(
        ["sh", "-c", f"echo $$ > {folder}/cgroup.procs; echo in; {BUSY}"], stdout=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline() == b"in\n"
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def limit_to_a_tenth(folder: Path) -> None:
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text("10000 100000")
    else:
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text("10000")


def test_the_id_of_a_process_is_the_inode_of_its_group() -> None:
    mounts = read_mounts()
    with a_group(mounts, mounts.identifying) as folder, a_busy_process_in(folder) as pid:
        cgroup = read_cgroup(pid, mounts)
        assert cgroup is not None
        assert (cgroup.id, cgroup.path) == (folder.stat().st_ino, f"/{folder.name}")


def test_a_real_quota_is_read_and_its_throttling_grows() -> None:
    mounts = read_mounts()
    controller = "cpu" if "cpu" in mounts.by_controller else ""
    with a_group(mounts, controller) as folder:
        limit_to_a_tenth(folder)
        with a_busy_process_in(folder) as pid:
            cgroup = read_cgroup(pid, mounts)
            assert cgroup is not None
            assert read_cpu_limits(cgroup, mounts).quota_cores == 0.1
            cpu_stat = cpu_stat_file(cgroup, mounts)
            assert cpu_stat == folder / "cpu.stat"
            throttling = read_throttling(cpu_stat)
            while throttling is None or throttling.throttled_ns == 0:
                throttling = read_throttling(cpu_stat)
            assert throttling.throttled_periods >= 1


SEEN = """
import json, sys
from ingero.discover.cgroups import read_cgroup, read_cpu_limits, read_mounts
mounts = read_mounts()
found = [read_cgroup(int(pid), mounts) for pid in sys.argv[1:]]
print(json.dumps([(one.id, one.path, read_cpu_limits(one, mounts).quota_cores) for one in found]))
"""


def test_in_a_control_group_namespace_groups_of_others_are_found_in_the_hosts_hierarchy() -> None:
    """As in a container that has a namespace of its own and the host's /sys/fs/cgroup: a pod of Kubernetes."""
    mounts = read_mounts()
    controller = "cpu" if "cpu" in mounts.by_controller else ""
    with contextlib.ExitStack() as stack:
        mine, others = [], []
        for name in {controller, mounts.identifying}:
            top = stack.enter_context(a_group(mounts, name))
            for list_, below in ((mine, "pod-a"), (others, "pod-b")):
                (top / below).mkdir()
                stack.callback((top / below).rmdir)
                list_.append(top / below)
                if name == controller and below == "pod-b":
                    limit_to_a_tenth(top / below)
        process = subprocess.Popen(["sleep", "60"])
        stack.callback(process.wait)
        stack.callback(process.kill)
        for folder in others:
            (folder / "cgroup.procs").write_text(str(process.pid))
        enter = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in mine)
        command = ["sh", "-c", f'{enter}; exec unshare --cgroup "$@"', "sh", sys.executable, "-c", SEEN]
        done = subprocess.run([*command, str(process.pid)], capture_output=True, text=True, check=True)
        [(number, path, cores)] = json.loads(done.stdout)
        identified = next(folder for folder in others if folder == mounts.folder(mounts.identifying, path))
        assert number == identified.stat().st_ino
        assert cores == pytest.approx(0.1)
