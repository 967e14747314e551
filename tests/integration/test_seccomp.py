"""deploy/docker/seccomp.json, tried: root with five capabilities records and reads under it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingero.demo.workloads import native
from tests.integration.targets import rows, simulation, waiting
from tests.seccomp_filter import applied, numbers

pytestmark = pytest.mark.integration

PROFILE = json.loads((Path(__file__).resolve().parents[2] / "deploy/docker/seccomp.json").read_text())
FIVE = "-all,+bpf,+perfmon,+sys_ptrace,+checkpoint_restore,+dac_read_search"


def without(*names: str) -> dict[str, Any]:
    profile = copy.deepcopy(PROFILE)
    for group in profile["syscalls"]:
        group["names"] = [name for name in group["names"] if name not in names]
    return profile


def run(
    profile: dict[str, Any], folder: Path, *arguments: object, capabilities: str = FIVE
) -> subprocess.CompletedProcess[str]:
    """As a container would run it: root, what it holds bounded by these capabilities."""
    command = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}", sys.executable, "-m"]
    return subprocess.run(
        [*command, "ingero.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=applied(profile),
        env={**os.environ, "INGERO_RUN_DIR": str(folder), "HOME": str(folder)},
    )


def test_what_the_profile_allows_is_enough_to_record_and_to_read(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    with waiting(simulation(tmp_path), [native.build("sandboxed"), 60]) as process:
        process.go()
        options = ["--json", "--duration", "3s", "--db", database, "--pid", process.pid, "--prometheus", "127.0.0.1:0"]
        traced = run(PROFILE, tmp_path, "trace", *options)
    assert traced.returncode == 0, traced.stderr
    first = json.loads(traced.stdout.splitlines()[0])
    assert (first["mode"], first["unavailable"]) == ("uprobe.session", {})
    [(calls,)] = rows(database, "SELECT sum(count) FROM raw_op_stats")
    assert calls > 0
    for arguments in (("explain",), ("check", "--recording"), ("query", "SELECT count(*) FROM op_stats")):
        read = run(PROFILE, tmp_path, *arguments, "--db", database, capabilities="-all")
        assert read.returncode in (0, 1), read.stderr
    checked = run(PROFILE, tmp_path, "check")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", ["bpf", "perf_event_open"])
def test_without_one_of_its_two_rare_calls_nothing_would_be_recorded(tmp_path: Path, name: str) -> None:
    with waiting(simulation(tmp_path), [native.build("sandboxed"), 60]) as process:
        process.go()
        options = ["--json", "--duration", "1s", "--db", tmp_path / "a.db", "--pid", process.pid]
        traced = run(without(name), tmp_path, "trace", *options)
    assert traced.returncode != 0 or json.loads(traced.stdout.splitlines()[0])["unavailable"]


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ("libc.unshare(0x10000000)", True),
        ("libc.mount(None, None, None, 0, None)", True),
        (f"libc.syscall({numbers()['keyctl']}, 0, 0, 0, 0, 0)", True),
        ("libc.getpid()", False),
    ],
)
def test_it_allows_no_namespaces_mounts_or_keys(code: str, refused: bool) -> None:
    program = f"import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True); {code}; print(ctypes.get_errno())"
    done = subprocess.run(
        [sys.executable, "-c", f"import os\n{program}"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=applied(PROFILE),
    )
    assert (done.stdout == "1\n" or "Operation not permitted" in done.stderr) == refused, done.stderr
