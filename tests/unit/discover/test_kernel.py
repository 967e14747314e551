"""discover.kernel and discover.readiness: what runs here, why not, and what mends it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from ingero.discover.kernel import (
    FEATURES,
    NEEDED_FEATURES,
    KernelFacts,
    features_in,
    parse_release,
    read_kernel,
    throttles_tasks,
)
from ingero.discover.libraries import LibraryScan, UnreadableLibrary
from ingero.discover.readiness import (
    NotReadyError,
    Readiness,
    all_groups,
    call_probes,
    host_events,
    require,
    scheduler_clocks,
)
from ingero.ops import Library

GOOD = KernelFacts(
    release="6.14.0-15-generic",
    version=(6, 14),
    architecture="x86_64",
    has_btf=True,
    features=frozenset(FEATURES),
    lockdown="none",
    perf_event_paranoid=4,
    ptrace_scope=1,
    bpf_stats_enabled=False,
    capabilities=frozenset({"BPF", "PERFMON", "SYS_PTRACE"}),
    is_init_pid_namespace=True,
)
OLD = frozenset({"sched_switch", "sched_waking"})
EMPTY = LibraryScan(copies=(), unreadable=(), processes=1, read_again=1, skipped={})


def clocks_on(**changes: object) -> Readiness:
    return scheduler_clocks(dataclasses.replace(GOOD, **changes))  # type: ignore[arg-type] # any field


def a_machine(root: Path, *, lockdown: str = "[none] integrity", yama: str | None = "1") -> tuple[Path, Path]:
    """A made-up /proc and /sys."""
    proc, sys = root / "proc", root / "sys"
    for folder in (proc / "sys/kernel/yama", proc / "self", sys / "kernel/btf", sys / "kernel/security"):
        folder.mkdir(parents=True)
    (proc / "sys/kernel/osrelease").write_text("5.15.0-91-generic\n")
    (proc / "sys/kernel/perf_event_paranoid").write_text("-1\n")
    (proc / "sys/kernel/bpf_stats_enabled").write_text("1\n")
    (proc / "self/status").write_text("Name:\tx\nCapEff:\t000000c000080000\n")
    (sys / "kernel/security/lockdown").write_text(f"{lockdown} confidentiality\n")
    (sys / "kernel/btf/vmlinux").write_bytes(b"\x9f\xeb\0bpf_iter__task\0xsched_delayed\0")
    if yama is not None:
        (proc / "sys/kernel/yama/ptrace_scope").write_text(yama)
    return proc, sys


def test_every_fact_is_read(tmp_path: Path) -> None:
    facts = read_kernel(*a_machine(tmp_path))
    assert facts.release == "5.15.0-91-generic"
    assert facts.version == (5, 15)
    assert facts.lockdown == "none"
    assert facts.perf_event_paranoid == -1
    assert facts.bpf_stats_enabled is True
    assert facts.ptrace_scope == 1
    assert facts.capabilities == {"SYS_PTRACE", "BPF", "PERFMON"}
    assert not facts.is_init_pid_namespace


def test_a_switch_that_the_kernel_lacks_is_none(tmp_path: Path) -> None:
    facts = read_kernel(*a_machine(tmp_path, yama=None))
    assert facts.ptrace_scope is None


def test_a_feature_counts_only_by_its_whole_name(tmp_path: Path) -> None:
    assert read_kernel(*a_machine(tmp_path)).features == {"task_iterator"}


def test_a_kernel_without_type_information_has_no_features(tmp_path: Path) -> None:
    assert features_in(tmp_path / "vmlinux") == frozenset()


def test_the_real_kernel_is_read() -> None:
    facts = read_kernel()
    assert facts.release == os.uname().release
    assert facts.version >= (3, 0)


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.1.0-18-cloud-amd64", (6, 1)),
        ("5.15.0-1-azure", (5, 15)),
        ("6.6-rc1", (6, 6)),
        ("odd", (0, 0)),
        ("6.6.87.2-microsoft-standard-WSL2", (6, 6)),
        ("5.4.17-2136.331.7.el7uek.x86_64", (5, 4)),
        ("6.9.3-76060903-generic", (6, 9)),
        ("6.8.0-1028-nvidia-64k", (6, 8)),
        ("5.14.21-150500.55.7_13.0.53-cray_shasta_c", (5, 14)),
        ("6.18.0-rc3-next-20251110", (6, 18)),
        ("6.1.112", (6, 1)),
        ("10.2.1", (10, 2)),
        ("6", (0, 0)),
        ("", (0, 0)),
        ("\u0666.1", (0, 0)),
        ("6." + "9" * 5000, (0, 0)),
    ],
)
def test_a_release_is_parsed(release: str, version: tuple[int, int]) -> None:
    assert parse_release(release) == version


def test_sys_admin_stands_for_the_capabilities_split_from_it() -> None:
    facts = dataclasses.replace(GOOD, capabilities=frozenset({"SYS_ADMIN"}))
    assert facts.lacks("BPF", "PERFMON", "SYS_PTRACE") == ("SYS_PTRACE",)


def test_everything_is_ready_on_a_good_kernel() -> None:
    assert all(group.ok for group in all_groups(GOOD, EMPTY))


@pytest.mark.parametrize(
    ("changes", "reason", "fix"),
    [
        ({"release": "5.4.0", "features": OLD}, "5.4.0 lacks BPF_MAP_TYPE_RINGBUF (Linux 5.8)", "upgrade"),
        ({"has_btf": False}, "type information", "CONFIG_DEBUG_INFO_BTF"),
        ({"lockdown": "confidentiality"}, "locked down", "lockdown=confidentiality"),
        ({"is_init_pid_namespace": False}, "PID namespace", "hostPID: true"),
        ({"unknown_time": ("its time is shifted", "run it outside")}, "its time is shifted", "run it outside"),
        ({"capabilities": frozenset({"BPF"})}, "CAP_PERFMON and CAP_SYS_PTRACE missing", "sudo"),
        ({"features": frozenset(FEATURES) - {"sched_waking"}}, "no sched_waking", "upgrade"),
    ],
)
def test_what_blocks_a_group_is_said_with_the_way_out(changes: dict[str, object], reason: str, fix: str) -> None:
    readiness = clocks_on(**changes)
    assert not readiness.ok
    assert reason in readiness.reason
    assert fix in readiness.fix


def test_lockdown_in_integrity_mode_blocks_nothing() -> None:
    assert clocks_on(lockdown="integrity").ok


RELEASES = ("5.14.0-570.12.1.el9_6.x86_64", "5.14.21-150500.55.83-default", "5.15.148-tegra", "6.1.90+", "odd")


@pytest.mark.parametrize("release", RELEASES)
def test_a_kernel_is_judged_by_what_it_has_not_by_its_number(release: str) -> None:
    assert all(group.ok for group in all_groups(dataclasses.replace(GOOD, release=release), EMPTY))
    for name in NEEDED_FEATURES:
        refused = clocks_on(release=release, features=frozenset(FEATURES) - {name})
        assert f"Linux {release} lacks {FEATURES[name]}" in refused.reason


def test_costly_statistics_are_said_and_block_nothing() -> None:
    readiness = clocks_on(bpf_stats_enabled=True)
    assert readiness.ok
    assert readiness.fix == "sudo sysctl kernel.bpf_stats_enabled=0"


def test_an_active_sched_ext_scheduler_is_named_and_blocks_nothing() -> None:
    readiness = clocks_on(sched_ext="rusty")
    assert readiness.ok
    assert "sched_ext scheduler rusty is active" in readiness.reason


@pytest.mark.parametrize(("state", "expected"), [("enabled", "rusty"), ("disabled", None)])
def test_the_sched_ext_scheduler_is_read_where_one_is_active(tmp_path: Path, state: str, expected: str | None) -> None:
    proc, sys = a_machine(tmp_path)
    (sys / "kernel/sched_ext/root").mkdir(parents=True)
    (sys / "kernel/sched_ext/state").write_text(f"{state}\n")
    (sys / "kernel/sched_ext/root/ops").write_text("rusty\n")
    assert read_kernel(proc, sys).sched_ext == expected


def test_a_kernel_throttles_tasks_if_its_type_information_names_the_work(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"\0sched_throttle_work\0")
    (tmp_path / "old").write_bytes(b"\0throttled\0")
    assert throttles_tasks(tmp_path / "new")
    assert not throttles_tasks(tmp_path / "old")
    assert not throttles_tasks(tmp_path / "none")


def test_a_group_that_cannot_run_is_refused_with_its_reason_and_its_way_out() -> None:
    reason = r"thread states \(scheduler\) cannot run: Linux 5\.4\.0 lacks BPF_MAP_TYPE_RINGBUF"
    with pytest.raises(NotReadyError, match=reason) as refusal:
        require(clocks_on(release="5.4.0", features=OLD))
    assert "upgrade the kernel" in refusal.value.hint
    require(clocks_on())


def test_call_probes_need_root_where_multi_uprobes_are_missing() -> None:
    old = dataclasses.replace(GOOD, features=GOOD.features - {"uprobe_multi"})
    assert not call_probes(old, EMPTY, Library.CUDA).ok
    root = dataclasses.replace(old, capabilities=frozenset({"SYS_ADMIN", "SYS_PTRACE"}))
    assert call_probes(root, EMPTY, Library.CUDA).ok


def test_a_library_that_nobody_loaded_yet_is_ready_and_said() -> None:
    readiness = call_probes(GOOD, EMPTY, Library.NCCL)
    assert readiness.ok
    assert "no process has loaded it yet" in readiness.reason


def test_an_unreadable_copy_is_said() -> None:
    problem = UnreadableLibrary(pid=7, mapped_path="/x/libcudart.so.12", reason="not permitted")
    scan = dataclasses.replace(EMPTY, unreadable=(problem,))
    assert "not permitted" in call_probes(GOOD, scan, Library.CUDART).reason


def test_one_missing_host_event_is_a_restriction_and_all_missing_block() -> None:
    some = dataclasses.replace(GOOD, features=GOOD.features - {"mark_victim"})
    assert host_events(some, "memory").ok
    assert "mark_victim" in host_events(some, "memory").reason
    assert not host_events(dataclasses.replace(GOOD, features=frozenset()), "memory").ok


@pytest.mark.parametrize(
    ("held", "stands_for"), [("SYS_ADMIN", "CHECKPOINT_RESTORE"), ("DAC_OVERRIDE", "DAC_READ_SEARCH")]
)
def test_a_capability_that_allows_more_stands_for_the_one_that_is_asked_for(held: str, stands_for: str) -> None:
    facts = dataclasses.replace(GOOD, capabilities=frozenset({held}))
    assert facts.lacks(stands_for, "NET_ADMIN") == ("NET_ADMIN",)
