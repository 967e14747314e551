"""The rows of `ingero check`: states, texts and ways out, from made-up facts."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.cli.check import machine as machine_check
from ingero.cli.check.machine import as_json, as_text
from ingero.cli.trace.plan import NotReadyError, refuse_if_blocked
from ingero.demo.gpusim.build import build
from ingero.discover.checks import CheckFacts, CheckRow, CheckState, CudaProcess, GpuFacts, all_rows, is_ready, row_of
from ingero.discover.containers import Placement, placement_of
from ingero.discover.gpus import Gpu
from ingero.discover.interpreters import Interpreter, UnreadableInterpreter
from ingero.discover.libraries import UnreadableLibrary
from ingero.discover.platforms import container_runtimes, has_own_root, orchestrators
from ingero.discover.python_layouts import layout_of
from ingero.serve.text.styles import plain
from tests.unit.discover.test_kernel import EMPTY, GOOD

NO_GPU = GpuFacts(version=None, gpus=(), reason="NVML: NVML Shared Library Not Found")
A_GPU = Gpu(index=0, uuid="GPU-1", name="H100", memory_bytes=80 << 30, pci_bus_id="", max_sm_clock_mhz=None)
FACTS = CheckFacts(
    kernel=GOOD,
    scan=EMPTY,
    on_disk=(),
    gpu=NO_GPU,
    processes=(),
    placement=Placement(),
    runtimes=(),
    orchestrators=(),
    agent=(),
)


def rows_of(facts: CheckFacts = FACTS, **changes: object) -> dict[str, CheckRow]:
    kernel = dataclasses.replace(facts.kernel, **changes)  # type: ignore[arg-type]  # any field
    return {row.name: row for row in all_rows(dataclasses.replace(facts, kernel=kernel))}


@pytest.mark.parametrize(
    ("changes", "name", "way_out"),
    [
        ({"features": GOOD.features - {"attach_cookie"}, "release": "5.10.0"}, "Linux", "upgrade the kernel"),
        ({"has_btf": False}, "type information", "CONFIG_DEBUG_INFO_BTF"),
        ({"lockdown": "confidentiality"}, "lockdown", "lockdown=confidentiality"),
        ({"is_init_pid_namespace": False}, "PID namespace", "--pid=host"),
        ({"is_init_user_namespace": False}, "user namespace", "sudo ingero trace"),
        ({"unknown_time": ("its time is shifted", "run it outside")}, "time namespace", "run it outside"),
        ({"capabilities": frozenset()}, "CAP_BPF", "sudo ingero trace"),
        ({"capabilities": frozenset(), "is_root": True}, "CAP_PERFMON", "--cap-add PERFMON"),
        ({"features": GOOD.features - {"uprobe_multi", "uprobe_session"}}, "CAP_SYS_ADMIN", "sudo ingero trace"),
    ],
)
def test_what_keeps_trace_from_running_is_missing_and_trace_says_the_same(
    changes: dict[str, object], name: str, way_out: str
) -> None:
    rows = rows_of(**changes)
    assert rows[name].state is CheckState.MISSING
    assert way_out in rows[name].fix
    assert not is_ready(tuple(rows.values()))
    kernel = dataclasses.replace(GOOD, **changes)  # type: ignore[arg-type]  # any field
    with pytest.raises(NotReadyError) as refused:
        refuse_if_blocked(kernel, ["ingero", "trace", "--duration", "5s"])
    said = str(refused.value).removeprefix("cannot trace: ")
    assert said in {row.found for row in rows.values() if row.section == "probes"}


def test_on_a_good_machine_trace_starts_and_check_is_ready() -> None:
    refuse_if_blocked(GOOD, ["ingero", "trace"])
    assert is_ready(tuple(rows_of().values()))


def test_the_command_that_mends_a_refusal_keeps_the_users_options() -> None:
    kernel = dataclasses.replace(GOOD, capabilities=frozenset())
    with pytest.raises(NotReadyError) as refused:
        refuse_if_blocked(kernel, ["ingero", "trace", "--duration", "5s"])
    assert refused.value.hint == "sudo ingero trace --duration 5s"


def test_a_missing_host_event_is_no_reason_not_to_trace() -> None:
    rows = rows_of(features=GOOD.features - {"sock_send_length", "sock_recv_length"})
    assert rows["socket bytes"].state is CheckState.WARNING
    assert is_ready(tuple(rows.values()))


@pytest.mark.parametrize(
    ("scope", "state", "found"),
    [(None, CheckState.NOT_HERE, "no Yama"), (0, CheckState.OK, "0:"), (3, CheckState.OK, "3: fine")],
)
def test_ptrace_scope_hinders_nothing_even_at_3(scope: int | None, state: CheckState, found: str) -> None:
    row = rows_of(ptrace_scope=scope)["ptrace_scope"]
    assert row.state is state
    assert found in row.found


def test_perf_event_paranoid_matters_only_where_perf_events_are_used() -> None:
    assert rows_of(perf_event_paranoid=4)["perf_event_paranoid"].state is CheckState.OK
    old = GOOD.features - {"uprobe_multi", "uprobe_session"}
    row = rows_of(perf_event_paranoid=4, features=old)["perf_event_paranoid"]
    assert row.state is CheckState.MISSING


@pytest.mark.parametrize(
    ("version", "state"), [("550.54.15", CheckState.OK), ("580.1", CheckState.OK), ("535.183.01", CheckState.WARNING)]
)
def test_an_old_driver_is_a_warning(version: str, state: CheckState) -> None:
    facts = dataclasses.replace(FACTS, gpu=GpuFacts(version=version, gpus=[A_GPU], reason=""))
    rows = rows_of(facts)
    assert rows["NVIDIA driver"].state is state
    assert "H100, 80.0 GiB" in rows["GPU 0"].found


def test_no_driver_is_no_reason_not_to_trace() -> None:
    rows = rows_of()
    assert rows["NVIDIA driver"].state is CheckState.NOT_HERE
    assert "550" in rows["NVIDIA driver"].fix


def test_a_cuda_process_is_shown_with_its_interpreter_and_its_container() -> None:
    one = CudaProcess(
        pid=7,
        name="train",
        user="alice",
        interpreter=Interpreter(
            file="libpython3.12.so.1.0", layout=layout_of((3, 12), b""), runtime=1, code_type=1, none=1, thread_bias=0
        ),
        placement=placement_of("/docker/" + "a" * 64),
    )
    found = rows_of(dataclasses.replace(FACTS, processes=[one]))["pid 7"].found
    assert found == "train, of alice, Python 3.12, frames walked in the kernel, docker container aaaaaaaaaaaa"


def test_who_does_not_answer_and_for_whom_there_was_no_time_is_said() -> None:
    rows = rows_of(dataclasses.replace(FACTS, withheld=range(10, 30), unseen=3))
    assert "pid 10, 11, 12, 13, 14, 15, 16, 17 and 12 more" in rows["memory withheld"].found
    assert "unmount" in rows["memory withheld"].fix
    assert rows["not checked"].found.startswith("3, because")
    assert is_ready(tuple(rows.values()))


def test_where_there_is_no_time_at_all_check_ends_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(build() / "libcudart.so.12", tmp_path)
    with (tmp_path / "libcudart.so.12").open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    rows = {row.name: row for row in all_rows(machine_check.gather())}
    assert f"pid {os.getpid()}" in rows
    assert "not checked" not in rows
    monkeypatch.setattr(machine_check, "_MAX_S", 0.0)
    rows = {row.name: row for row in all_rows(machine_check.gather())}
    assert f"pid {os.getpid()}" not in rows
    assert rows["not checked"].found.split(",")[0].isdecimal()
    held.close()


def test_rows_go_through_json_unchanged() -> None:
    rows = all_rows(FACTS)
    told = json.loads(json.dumps(as_json(rows)))["rows"]
    assert tuple(map(row_of, told)) == rows


def test_a_process_whose_python_lines_cannot_be_read_is_a_warning() -> None:
    unreadable = UnreadableInterpreter(file="libpython3.7m.so.1.0", reason="Python 3.7 is not supported")
    one = CudaProcess(pid=7, name="train", user="alice", interpreter=unreadable, placement=placement_of("/"))
    row = rows_of(dataclasses.replace(FACTS, processes=[one]))["pid 7"]
    assert row.state is CheckState.WARNING
    assert "no Python lines: Python 3.7 is not supported" in row.found


def test_a_library_that_cannot_be_read_is_a_warning() -> None:
    problem = UnreadableLibrary(pid=7, mapped_path="/x/libcudart.so.12", reason="it has gone")
    facts = dataclasses.replace(FACTS, scan=dataclasses.replace(EMPTY, unreadable=(problem,)))
    assert rows_of(facts)["libcudart.so.12"].state is CheckState.WARNING


def test_the_text_fits_80_columns_and_says_a_repeated_reason_once() -> None:
    facts = dataclasses.replace(FACTS, on_disk=[Path("/opt") / ("deep/" * 30) / "libcudart.so.12"])
    rows = all_rows(dataclasses.replace(facts, kernel=dataclasses.replace(GOOD, capabilities=frozenset())))
    lines = [plain(line) for line in as_text(rows)]
    assert max(map(len, lines)) <= 80
    assert sum("as above" in line for line in lines) > 3
    assert lines[-1].startswith("  ") or lines[-1].startswith("not ready")


def test_runtimes_and_orchestrators_are_told_by_daemons_sockets_and_variables(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/docker.sock").touch()
    assert container_runtimes({"crio", "kubelet"}, tmp_path) == ("cri-o", "docker")
    assert orchestrators({"kubelet", "dockerd"}, {"SLURM_JOB_ID": "7"}) == ("kubernetes", "slurm")


def test_no_probe_can_run_without_what_ingero_needs_installed() -> None:
    absent = CheckRow(
        section="ingero", name="libbpf", state=CheckState.MISSING, found="not installed", fix="install it"
    )
    rows = all_rows(dataclasses.replace(FACTS, agent=[absent]))
    probes = [row for row in rows if row.section == "probes"]
    assert {(row.found, row.fix) for row in probes} == {("libbpf is missing", "install it")}
    assert {row.state for row in probes} == {CheckState.MISSING, CheckState.WARNING}
    assert not is_ready(rows)
    assert not any("can run" in plain(line) for line in as_text(rows))


@pytest.mark.parametrize(
    ("has_own_root", "path", "found"),
    [
        (False, "/", "in no container"),
        (True, "/", "in a container that its cgroup does not name, or in a chroot"),
        (None, "/", "in no container that its cgroup names; the host's own root is not visible"),
        (True, "/docker/" + "a" * 64, "docker container aaaaaaaaaaaa"),
    ],
)
def test_a_container_without_a_name_is_none_the_less_one(has_own_root: bool | None, path: str, found: str) -> None:
    facts = dataclasses.replace(FACTS, placement=placement_of(path), has_own_root=has_own_root)
    assert rows_of(facts)["ingero itself"].found == found


def test_a_root_folder_is_compared_with_that_of_process_1(tmp_path: Path) -> None:
    for name in ("1", "self", "container"):
        (tmp_path / name).mkdir()
    (tmp_path / "1/root").symlink_to("/")
    assert has_own_root(tmp_path) is None
    (tmp_path / "self/root").symlink_to("/")
    assert has_own_root(tmp_path) is False
    (tmp_path / "self/root").unlink()
    (tmp_path / "self/root").symlink_to(tmp_path / "container")
    assert has_own_root(tmp_path) is True


@pytest.mark.parametrize("name", ["CHECKPOINT_RESTORE", "DAC_READ_SEARCH"])
def test_either_of_the_two_capabilities_is_of_no_use_alone(name: str) -> None:
    row = rows_of(capabilities=GOOD.capabilities - {name})[f"CAP_{name}"]
    assert row.state is CheckState.WARNING
    assert "Python processes of other users have no lines of code" in row.found


def test_check_and_trace_say_at_once_that_there_is_no_libbpf() -> None:
    environ = os.environ | {"INGERO_LIBBPF": "/nobody/has/this.so"}
    command = [sys.executable, "-m", "ingero.cli.main"]
    check = subprocess.run([*command, "check"], env=environ, capture_output=True, text=True, check=False)
    assert check.returncode == 1
    assert "can run" not in check.stdout
    assert "not ready: " in check.stdout
    trace = subprocess.run([*command, "trace"], env=environ, capture_output=True, text=True, check=False)
    assert (trace.returncode, trace.stdout) == (2, "")
    assert "INGERO_LIBBPF=/nobody/has/this.so cannot be opened" in trace.stderr or "cannot trace: " in trace.stderr
