"""discover.processes: who a process is, and whether it still lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingero.discover.processes import (
    Process,
    ProcessId,
    descendants,
    is_alive,
    list_pids,
    parents,
    read_process,
    read_process_id,
    read_thread_name,
)

EXITING = 0x4  # PF_EXITING


def write_process(
    proc: Path, pid: int, name: str, *, state: str = "S", ppid: int = 1, threads: int = 1, flags: int = 0
) -> None:
    """A process in a made-up /proc."""
    folder = proc / str(pid)
    folder.mkdir()
    stat = f"{pid} ({name}) {state} {ppid} 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 4242 0 0"
    (folder / "stat").write_text(stat)
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t1000\t0\t0\t0\nPPid:\t{ppid}\n")


def a_process(pid: int, ppid: int) -> Process:
    return Process(
        id=ProcessId(pid, 1),
        name="p",
        uid=0,
        ppid=ppid,
        state="S",
        threads=1,
        is_kernel_thread=False,
    )


def test_own_process_is_read_whole() -> None:
    process = read_process(os.getpid())
    assert process is not None
    assert process.uid == os.getuid()
    assert process.ppid == os.getppid()
    assert not process.is_kernel_thread


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "a) S 99 (b", ppid=3)
    process = read_process(7, tmp_path)
    assert process is not None
    assert (process.name, process.ppid, process.id.start_ticks) == ("a) S 99 (b", 3, 4242)


def test_the_uid_is_the_real_one(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "p")
    process = read_process(7, tmp_path)
    assert process is not None
    assert process.uid == 1000


@pytest.mark.parametrize("missing", ["stat", "status"])
def test_a_process_that_vanishes_while_it_is_read_is_none(tmp_path: Path, missing: str) -> None:
    write_process(tmp_path, 7, "p")
    (tmp_path / "7" / missing).unlink()
    assert read_process(7, tmp_path) is None


def test_a_process_that_vanished_has_no_parent(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "p")
    write_process(tmp_path, 8, "q")
    (tmp_path / "8/status").unlink()
    assert set(parents(tmp_path)) == {7}


def test_pids_are_listed_in_order_and_nothing_else(tmp_path: Path) -> None:
    for name in ("12", "3", "self", "uptime"):
        (tmp_path / name).mkdir()
    assert list_pids(tmp_path) == [3, 12]


def test_a_reused_pid_is_not_the_old_process(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "p")
    assert is_alive(ProcessId(7, 4242), tmp_path)
    assert not is_alive(ProcessId(7, 4241), tmp_path)


def test_a_zombie_is_not_alive(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "p", state="Z")
    assert not is_alive(ProcessId(7, 4242), tmp_path)


def test_a_process_that_is_ending_is_not_alive(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "p", state="R", flags=EXITING | 0x40)
    assert not is_alive(ProcessId(7, 4242), tmp_path)


def test_a_process_whose_first_thread_is_ending_is_alive(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "p", state="R", threads=2, flags=EXITING)
    assert is_alive(ProcessId(7, 4242), tmp_path)


def test_a_process_whose_first_thread_ended_is_alive(tmp_path: Path) -> None:
    write_process(tmp_path, 7, "p", state="Z", threads=3)
    assert is_alive(ProcessId(7, 4242), tmp_path)


def test_a_real_child_is_alive_until_it_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = read_process_id(child.pid)
    assert identity is not None
    assert is_alive(identity)
    child.communicate(b"\n")
    assert not is_alive(identity)


def test_start_time_agrees_with_the_clock() -> None:
    before = time.time_ns()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    after = time.time_ns()
    identity = read_process_id(child.pid)
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    child.communicate(b"\n")
    assert identity is not None
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert before - 2 * tick_ns <= identity.start_unix_ns(boot) <= after + tick_ns


def test_the_kernels_start_time_makes_the_same_identity() -> None:
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert ProcessId.from_boottime(7, 4242 * tick_ns + tick_ns - 1) == ProcessId(7, 4242)


def test_descendants_are_found_through_every_generation() -> None:
    assert descendants([2], {2: 1, 3: 2, 4: 3, 5: 1}) == (3, 4)


def test_a_loop_of_parents_ends() -> None:
    assert descendants([2], {2: 3, 3: 2}) == (3,)


def test_name_of_a_thread_may_be_any_bytes(tmp_path: Path) -> None:
    thread = tmp_path / "7"
    thread.mkdir()
    (thread / "comm").write_bytes(b"\xff\x1b\n\n")
    assert read_thread_name(7, tmp_path) == "\ufffd\x1b\n"
    assert read_thread_name(8, tmp_path) == ""
