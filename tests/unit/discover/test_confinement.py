"""AppArmor and SELinux refuse what capabilities allow, and only the kernel's log says so; we name them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ingero.discover.checks import CheckState, all_rows
from ingero.discover.confinement import Confinement, confinement
from tests.unit.discover.test_checks import FACTS


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


CURRENT, APPARMOR, ENFORCE = "proc/self/attr/current", "proc/self/attr/apparmor/current", "sys/fs/selinux/enforce"


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, None),
        ({CURRENT: "unconfined\n"}, None),
        ({APPARMOR: "docker-default (complain)\n", CURRENT: "docker-default (complain)\n"}, None),
        ({APPARMOR: "docker-default (enforce)\n"}, "AppArmor profile docker-default"),
        ({CURRENT: "cri-containerd.apparmor.d (enforce)\n"}, "AppArmor profile cri-containerd.apparmor.d"),
        ({CURRENT: "system_u:system_r:container_t:s0:c1,c2\0", ENFORCE: "1"}, "SELinux domain container_t"),
        ({CURRENT: "system_u:system_r:container_t:s0:c1,c2\0"}, "SELinux domain container_t"),  # hidden in a container
        ({CURRENT: "system_u:system_r:container_t:s0\0", ENFORCE: "0"}, None),
        ({CURRENT: "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0", ENFORCE: "1"}, None),
        ({CURRENT: "system_u:system_r:spc_t:s0\0", ENFORCE: "1"}, None),
    ],
)
def test_whose_rules_bind_this_process(tmp_path: Path, files: dict[str, str], text: str | None) -> None:
    found = confinement(tree(tmp_path, files) / "proc", tmp_path / "sys")
    assert (found.text if found else None) == text


def test_check_names_it_with_the_way_out() -> None:
    kernel = dataclasses.replace(FACTS.kernel, confinement=Confinement("AppArmor profile p", "docker run ..."))
    rows = {row.name: row for row in all_rows(dataclasses.replace(FACTS, kernel=kernel))}
    assert rows["confinement"].state is CheckState.WARNING
    assert rows["confinement"].found.startswith("AppArmor profile p")
    assert rows["confinement"].fix == "docker run ..."
    assert "confinement" not in {row.name for row in all_rows(FACTS)}
