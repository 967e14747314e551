"""What a sleeping thread waits for is read from /proc, whatever stands there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ingero.discover import waiting
from ingero.discover.waiting import FileLock, SocketPeer, SystemCall, call_kinds, parse_call, parse_locks, read_wait
from ingero.events import ASKS_FILE_SYSTEM, LOCKS_FILE, RECEIVES, SENDS, WAITS_FOR_CHILD, WAITS_FOR_EVENTS
from tests.unit.fake_proc import FIRST_PID, FUTEX_PRIVATE, FakeProc, call

PID = FIRST_PID
_NOT_TIMED = 0xFFFFFFFF  # poll's -1


@pytest.fixture(autouse=True)
def _x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting.platform, "machine", lambda: "x86_64")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_a_line_of_a_system_call_is_taken_apart() -> None:
    found = parse_call(call(202, 0x1000, 128, 2))
    assert found == SystemCall(202, (0x1000, 128, 2, 0, 0, 0))
    assert found.name == "futex"


@pytest.mark.parametrize("line", ["running", "", "-", "0 zz", "99999999999999999999999 1 2"])
def test_other_lines_are_none_or_have_no_name(line: str) -> None:
    found = parse_call(line)
    assert found is None or found.name.startswith("system call")


def test_kinds_of_system_calls() -> None:
    """Nobody's request ends a write; select and futex may be anything."""
    kinds = {SystemCall(number).name: kind for number, kind in call_kinds().items()}
    assert {kinds[name] for name in ("close", "fsync", "newfstatat", "getdents64")} == {ASKS_FILE_SYSTEM}
    assert {kinds[name] for name in ("write", "sendmsg", "connect", "openat")} == {SENDS}
    assert {kinds[name] for name in ("read", "recvfrom", "poll", "ppoll")} == {RECEIVES}
    assert {kinds[name] for name in ("epoll_wait", "epoll_pwait2")} == {WAITS_FOR_EVENTS}
    assert {kinds[name] for name in ("flock", "fcntl")} == {LOCKS_FILE}
    assert {kinds[name] for name in ("wait4", "waitid")} == {WAITS_FOR_CHILD}
    assert not {"select", "pselect6", "futex", "accept4", "ioctl", "nanosleep"} & set(kinds)


def test_a_sleep_outside_of_calls_is_a_page_fault() -> None:
    found = parse_call("-1 0x7ffd 0x7f00")
    assert found is not None
    assert found.name == "page fault"


@pytest.mark.parametrize(
    ("syscall", "kind", "is_timed"),
    [
        (call(202, 0x1000, FUTEX_PRIVATE, 2, 0), waiting.FUTEX, False),
        (call(202, 0x1000, 0, 2, 0x7000), waiting.SHARED_FUTEX, True),
        (call(230, 0, 0), waiting.TIMER, True),
        (call(61, 5, 0), waiting.CHILD, False),
        (call(232, 4, 0, 16, _NOT_TIMED), waiting.EVENTS, False),
        (call(232, 4, 0, 16, 100), waiting.EVENTS, True),
        (call(7, 0x1000, 0, 100), waiting.TIMER, True),
        (call(7, 0x1000, 3, _NOT_TIMED), waiting.EVENTS, False),
        (call(288, 3), waiting.ACCEPT, False),
        (call(16, 3), waiting.OTHER, False),
        (call(12345, 3), waiting.OTHER, False),
        ("-1 0x7ffd 0x7f00", waiting.OTHER, False),
    ],
)
def test_the_kind_of_a_wait_follows_from_its_call(proc: FakeProc, syscall: str, kind: str, is_timed: bool) -> None:
    proc.process(PID, syscall)
    wait = read_wait(PID, PID, proc.folder)
    assert wait is not None
    assert (wait.kind, wait.is_timed, wait.switches, wait.wchan) == (kind, is_timed, 7, "some_place")


@pytest.mark.parametrize(
    ("syscall", "target", "kind"),
    [
        (call(0, 5), "pipe:[77]", waiting.PIPE_READ),
        (call(1, 5), "pipe:[77]", waiting.PIPE_WRITE),
        (call(45, 5), "socket:[77]", waiting.SOCKET_READ),
        (call(44, 5), "socket:[77]", waiting.SOCKET_WRITE),
        (call(0, 5), "/data/shard", waiting.NETWORK_FILE),
        (call(74, 5), "/home/x", waiting.FILE),
        (call(1, 5), "/dev/pts/3", waiting.TERMINAL_WRITE),
        (call(0, 5), "/dev/pts/3", waiting.FILE),  # a person has not typed yet
        (call(73, 5, 2), "/home/x", waiting.FILE_LOCK),
        (call(72, 5, 7), "/home/x", waiting.FILE_LOCK),
        (call(0, 5), "anon_inode:[eventfd]", waiting.OTHER),
        (call(0, 6), "pipe:[77]", waiting.OTHER),
    ],
)
def test_the_object_of_a_call_is_the_file_behind_its_descriptor(
    proc: FakeProc, syscall: str, target: str, kind: str
) -> None:
    proc.process(PID, syscall, files={5: (target, f"flags:\t02\nmnt_id:\t{30 if 'data' in target else 22}\n")})
    wait = read_wait(PID, PID, proc.folder)
    assert wait is not None
    assert wait.kind == kind
    if kind in (waiting.PIPE_READ, waiting.SOCKET_READ):
        assert wait.inode == 77
    if kind == waiting.NETWORK_FILE:
        assert (wait.target, wait.file_system, wait.source) == ("/data/shard", "nfs4", "store:/x")


def test_a_thread_that_runs_or_is_gone_waits_for_nothing(proc: FakeProc) -> None:
    proc.process(PID, state="R")
    wait = read_wait(PID, PID, proc.folder)
    assert wait is not None
    assert (wait.state, wait.kind) == ("R", "")
    assert read_wait(PID + 1, PID + 1, proc.folder) is None


def test_who_traces_a_held_thread_is_known(proc: FakeProc) -> None:
    proc.process(PID, call(0, 5), state="t", tracer=4711)
    wait = read_wait(PID, PID, proc.folder)
    assert wait is not None
    assert (wait.state, wait.tracer_pid, wait.kind) == ("t", 4711, "")


LOCKS = """1: POSIX  ADVISORY  WRITE 100 fe:00:4711 0 EOF
2: FLOCK  ADVISORY  WRITE 200 fe:00:4712 0 EOF
2: -> FLOCK  ADVISORY  WRITE 300 fe:00:4712 0 EOF
2: -> FLOCK  ADVISORY  READ 301 fe:00:4712 0 EOF
3: OFDLCK ADVISORY  READ  -1 00:05:9 0 0
nonsense
4: FLOCK
x: FLOCK ADVISORY WRITE 1 2 3 4
"""


def test_the_holder_of_a_lock_has_the_number_that_the_waiter_has() -> None:
    locks = parse_locks(LOCKS)
    assert len(locks) == 5
    assert waiting.lock_holders(300, locks) == [FileLock(2, False, "FLOCK", 200, "fe:00:4712")]
    assert waiting.lock_holders(100, locks) == []


def test_a_path_is_on_the_mount_with_the_longest_point() -> None:
    mounts = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:50 / /data rw shared:1 - nfs4 store:/x rw\n"
        "31 30 0:51 / /data/my\\040set rw - fuse.s3 s3 rw\nbroken line\n"
    )
    assert waiting.mount_of("/data/a", mounts) == ("nfs4", "store:/x")
    assert waiting.mount_of("/database/a", mounts) == ("ext4", "/dev/sda1")
    assert waiting.mount_of("/data/my set/a", mounts) == ("fuse.s3", "s3")


@pytest.mark.parametrize(
    ("target", "inode"), [("pipe:[12]", 12), ("socket:[9]", 9), ("/x", 0), ("pipe:[x]", 0), ("", 0)]
)
def test_the_inode_of_a_pipe_is_in_its_name(target: str, inode: int) -> None:
    assert waiting.inode_of(target) == inode


def test_the_peer_of_a_connection_is_found_and_which_side_came(tmp_path: Path) -> None:
    del tmp_path
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as accepted:
            mine, theirs = (waiting.find_peer(os.getpid(), os.fstat(one.fileno()).st_ino) for one in (client, accepted))
            assert mine == SocketPeer("tcp", f"127.0.0.1:{port}", client.getsockname()[1], "ESTABLISHED")
            assert theirs is not None
            assert waiting.is_listening(os.getpid(), theirs.local_port)
            assert not waiting.is_listening(os.getpid(), mine.local_port)
    assert waiting.find_peer(os.getpid(), 1) is None


def test_the_size_of_shared_memory_is_asked_of_the_process_root() -> None:
    found = waiting.shared_memory(os.getpid())
    if found is None:
        pytest.skip("/dev/shm is no file system in memory here")
    size, free = found
    assert 0 <= free <= size
