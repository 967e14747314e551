"""Where tracing is impossible or restricted, one clear message says why. The order matters: the last two stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.demo.workloads import native
from ingero.discover.kernel import read_kernel
from tests.integration.targets import record, simulation
from tests.integration.test_counts import recorded_counts, true_counts

OLD = bool(read_kernel().absent)
LOCKDOWN, YAMA = Path("/sys/kernel/security/lockdown"), Path("/proc/sys/kernel/yama/ptrace_scope")
HIDDEN_BTF = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
COMMAND = [sys.executable, "-m", "ingero.cli.main", "trace", "--duration", "1s", "--record=false", "--json"]


def trace(prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*prefix, *COMMAND], capture_output=True, text=True, timeout=120, check=False)
    print(f"\n{done.stderr.strip()}")
    assert "Traceback" not in done.stderr
    return done


def loaded_programs() -> set[str]:
    """BPF programs of this kernel, by the descriptors that show them; programs without one are gone."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(path.readlink())
        except OSError:
            continue
        if "bpf" in target:
            found.add(f"{path.parts[2]}: {target}")
    return found


@pytest.mark.skipif(not OLD, reason="this kernel is not below the oldest one supported")
def test_a_kernel_below_the_promised_one_is_refused_by_its_version() -> None:
    done = trace()
    assert done.returncode == 2
    assert f"Linux {os.uname().release} lacks BPF_FUNC_get_attach_cookie (Linux 5.15)" in done.stderr
    assert "upgrade the kernel" in done.stderr
    assert not loaded_programs()


@pytest.mark.skipif(OLD, reason="below 5.15 the version is refused first")
def test_a_kernel_without_type_information_is_named() -> None:
    done = trace(("unshare", "-m", "sh", "-c", HIDDEN_BTF, "sh"))
    assert done.returncode == 2
    assert "no type information (/sys/kernel/btf/vmlinux)" in done.stderr
    assert "CONFIG_DEBUG_INFO_BTF=y" in done.stderr
    assert not loaded_programs()


@pytest.mark.skipif(OLD, reason="below 5.15 the version is refused first")
def test_without_the_capability_the_missing_one_is_named() -> None:
    done = trace(("setpriv", "--bounding-set", "-bpf,-sys_admin,-perfmon", "--inh-caps", "-all"))
    assert done.returncode == 2
    assert "CAP_BPF and CAP_PERFMON missing to load BPF programs" in done.stderr


@pytest.mark.skipif(OLD, reason="below 5.15 the version is refused first")
@pytest.mark.skipif(not YAMA.exists(), reason="this kernel has no Yama")
def test_with_ptrace_forbidden_for_all_calls_are_still_counted(tmp_path: Path) -> None:
    YAMA.write_text("3")
    assert read_kernel().ptrace_scope == 3
    command = [native.build("calls"), "--threads", 1, "--processes", 1, "--seconds", 2, "--rate", 500]
    recorded = record(simulation(tmp_path), command)
    outer, _, _ = recorded_counts(recorded.database)
    true_outer, _, _ = true_counts(recorded.truth)
    assert +outer == +true_outer


@pytest.mark.skipif(OLD, reason="below 5.15 the version is refused first")
@pytest.mark.skipif(not LOCKDOWN.exists(), reason="this kernel has no lockdown")
def test_a_locked_down_kernel_is_named() -> None:
    LOCKDOWN.write_text("confidentiality")
    done = trace()
    assert done.returncode == 2
    assert "locked down in confidentiality mode" in done.stderr
    assert "boot without lockdown=confidentiality" in done.stderr
    assert not loaded_programs()
    assert not [line for line in done.stdout.splitlines() if json.loads(line)["type"] == "started"]
