"""What each option of `ingero trace` does to a real recording on the simulated GPU."""

from __future__ import annotations

import json
import lzma
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.reader_memory import descendants
from ingero.capture.loop.priority import NICE
from ingero.demo.workloads import native
from ingero.demo.workloads.program import Program
from ingero.discover.library_files import identify
from ingero.discover.sites import probe_sites
from ingero.events import CallFlag
from tests.integration.callers import build_library, caller
from tests.integration.targets import Recorded, breakpoints, record, rows, simulation, until, wait_for_end, waiting
from tests.integration.tracing import Tracer, tracing

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "src/ingero/cli/trace_events.schema.json").read_text())


def loop(seconds: float = 2) -> list[object]:
    return [native.build("sandboxed"), seconds]


def one(database: Path, sql: str) -> Any:
    ((value,),) = rows(database, sql)
    return value


def not_traced(database: Path) -> dict[str, str]:
    """Sources that are not traced, without the GPUs' own samples: whether there is a driver is the machine's affair."""
    found: dict[str, str] = json.loads(one(database, "SELECT not_traced FROM sessions"))
    return {source: reason for source, reason in found.items() if source != "GPU"}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A program recorded without any option."""
    return record(simulation(tmp_path_factory.mktemp("usual")), loop())


SPARSE_SECONDS = 5
SWITCHED_OFF = ["--no-io", "--no-tcp", "--net=false", "--no-nccl"]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Tracer:
    """A recording with a name, limits and little of what happens, beside a program that writes to the disk."""
    options = [*SWITCHED_OFF, "--node", "gpu-7", "--max-db", "1g", "--max-overhead", "1%"]
    return record_beside_writes(tmp_path_factory.mktemp("limited"), options, 1)


@pytest.fixture(scope="module")
def verbose(tmp_path_factory: pytest.TempPathFactory) -> Tracer:
    """A recording of all calls that also prints them, beside a program that writes to the disk."""
    return record_beside_writes(tmp_path_factory.mktemp("verbose"), ["--io", "--verbose", "--record-all"], 3)


@dataclass(frozen=True)
class Sparse:
    """A recording of few calls and few snapshots, with a ring of a size of its own; told: on standard error."""

    tracer: Tracer
    told: str


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Sparse:
    simulated = simulation(tmp_path_factory.mktemp("sparse"))
    options = ["--sampling-rate", "50", "--ringbuf-size", "3m"]
    options += ["--deadband", "100", "--heartbeat", "1h"]
    with (
        waiting(simulated, loop(60)) as process,
        tracing(simulated.folder, pids=[process.pid], options=options) as tracer,
    ):
        process.go()
        for _ in range(SPARSE_SECONDS):
            tracer.wait_for("second")
        tracer.stop()
        told = tracer.stderr_text()
    return Sparse(tracer, told)


def record_beside_writes(folder: Path, options: Sequence[str], writes: int) -> Tracer:
    simulated = simulation(folder)
    with waiting(simulated, loop(3)) as process, tracing(folder, pids=[process.pid], options=options) as tracer:
        process.go()
        for _ in range(writes):
            write_to_disk(folder / "written")
        wait_for_end(tracer)
    return tracer


def test_events_that_are_switched_off_are_not_recorded_and_said_to_be_not_traced(limited: Tracer) -> None:
    assert not_traced(limited.database) == {
        "IO": "switched off (io)",
        "TCP": "switched off (tcp)",
        "NET": "switched off (net)",
        "NCCL": "switched off (nccl)",
    }
    assert one(limited.database, "SELECT count(*) FROM raw_events WHERE source IN (5, 6, 7, 9)") == 0
    assert one(limited.database, "SELECT count(*) FROM raw_probes WHERE library LIKE '%nccl%'") == 0
    assert one(limited.database, "SELECT count(*) FROM raw_op_stats WHERE source = 1") > 0


def test_without_switches_everything_is_traced(usual: Recorded) -> None:
    assert not_traced(usual.database) == {}
    assert one(usual.database, "SELECT count(*) FROM raw_probes WHERE library LIKE '%nccl%' AND is_attached") > 0


def test_block_io_is_seen_where_it_is_not_switched_off(verbose: Tracer) -> None:
    assert one(verbose.database, "SELECT count(*) FROM raw_events WHERE source = 5") > 0


def write_to_disk(path: Path) -> None:
    """More than a disk takes at once, so that requests are slow enough to be recorded whoever issues them."""
    with path.open("wb", buffering=0) as file:
        file.write(bytes(128 << 20))
        os.fsync(file.fileno())


def test_a_program_that_goes_on_after_a_quiet_time_is_not_recorded_whole(tmp_path: Path) -> None:
    library = build_library(tmp_path / "lib")
    sites = [(str(library), site.file_offset) for site in probe_sites(identify(library)).sites]
    with caller() as process, tracing(tmp_path, pids=[process.pid]) as tracer:
        process.do("load", library)
        until(lambda: bool(breakpoints(process.pid, sites)), "its functions are probed")
        process.do("call", 300, 1)
        time.sleep(2.5)  # of two readings of the sums at least one finds that it rests
        process.do("call", 20_000, 1)
    assert one(tracer.database, "SELECT sum(count) FROM raw_op_stats") == 20_300
    recorded = one(tracer.database, "SELECT count(*) FROM raw_events WHERE source = 1")
    print(f"\n{recorded} of 20,300 calls are recorded")
    assert 200 <= recorded <= 20_300 / 4  # beside those that are slow on a busy machine


def test_one_ordinary_call_in_n_is_stored(sparse: Sparse) -> None:
    database = sparse.tracer.database
    launches = "source = 1 AND op = (SELECT op_id FROM ops WHERE source_id = 1 AND name = 'cudaLaunchKernel')"
    total = one(database, f"SELECT sum(count) FROM raw_op_stats WHERE {launches}")
    sampled = one(database, f"SELECT count(*) FROM raw_events WHERE {launches} AND flags & {int(CallFlag.SAMPLED)}")
    print(f"\n{sampled} samples of {total} launches")
    assert total > 2000, "the loop must launch often enough for its launches to be ordinary"
    # calls that are slow or among the first are recorded for another reason, whatever their number
    assert 0.7 * total / 50 - 10 <= sampled <= total / 50 + 10


def test_a_ring_size_is_rounded_up_and_said(sparse: Sparse) -> None:
    assert "rounded up to 4.00 MiB" in sparse.told


def test_the_node_names_the_recording(limited: Tracer) -> None:
    assert one(limited.database, "SELECT node FROM sessions") == "gpu-7"
    assert one(limited.database, "SELECT id FROM events LIMIT 1").startswith("gpu-7:")


def test_snapshots_that_say_nothing_new_are_not_stored(sparse: Sparse) -> None:
    stored = one(sparse.tracer.database, "SELECT count(*) FROM raw_snapshots")
    assert 1 <= stored < SPARSE_SECONDS - 1


def test_the_session_says_what_was_asked_for(limited: Tracer, usual: Recorded) -> None:
    asked, otherwise = (
        json.loads(one(path, "SELECT options FROM sessions")) for path in (limited.database, usual.database)
    )
    assert (asked["max_db"], asked["net"], asked["max_overhead"]) == (1 << 30, False, 0.01)
    assert (otherwise["net"], otherwise["io"]) == (True, True)


def test_a_database_is_kept_below_its_limit_while_it_is_written(tmp_path: Path) -> None:
    limit = 20 << 20  # of less, sums and what is being committed may leave nothing to single calls
    pruned = "SELECT count(*) FROM pruned WHERE name = 'events'"
    options = ["--record-all", "--max-db", "20m"]
    with (
        waiting(simulation(tmp_path), loop(120)) as process,
        tracing(tmp_path, pids=[process.pid], options=options) as tracer,
    ):
        process.go()
        while not one(tracer.database, pruned):
            tracer.wait_for("second")
        tracer.wait_for("second")  # it goes on meanwhile
        drops = tracer.stop()
    stored = one(tracer.database, "SELECT count(*) FROM raw_events")
    counted = one(tracer.database, "SELECT sum(count) FROM raw_op_stats")
    print(f"\n{stored} of {counted} calls kept in {tracer.database.stat().st_size} bytes")
    assert 0 < stored < counted
    assert tracer.database.stat().st_size < 2 * limit
    assert not [name for name in drops if name.startswith("rows_lost")]


def assert_as_the_schema_says(messages: list[dict[str, Any]], *kinds: str) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert [error.message for message in messages for error in validator.iter_errors(message)] == []
    found = {message["type"] for message in messages if not message["type"].startswith("incident_")}  # if it is busy
    assert found == {"started", "second", "finished", *kinds}


def test_json_lines_are_as_the_schema_says(usual: Recorded) -> None:
    assert_as_the_schema_says(usual.tracer.messages)


def test_json_lines_with_calls_and_their_stacks_are_as_the_schema_says(verbose: Tracer) -> None:
    assert_as_the_schema_says(verbose.messages, "call")
    assert any(message["stack"] for message in verbose.messages if message["type"] == "call")


def test_the_schema_refuses_what_it_does_not_know() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    line = {"type": "finished", "version": 1, "database": None, "drops": {}, "refused": [], "unreadable": {}}
    assert not validator.is_valid({**line, "extra": 1})
    assert validator.is_valid(line)


def test_verbose_lines_show_calls_with_their_clocks_and_at_most_so_many(verbose: Tracer) -> None:
    seconds: list[int] = [0]
    for message in verbose.messages:
        if message["type"] == "second":
            seconds.append(0)
        elif message["type"] == "call":
            seconds[-1] += 1
            assert sum(message["states_ns"].values()) <= message["duration_ns"]
    assert 0 < max(seconds) <= 20
    assert any(message.get("records_not_shown") for message in verbose.messages)


def test_a_log_file_takes_what_debugging_says(tmp_path: Path) -> None:
    log = tmp_path / "ingero.log"
    simulated = simulation(tmp_path)
    command = [sys.executable, "-m", "ingero.cli.main", "trace", "--record=false", "--duration", "1s"]
    with waiting(simulated, loop(1)) as process:
        options = ["--pid", str(process.pid), "--debug", "--log", str(log)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    for text in (log.read_text(), done.stderr):
        assert "INFO ingero.capture.libraries.libraries" in text
        assert "DEBUG ingero.attach.libbpf" in text
    assert log.stat().st_mode & 0o777 == 0o600


CALLER = """
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
for _ in range(7):
    library.cudaDeviceSynchronize()
"""


def calls_of(database: Path, pid: int) -> int:
    sql = (
        "SELECT coalesce(sum(count), 0) FROM raw_op_stats JOIN raw_processes p USING (process) "
        "WHERE p.pid = ? AND source = 1"
    )
    ((count,),) = rows(database, sql, pid)
    return int(count)


STATIC = """
#include <stdio.h>
__attribute__((noinline)) int cudaDeviceSynchronize(void) { asm volatile("nop"); return 0; }
int main(void) { getchar(); for (int i = 0; i < 5; i++) cudaDeviceSynchronize(); getchar(); return 0; }
"""


def test_a_renamed_library_and_a_program_with_the_runtime_linked_in_are_probed_when_they_are_given(
    tmp_path: Path,
) -> None:
    simulated = simulation(tmp_path)
    own = tmp_path / "vendor-runtime.bin"
    shutil.copy(simulated.libraries / "libcudart.so.12", own)
    source, binary = tmp_path / "main.c", tmp_path / "renderer"
    source.write_text(STATIC)
    subprocess.run(["gcc", "-O1", "-o", binary, source], check=True)
    process = subprocess.Popen([binary], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        with tracing(tmp_path, options=["--cuda-lib", f"{own}:{binary}", "--user", "all"]) as tracer:
            assert str(own) in tracer.messages[0]["libraries"]
            assert process.pid in tracer.messages[0]["processes"]
            with Program([sys.executable, "-c", CALLER, str(own)], environment=simulated.environment) as caller:
                caller.finish()
            process.stdin.write(b"\n")
            process.stdin.flush()
            until(lambda: calls_of(tracer.database, process.pid) == 5, "its calls are counted")
            until(lambda: calls_of(tracer.database, caller.pid) == 7, "the renamed library's are, too")
    finally:
        process.kill()
        process.wait()
        process.stdin.close()


def refused(*options: str, **environ: str) -> str:
    command = [sys.executable, "-m", "ingero.cli.main", "trace", "--record=false", "--duration", "1ms", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_file_without_a_traced_call_is_refused() -> None:
    assert "exports no traced call" in refused("--cuda-lib", "/usr/bin/env")
    assert "No such file" in refused("--cuda-lib", "/absent")
    assert "cannot write the log" in refused("--log", "/absent/log")


@contextmanager
def a_user() -> Iterator[pwd.struct_passwd]:
    """A person with a home, for as long as the block."""
    name = f"ingero-{uuid.uuid4().hex[:8]}"
    subprocess.run(["useradd", "--create-home", name], check=True, stderr=subprocess.DEVNULL)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, stderr=subprocess.DEVNULL)


def test_whoever_called_sudo_gets_the_database_and_traces_their_own_processes(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with a_user() as user:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "INGERO_DB"},
            "SUDO_USER": user.pw_name,
            "SUDO_UID": str(user.pw_uid),
            "SUDO_GID": str(user.pw_gid),
        }
        command = [sys.executable, "-m", "ingero.cli.main", "trace", "--json", "--duration", "2s"]
        with waiting(simulated, loop(3)) as roots:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        messages = [json.loads(line) for line in done.stdout.splitlines()]
        database = Path(user.pw_dir) / ".ingero/ingero.db"
        assert messages[-1]["database"] == str(database)
        assert roots.pid not in messages[0]["processes"]
        owners = {path: path.stat().st_uid for path in (database.parent, *database.parent.iterdir())}
        assert set(owners.values()) == {user.pw_uid}, owners


def test_a_recording_of_an_earlier_build_where_recordings_usually_are_is_kept_for_its_owner() -> None:
    with a_user() as user:
        database = Path(user.pw_dir) / ".ingero/ingero.db"
        database.parent.mkdir()
        database.write_bytes(lzma.decompress((ROOT / "tests/data/builds/before-clocks.db.xz").read_bytes()))
        for path in (database.parent, database):
            os.chown(path, user.pw_uid, user.pw_gid)
        before = database.read_bytes()
        environment = {
            **{name: value for name, value in os.environ.items() if name != "INGERO_DB"},
            "SUDO_USER": user.pw_name,
            "SUDO_UID": str(user.pw_uid),
            "SUDO_GID": str(user.pw_gid),
        }
        command = [sys.executable, "-m", "ingero.cli.main", "trace", "--json", "--duration", "1s"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        [kept] = database.parent.glob("ingero.until-*.db")
        [said] = [line for line in done.stderr.splitlines() if kept.name in line]
        print(said)
        assert said.startswith(f"{database} was recorded by an earlier build of ingero: it is kept as {kept.name}")
        assert kept.read_bytes() == before
        assert one(database, "SELECT count(*) FROM sessions") == 1
        owners = {path: path.stat().st_uid for path in database.parent.iterdir()}
        assert set(owners.values()) == {user.pw_uid}, owners
        assert set(owners) == {database, kept}


@pytest.mark.parametrize("whose", ["root", pytest.param("all", marks=pytest.mark.further)])
def test_processes_of_another_user_are_traced_when_asked_for(tmp_path: Path, whose: str) -> None:
    simulated = simulation(tmp_path)
    with a_user() as user:
        variables = {"SUDO_USER": user.pw_name, "SUDO_UID": str(user.pw_uid), "SUDO_GID": str(user.pw_gid)}
        with (
            waiting(simulated, loop(3)) as roots,
            tracing(tmp_path, options=["--user", whose], environment=variables) as tracer,
        ):
            assert roots.pid in tracer.messages[0]["processes"]


@contextmanager
def readable_by_all() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ingero-test-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def as_nobody(capabilities: str, run_folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs `ingero ...` under uid 65534 with these capabilities only."""
    return subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            f"--inh-caps=-all{capabilities}",
            f"--ambient-caps=-all{capabilities}",
            f"--bounding-set=-all{capabilities}",
            sys.executable,
            "-m",
            "ingero.cli.main",
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**os.environ, "HOME": "/nonexistent", "INGERO_RUN_DIR": str(run_folder)},
    )


def test_three_capabilities_are_enough() -> None:
    with readable_by_all() as folder:
        simulated = simulation(folder)
        with waiting(simulated, loop(60)) as process:
            process.go()
            arguments = ("trace", "--json", "--duration", "2s", "--db", folder / "a.db", "--pid", process.pid)
            done = as_nobody(",+bpf,+perfmon,+sys_ptrace", folder, *arguments)
        assert done.returncode == 0, done.stderr
        messages = [json.loads(line) for line in done.stdout.splitlines()]
        assert messages[0]["mode"] == "uprobe.session"
        assert messages[0]["unavailable"] == {}
        assert one(folder / "a.db", "SELECT sum(count) FROM raw_op_stats") > 0
        assert (folder / "a.db").stat().st_uid == 65534
        clocks = one(folder / "a.db", "SELECT sum(run_ns + sleep_ns + runq_ns) FROM raw_thread_state_seconds")
        assert clocks > 0


@pytest.mark.parametrize(
    ("capabilities", "missing"),
    [("", "CAP_BPF"), (",+bpf,+perfmon", "CAP_SYS_PTRACE"), (",+bpf,+sys_ptrace", "CAP_PERFMON")],
)
def test_with_less_trace_and_check_refuse_with_the_same_words(capabilities: str, missing: str) -> None:
    traced = as_nobody(capabilities, Path("/nonexistent"), "trace", "--record=false", "--duration", "1ms")
    checked = as_nobody(capabilities, Path("/nonexistent"), "check", "--json")
    assert (traced.returncode, checked.returncode) == (2, 1)
    reason = traced.stderr.splitlines()[0].removeprefix("error: cannot trace: ")
    assert missing in reason
    groups = [row for row in json.loads(checked.stdout)["rows"] if row["section"] == "probes"]
    assert reason in {row["found"] for row in groups}


LOADED = """
import ctypes, sys, time
library = ctypes.CDLL(sys.argv[1])
library.cudaDeviceSynchronize()
print("loaded", flush=True)
while True:
    library.cudaDeviceSynchronize()
    time.sleep(0.005)
"""


@pytest.mark.parametrize(
    ("more", "is_probed"),
    [
        ("", False),
        (",+checkpoint_restore", False),
        (",+checkpoint_restore,+dac_read_search", True),
    ],
)
def test_a_deleted_library_of_another_user_is_probed_with_two_more_capabilities_and_named_without(
    more: str, is_probed: bool
) -> None:
    with readable_by_all() as folder:
        simulated = simulation(folder)
        library = simulated.libraries / "libcudart.so.12"
        command = [sys.executable, "-c", LOADED, library]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=simulated.environment) as process:
            assert process.stdout
            process.stdout.readline()
            library.unlink()
            arguments = ("trace", "--json", "--duration", "1s", "--db", folder / "a.db", "--pid", process.pid)
            done = as_nobody(",+bpf,+perfmon,+sys_ptrace" + more, folder, *arguments)
            process.kill()
        assert done.returncode == 0, done.stderr
        unreadable = json.loads(done.stdout.splitlines()[-1])["unreadable"]
        counted = one(folder / "a.db", "SELECT coalesce(sum(count), 0) FROM raw_op_stats WHERE source = 1")
        assert (counted > 0) == is_probed
        assert bool(unreadable) == (not is_probed)
        if not is_probed:
            ((path, reason),) = unreadable.items()
            assert path.startswith(str(library))
            assert "CAP_CHECKPOINT_RESTORE or (another user's process) CAP_DAC_READ_SEARCH" in reason


def test_check_is_ready_where_trace_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ingero.cli.main", "check", "--json"], capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ready"]) == (0, True)
    by_name = {row["name"]: row for row in answer["rows"]}
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists():
        assert by_name["ptrace_scope"]["found"].startswith(scope.read_text().strip())
    else:
        assert (by_name["ptrace_scope"]["state"], by_name["ptrace_scope"]["found"]) == (
            "not here",
            "this kernel has no Yama",
        )


def test_check_lists_cuda_processes_and_their_libraries(tmp_path: Path) -> None:
    simulated = simulation(tmp_path)
    with waiting(simulated, loop(1)) as process:
        done = subprocess.run(
            [sys.executable, "-m", "ingero.cli.main", "check", "--json"], capture_output=True, text=True, check=True
        )
    found = {row["name"]: row["found"] for row in json.loads(done.stdout)["rows"]}
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in found[f"pid {process.pid}"]
    shown = " ".join(row["found"] for row in json.loads(done.stdout)["rows"] if row["section"] == "libraries")
    assert all(str(path) in shown for path in simulated.mapped())


def test_a_process_namespace_of_its_own_is_refused_and_said() -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "ingero.cli.main"]
    traced = subprocess.run([*command, "trace", "--duration", "1ms"], capture_output=True, text=True, check=False)
    checked = subprocess.run([*command, "check", "--json"], capture_output=True, text=True, check=False)
    assert (traced.returncode, checked.returncode) == (2, 1)
    assert "PID namespace" in traced.stderr
    assert "docker run --pid=host" in traced.stderr
    assert {row["name"]: row for row in json.loads(checked.stdout)["rows"]}["PID namespace"]["state"] == "missing"


def test_what_is_recorded_is_served_while_it_is(tmp_path: Path) -> None:
    program = [str(part) for part in loop(60)]
    sql = "SELECT sum(count) > 0 AS has_calls FROM op_stats"
    with (
        Program(program, environment=simulation(tmp_path).environment) as running,
        tracing(tmp_path, pids=[running.pid], options=("--serve", "127.0.0.1:0", "--no-tls")) as tracer,
    ):
        found = re.search(r"serving at http://(127\.0\.0\.1:\d+)/", tracer.stderr_text())
        assert found, tracer.stderr_text()
        asking = [sys.executable, "-m", "ingero.cli.main", "query", "--no-tls", "--nodes", found[1], "--csv", sql]
        until(lambda: run(asking) == "has_calls\n1\n", "calls of the recording are served")
        assert nices(tracer.pid) == {NICE}
        assert set.union(*map(nices, descendants(tracer.pid))) == {0}  # they serve strangers, or read what is theirs
        os.kill(int(run(["pgrep", "-P", str(tracer.pid), "-x", "ingero-serve"])), signal.SIGKILL)
        until(lambda: "the node's server has ended (signal 9)" in tracer.stderr_text(), "the end of the server is said")
        before = one(tracer.database, "SELECT sum(count) FROM raw_op_stats")
        until(lambda: one(tracer.database, "SELECT sum(count) FROM raw_op_stats") > before, "the recording goes on")


def nices(pid: int) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()}


def run(argv: Sequence[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
