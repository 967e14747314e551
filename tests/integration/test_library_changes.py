"""Libraries that come late, go, come back, or change on disk while they are traced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero.discover.library_files import identify
from ingero.discover.sites import communicator_sites
from tests.integration import burst
from tests.integration.burst import Burst, run_burst
from tests.integration.callers import build_library, caller
from tests.integration.recording import Recording, record_user
from tests.integration.targets import breakpoints, rows, until
from tests.integration.test_process_pickup import counts, is_probed
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def program(public: Path) -> Path:
    return burst.build(public / "burst")


def probed_paths(recording: Recording) -> list[Path]:
    known = {copy.number for copy in recording.recorder.libraries.copies}
    probed = {one.copy.number: one.copy.file.path for one in recording.recorder.probes if one.is_attached}
    return [path for number, path in probed.items() if number in known]


def test_a_copy_on_disk_is_probed_before_anybody_loads_it(tmp_path: Path, public: Path, program: Path) -> None:
    library = build_library(public / "venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib")
    other = build_library(public / "other")
    (public / "venv/bin").mkdir()
    python = Path(shutil.copy(program, public / "venv/bin"))
    pids: list[int] = []

    def act(recording: Recording) -> None:
        resident = Burst([python, other, 1, 0, 0])  # runs from the environment, and has loaded nothing of it
        try:
            until(lambda: library in probed_paths(recording), "the copy of the environment is probed")
            pids.append(run_burst(program, library, threads=2, calls=9))
        finally:
            resident.kill()

    assert record_user(tmp_path, act).counts().get(pids[0]) == 18


# Loads, calls and unloads again and again, and says how many calls it has made.
RELOADER = """
import ctypes, sys, _ctypes
pointer = ctypes.c_void_p()
for line in sys.stdin:
    for _ in range(int(line)):
        library = ctypes.CDLL(sys.argv[1])
        for _ in range(3):
            library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1))
        _ctypes.dlclose(library._handle)
    print("done", flush=True)
"""


def test_a_library_that_is_unloaded_and_loaded_again_is_counted_whole(tmp_path: Path) -> None:

    library = build_library(tmp_path / "lib")
    with (
        caller() as holder,
        subprocess.Popen(
            [sys.executable, "-c", RELOADER, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        holder.do("load", library)
        with tracing(tmp_path, pids=[holder.pid, process.pid]) as tracer:
            process.stdin.write("40\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
        process.stdin.close()
    assert process.returncode == 0
    assert counts(tracer) == {process.pid: 120}


def test_a_replaced_library_and_its_successor_are_both_counted(tmp_path: Path, public: Path, program: Path) -> None:
    library = build_library(public / "lib")
    old = Burst([program, library, 1, 4, 0])
    late: list[Burst] = []

    def act(recording: Recording) -> None:
        build_library(public / "new", "-DNEW", "-Wl,--build-id=0x1234").replace(library)
        late.append(Burst([program, library, 1, 6, 0]))
        until(lambda: len(probed_paths(recording)) == 2, "the successor is probed, too")
        for one in (old, late[0]):
            one.go()
            one.end()

    found = record_user(tmp_path, act).counts()
    assert (found.get(old.pid), found.get(late[0].pid)) == (4, 6)


def test_probes_leave_a_file_that_is_overwritten_where_it_lies(tmp_path: Path, public: Path, program: Path) -> None:
    library = build_library(public / "lib")
    other = build_library(public / "other", "-DPADDED", "-Wl,--build-id=0x99", "-falign-functions=256")
    pids: list[int] = []

    def act(recording: Recording) -> None:
        first = run_burst_until_traced(recording, program, library)
        pids.append(first)
        number = recording.recorder.libraries.copies[0].number
        with library.open("r+b") as file:
            file.write(other.read_bytes())
        until(
            lambda: number not in {copy.number for copy in recording.recorder.libraries.copies}, "its probes are gone"
        )
        run_burst_until_traced(recording, program, library)
        pids.append(run_burst(program, library, threads=1, calls=8))

    found = record_user(tmp_path, act).counts()
    assert found.get(pids[1]) == 8


NCCL = """
int ncclCommInitAll(void **all, int count, const int *devices) { all[0] = all; return count * (devices != 0) * 0; }
int ncclCommDestroy(void *one) { return one == 0; }
int ncclCommCount(void *one, int *count) { *count = 1; return one == 0; }
"""


def test_no_probe_of_nccl_stays_on_a_file_that_is_overwritten_where_it_lies(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    command = ["gcc", "-x", "c", "-", "-O0", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run(command, input=NCCL, text=True, check=True)
    expected = [(str(library), offset) for offset in communicator_sites(identify(library))]
    with (
        caller() as staying,  # the recording goes on with it
        caller() as other,  # nobody traces it
        caller() as first,
        tracing(tmp_path, pids=[staying.pid, first.pid]),
    ):
        first.do("load", library)
        until(lambda: bool(breakpoints(first.pid, expected)), "its communicators are seen")
        first.process.kill()
        first.process.wait()
        os.utime(library)  # what is written into a file leaves it with another time
        other.do("load", library)
        until(lambda: not breakpoints(other.pid, expected), "nothing of it is probed any more")


def run_burst_until_traced(recording: Recording, program: Path, library: Path) -> int:
    holder = Burst([program, library, 1, 0, 0])
    try:
        until(lambda: library in probed_paths(recording), "the library is probed")
        return holder.pid
    finally:
        holder.kill()


def test_probes_of_a_deleted_library_go_when_nobody_uses_it(tmp_path: Path, public: Path, program: Path) -> None:
    library = build_library(public / "lib")
    descriptors: list[int] = []

    def act(recording: Recording) -> None:
        descriptors.append(open_descriptors())
        holder = Burst([program, library, 1, 1, 0])
        until(lambda: library in probed_paths(recording), "the library is probed")
        library.unlink()
        holder.end()
        until(lambda: not probed_paths(recording), "its probes are gone")
        descriptors.append(open_descriptors())
        other = Burst([program, build_library(public / "other"), 1, 1, 0])
        until(lambda: bool(probed_paths(recording)), "another library is probed")
        other.end()
        assert str(library) not in {one.copy.mapped_path for one in recording.recorder.probes}

    record_user(tmp_path, act)
    assert descriptors[1] <= descriptors[0]


def open_descriptors() -> int:
    return sum("bpf" in link(entry) for entry in Path("/proc/self/fd").iterdir())


def link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def test_a_library_that_cannot_be_read_is_named_with_its_reason(tmp_path: Path, public: Path) -> None:
    library = build_library(public / "lib")
    damaged = public / "libnccl.so.2"
    damaged.write_bytes(b"\x7fELF" + b"\0" * 8000)
    script = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); "
        "m = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC); "
        "print('ready', flush=True); sys.stdin.readline()"
    )

    with (
        caller() as holder,
        subprocess.Popen(
            [sys.executable, "-c", script, str(damaged)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        holder.do("load", library)
        with tracing(tmp_path, pids=[holder.pid, process.pid]) as tracer:
            until(lambda: is_probed(tracer, library), "the other one is probed")
            tracer.wait_for("second")
        process.communicate("\n")
    (reason,) = [why for path, why in tracer.messages[-1]["unreadable"].items() if path == str(damaged)]
    assert reason
    assert tracer.messages[-1]["drops"]["library_unreadable"] == 1
    stored = rows(tracer.database, "SELECT reason FROM raw_probes WHERE library = ? AND NOT is_attached", str(damaged))
    assert len(stored) == 1
    assert stored[0][0].startswith(f"{reason}; "), "with a way out"


@contextmanager
def own_file_system(folder: Path) -> Iterator[Path]:
    """A file system of its own."""
    mount = folder / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount], check=False, stderr=subprocess.DEVNULL)


def is_unmounted(mount: Path) -> bool:
    return subprocess.run(["umount", mount], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_file_system_can_be_unmounted_soon_after_its_last_user_has_ended(
    tmp_path: Path, public: Path, program: Path
) -> None:
    other = build_library(public / "other")

    def act(recording: Recording) -> None:
        staying = Burst([program, other, 1, 1, 0])
        with own_file_system(public) as mount:
            user = Burst([program, build_library(mount / "lib"), 1, 4, 0])
            until(lambda: len(probed_paths(recording)) == 2, "both are probed")
            assert not is_unmounted(mount), "it is in use"
            user.go()
            user.end()
            until(lambda: is_unmounted(mount), "nothing keeps it")
        assert probed_paths(recording) == [other], "what lies elsewhere stays"
        staying.end()

    record_user(tmp_path, act)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_who_uses_a_library_again_that_was_let_go_is_seen(tmp_path: Path, public: Path, program: Path) -> None:
    users: list[Burst] = []

    def act(recording: Recording) -> None:
        with own_file_system(public) as mount:
            library = build_library(mount / "lib")
            for _ in range(2):
                users.append(Burst([program, library, 1, 4, 0]))
                until(lambda: library in probed_paths(recording), "it is probed")
                users[-1].go()
                users[-1].end()
                until(lambda: library not in probed_paths(recording), "it is let go")

    counts = record_user(tmp_path, act).counts()
    assert [counts.get(one.pid) for one in users] == [4, 4]
