"""What a thread blocked in the kernel waits for, from /proc: its state, system call, and the call's object.

What is read belongs to a process that may end, or change, at any moment: callers compare what they read with how
often the thread had been switched before and after. Texts are untrusted; nothing here opens what they name.
"""

from __future__ import annotations

import os
import platform
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from ingero.discover.memory import ProcessMemory, UnreadableMemoryError
from ingero.discover.processes import PROC
from ingero.events import ASKS_FILE_SYSTEM, LOCKS_FILE, RECEIVES, SENDS, WAITS_FOR_CHILD, WAITS_FOR_EVENTS
from ingero.foreign_text import decoded

_MAX_BYTES = 64 << 10  # of a status file
_MAX_PATH = 512  # characters of a path or socket name that is kept
_MAX_POLLED = 64  # descriptors of a poll that are read; more is a server's, which waits for any of them
_WRITES = os.O_WRONLY | os.O_RDWR
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console", "/dev/hvc")

# System calls in which programs wait, by machine and number. Source: the table of the x86 system calls
# (arch/x86/entry/syscalls/syscall_64.tbl), and the one that newer architectures share (asm-generic/unistd.h).
_SYSCALLS: Mapping[str, Mapping[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl",
        17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 22: "pipe", 23: "select", 34: "pause",
        35: "nanosleep", 40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
        47: "recvmsg", 61: "wait4", 65: "semop", 70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
        78: "getdents", 82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink", 128: "rt_sigtimedwait",
        130: "rt_sigsuspend", 202: "futex", 217: "getdents64", 220: "semtimedop", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 263: "unlinkat", 264: "renameat",
        269: "faccessat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 296: "pwritev",
        299: "recvmmsg", 307: "sendmmsg", 332: "statx",
    },
    "aarch64": {
        25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat", 38: "renameat", 48: "faccessat",
        56: "openat", 57: "close", 61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev",
        67: "pread64", 68: "pwrite64", 70: "pwritev", 71: "sendfile", 72: "pselect6", 73: "ppoll", 79: "newfstatat",
        80: "fstat", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
        133: "rt_sigsuspend", 137: "rt_sigtimedwait", 188: "msgrcv", 192: "semtimedop", 193: "semop", 202: "accept",
        203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 22: "epoll_pwait",
        242: "accept4", 243: "recvmmsg", 260: "wait4", 269: "sendmmsg", 291: "statx",
    },
}  # fmt: skip
_BOTH = {441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait"}

_READS = frozenset({"read", "readv", "pread64", "recvfrom", "recvmsg", "recvmmsg"})
_SENDS = frozenset({"write", "writev", "pwrite64", "pwritev", "sendto", "sendmsg", "sendmmsg", "sendfile", "connect"})
_OF_PATHS = {
    "open": 0,
    "stat": 0,
    "lstat": 0,
    "access": 0,
    "rename": 0,
    "mkdir": 0,
    "rmdir": 0,
    "unlink": 0,
} | dict.fromkeys(
    ("openat", "newfstatat", "statx", "faccessat", "unlinkat", "renameat", "mkdirat"), 1
)  # which argument is the path
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
_EPOLLS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})
_ON_FILES = frozenset({"fsync", "fdatasync", "getdents", "getdents64", "fstat", "close", "ioctl"})
_CHILDREN = frozenset({"wait4", "waitid"})
_SEMAPHORES = frozenset({"semop", "semtimedop", "msgrcv"})

# futex operations: include/uapi/linux/futex.h
_FUTEX_PRIVATE, _FUTEX_REALTIME = 128, 256
_FUTEX_OWNED = frozenset({6, 13})  # FUTEX_LOCK_PI, FUTEX_LOCK_PI2: the word holds its owner
_TID_MASK = 0x3FFFFFFF  # FUTEX_TID_MASK, linux/futex.h
_LOCKED = frozenset({1, 2})  # of a glibc mutex: locked, and locked with waiters
_SETLKW = frozenset({7, 38})  # F_SETLKW, F_OFD_SETLKW
_POLLIN, _POLLOUT = 0x001, 0x004  # poll.h
_POLLFD = struct.Struct("<ihh")
_MUTEX = struct.Struct("<Iii")  # __lock, __count, __owner of glibc's and musl's 64-bit layout

_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "9p", "gpfs", "beegfs", "afs", "glusterfs", "virtiofs", "wekafs"}
)

_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.lxcfs", "fuse.portal", "fuse.ntfs-3g"})

PIPE_READ, PIPE_WRITE = "pipe-read", "pipe-write"
FUTEX, SHARED_FUTEX = "futex", "shared-futex"
FILE_LOCK, NETWORK_FILE, FILE = "file-lock", "network-file", "file"
TERMINAL_WRITE = "terminal-write"
SOCKET_READ, SOCKET_WRITE, ACCEPT = "socket-read", "socket-write", "accept"
TIMER, CHILD, EVENTS, SEMAPHORE, OTHER = "timer", "child", "events", "semaphore", "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What one thread waits for in the kernel.

    state: the letter of /proc (R, S, D, T, t, Z). syscall: its name, a number where it has none here, "page fault" for
    a sleep outside of calls, "" while it runs. kind: of what it waits for, "" for nothing. is_timed: it ends by itself.
    switches: how often it had been switched out. inode: of a pipe or socket. owner_tid: of a mutex. target: path of a
    file, as its process sees it. file_system, source: of that file's mount.
    """

    state: str
    syscall: str = ""
    kind: str = ""
    is_timed: bool = False
    switches: int = 0
    tracer_pid: int = 0
    wchan: str = ""
    fd: int = -1
    inode: int = 0
    target: str = ""
    address: int = 0
    owner_tid: int = 0
    file_system: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class SystemCall:
    """The system call that a thread is blocked in. number: -1 outside of any."""

    number: int
    arguments: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the system call."""
        names = {**_SYSCALLS.get(platform.machine(), {}), **_BOTH}
        return "page fault" if self.number < 0 else names.get(self.number, f"system call {self.number}")


def path_arguments() -> dict[int, int]:
    """Index of the path argument by number of each system call that takes a path, on this architecture."""
    names = _SYSCALLS.get(platform.machine(), {})
    return {number: _OF_PATHS[name] for number, name in names.items() if name in _OF_PATHS}


def call_kinds() -> dict[int, int]:
    """The kind (`events.SENDS` and so on) of each system call that has one, by its number on this architecture.

    No request from outside ends a sleep in a call that sends, locks, or asks a file system. Without select, with which
    programs also sleep.
    """
    kinds = {
        SENDS: _SENDS | {"open", "openat"},  # of a pipe with a name, whose other end opens it
        RECEIVES: _READS | {"poll", "ppoll"},
        WAITS_FOR_EVENTS: _EPOLLS,
        ASKS_FILE_SYSTEM: {*_OF_PATHS, *_ON_FILES} - {"ioctl", "open", "openat"},
        LOCKS_FILE: {"flock", "fcntl"},
        WAITS_FOR_CHILD: _CHILDREN,
    }
    by_name = {name: kind for kind, names in kinds.items() for name in names}
    named = {**_SYSCALLS.get(platform.machine(), {}), **_BOTH}
    return {number: by_name[name] for number, name in named.items() if name in by_name}


def absolute(folder: str, path: str) -> str:
    """The absolute form of a path that a process uses. folder: its current one."""
    return path if not path or path.startswith("/") else f"{folder}/{path}"[:_MAX_PATH]


def parse_call(line: str) -> SystemCall | None:
    """A line of /proc/PID/task/TID/syscall; None: it runs, or the line is none."""
    words = line.split()
    try:
        number = int(words[0])
        return SystemCall(number, tuple(int(word, 16) for word in words[1:7]) if number >= 0 else ())
    except (IndexError, ValueError):
        return None


def wait_content(wait: Wait) -> list[object]:
    """The fields of a wait as content of a message."""
    return [getattr(wait, one.name) for one in fields(Wait)]


def wait_from(content: Sequence[object]) -> Wait:
    """The wait with these fields, validated.

    Raises:
        TypeError, ValueError: they are none.
    """
    kinds = [type(one.default) for one in fields(Wait)]
    if len(content) != len(kinds) or any(
        type(one) is not kind for one, kind in zip(content[1:], kinds[1:], strict=True)
    ):
        raise ValueError
    cut = [one[:_MAX_PATH] if isinstance(one, str) else one for one in content]
    return Wait(**{one.name: value for one, value in zip(fields(Wait), [str(cut[0])[:1], *cut[1:]], strict=True)})  # type: ignore[arg-type]  # as checked


def unanswered(pid: int, tid: int, proc: Path = PROC) -> Wait | None:
    """The wait of a thread whose process does not answer: only its status, which cannot be withheld."""
    status = _status(proc / str(pid) / "task" / str(tid))
    if status is None:
        return None
    return Wait(state=status.state, kind=OTHER, switches=status.switches, tracer_pid=status.tracer_pid)


def read_wait(pid: int, tid: int, proc: Path = PROC) -> Wait | None:
    """What a thread waits for now; None: it is gone, or reading is not permitted.

    A thread that was switched meanwhile is answered as running.
    """
    task = proc / str(pid) / "task" / str(tid)
    before = _status(task)
    if before is None:
        return None
    wait = _read(pid, task, before, proc)
    after = _status(task)
    if after is None:
        return None
    return wait if after == before else Wait(state="R", switches=after.switches)


@dataclass(frozen=True, slots=True)
class _Status:
    state: str
    tracer_pid: int
    switches: int


def _status(task: Path) -> _Status | None:
    fields = _fields(task / "status")
    try:
        switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
        return _Status(fields["State"][:1], int(fields["TracerPid"]), switches)
    except (KeyError, ValueError):
        return None


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in read_text(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _read(pid: int, task: Path, status: _Status, proc: Path) -> Wait:
    common = {"switches": status.switches, "tracer_pid": status.tracer_pid}
    call = parse_call(read_text(task / "syscall"))
    if status.state not in "SDI" or call is None:
        return Wait(state=status.state, syscall=call.name if call and status.state in "Tt" else "", **common)  # type: ignore[arg-type]
    facts = _CallMeaning(pid, call, proc / str(pid))
    found = facts.found()
    wchan = read_text(task / "wchan")[:_MAX_PATH].strip()
    return Wait(state=status.state, syscall=call.name, wchan=wchan if wchan != "0" else "", **common, **found)  # type: ignore[arg-type]


@dataclass(slots=True)
class _CallMeaning:
    """Interprets the arguments of one system call."""

    pid: int
    call: SystemCall
    folder: Path

    def found(self) -> dict[str, object]:  # noqa: PLR0911  # one a kind of call
        """The fields of `Wait` for the call."""
        name, arguments = self.call.name, (*self.call.arguments, 0, 0, 0, 0, 0, 0)
        if name == "futex":
            return self._futex(arguments)
        if name in _SLEEPS:
            return {"kind": TIMER, "is_timed": True}
        if name in _CHILDREN:
            return {"kind": CHILD}
        if name in _SEMAPHORES:
            return {"kind": SEMAPHORE, "is_timed": name == "semtimedop" and bool(arguments[3])}
        if name in ("accept", "accept4"):
            return {"kind": ACCEPT}
        if name in _EPOLLS:
            return {"kind": EVENTS, "is_timed": arguments[3] < 1 << 31 and name != "epoll_pwait2"}
        if name in ("poll", "ppoll"):
            return self._polled(arguments, is_timed=bool(arguments[2]) and (name == "ppoll" or arguments[2] < 1 << 31))
        if name in ("select", "pselect6"):
            return {"kind": TIMER if not arguments[0] else EVENTS, "is_timed": bool(arguments[4])}
        if name == "flock" or (name == "fcntl" and arguments[1] in _SETLKW):
            return {**self._descriptor(arguments[0]), "kind": FILE_LOCK}
        if name in _READS or name in _SENDS or name in _ON_FILES:
            return self._of_descriptor(arguments[0], is_read=name in _READS)
        if name in _OF_PATHS:
            return self._of_path(arguments[_OF_PATHS[name]])
        return {"kind": OTHER}

    def _futex(self, arguments: tuple[int, ...]) -> dict[str, object]:
        address, operation, is_timed = arguments[0], arguments[1], bool(arguments[3])
        is_private = bool(operation & _FUTEX_PRIVATE)
        owner = self._owner(address, operation & ~(_FUTEX_PRIVATE | _FUTEX_REALTIME))
        kind = FUTEX if is_private else SHARED_FUTEX
        return {"kind": kind, "address": address, "is_timed": is_timed, "owner_tid": owner}

    def _owner(self, address: int, operation: int) -> int:
        """The thread that holds a lock, if the lock stores it: a mutex does, a semaphore does not."""
        try:
            with ProcessMemory(self.pid) as memory:
                lock, count, owner = _MUTEX.unpack(memory.read(address, _MUTEX.size))
        except (OSError, UnreadableMemoryError):
            return 0
        if operation in _FUTEX_OWNED:
            return int(lock & _TID_MASK)
        return int(owner) if lock in _LOCKED and count in (0, 1) and owner > 0 else 0

    def _polled(self, arguments: tuple[int, ...], *, is_timed: bool) -> dict[str, object]:
        """The wait of a poll: of one descriptor for that, of several for any of them."""
        address, count = arguments[0], arguments[1]
        if count == 0:
            return {"kind": TIMER, "is_timed": True}
        if count == 1:
            try:
                with ProcessMemory(self.pid) as memory:
                    descriptor, events, _ = _POLLFD.unpack(memory.read(address, _POLLFD.size))
            except (OSError, UnreadableMemoryError):
                return {"kind": EVENTS, "is_timed": is_timed}
            found = self._of_descriptor(descriptor, is_read=not events & _POLLOUT or bool(events & _POLLIN))
            return {**found, "is_timed": is_timed}
        return {"kind": EVENTS, "is_timed": is_timed}

    def _of_descriptor(self, number: int, *, is_read: bool) -> dict[str, object]:
        found = self._descriptor(number)
        target = str(found["target"])
        if target.startswith("pipe:") or (found["inode"] and target.startswith("/")):
            kind = PIPE_READ if is_read else PIPE_WRITE
        elif target.startswith(_TERMINALS) and not is_read:
            kind = TERMINAL_WRITE
        elif target.startswith("socket:"):
            kind = SOCKET_READ if is_read else SOCKET_WRITE
        elif target.startswith("/"):
            kind = NETWORK_FILE if _is_served(str(found.get("file_system", ""))) else FILE
        else:
            kind = OTHER
        return {**found, "kind": kind}

    def _descriptor(self, number: int) -> dict[str, object]:
        number = number if number < 1 << 31 else -1
        target = link_target(self.folder / "fd" / str(number))
        found: dict[str, object] = {"fd": number, "target": target, "inode": inode_of(target)}
        if target.startswith("/"):
            file_system, source = _mount_by_id(
                self.folder, _fields(self.folder / "fdinfo" / str(number)).get("mnt_id", "")
            )
            found |= {"file_system": file_system, "source": source}
            if not _is_served(file_system):  # of these even to ask may wait for the server
                found["inode"] = _fifo_inode(self.folder / "fd" / str(number))
        return found

    def _of_path(self, address: int) -> dict[str, object]:
        try:
            with ProcessMemory(self.pid) as memory:
                path = memory.text(address, _MAX_PATH)
        except (OSError, UnreadableMemoryError):
            return {"kind": FILE}
        if not path.startswith("/"):
            path = f"{link_target(self.folder / 'cwd')}/{path}"
        file_system, source = mount_of(path, read_text(self.folder / "mountinfo", most=1 << 20))
        kind = NETWORK_FILE if _is_served(file_system) else FILE
        return {"kind": kind, "target": path[:_MAX_PATH], "file_system": file_system, "source": source}


def _is_served(file_system: str) -> bool:
    """Whether another host or process answers for the files of this file system, from elsewhere than a local disk."""
    if file_system in _LOCAL_FUSE:
        return False
    return file_system in _NETWORK_FILE_SYSTEMS or file_system == "fuse" or file_system.startswith("fuse.")


def link_target(path: Path) -> str:
    """The target of a /proc link, truncated; "" if there is none. The file itself is not accessed."""
    try:
        return decoded(os.fsencode(path.readlink()), most=_MAX_PATH)
    except OSError:
        return ""


def _fifo_inode(link: Path) -> int:
    try:
        found = link.stat()
    except OSError:
        return 0
    return found.st_ino if stat.S_ISFIFO(found.st_mode) else 0


def inode_of(target: str) -> int:
    """The inode in "pipe:[4711]" or "socket:[4711]"; 0 for anything else."""
    kind, _, number = target.removesuffix("]").partition(":[")
    return int(number) if kind in ("pipe", "socket") and number.isdecimal() else 0


def mount_of(path: str, mountinfo: str) -> tuple[str, str]:
    """File system and source of the mount that holds an absolute path, by the longest mount point; "" unknown."""
    best = ("", "", "")
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        words, source = fields.split(), kind.split()
        if len(words) < 5 or len(source) < 2:
            continue
        point = words[4].encode().decode("unicode_escape", "replace")
        is_in = path == point or path.startswith(point if point.endswith("/") else point + "/")
        if is_in and len(point) >= len(best[0]):
            best = (point, source[0], source[1])
    return best[1], best[2]


def _mount_by_id(folder: Path, number: str) -> tuple[str, str]:
    for line in read_text(folder / "mountinfo", most=1 << 20).splitlines():
        if line.partition(" ")[0] == number and " - " in line:
            words = line.partition(" - ")[2].split()
            return (words[0], words[1]) if len(words) > 1 else ("", "")
    return "", ""


def opened_for_writing(folder: Path, number: str) -> bool | None:
    """Whether a process's descriptor is open for writing; None: it is closed. folder: /proc/PID."""
    flags = _fields(folder / "fdinfo" / number).get("flags", "")
    return bool(int(flags, 8) & _WRITES) if flags and not set(flags) - set("01234567") else None


@dataclass(frozen=True, slots=True)
class FileLock:
    """A line of /proc/locks. number: shared by a lock and its waiters; inode: device and number of the file."""

    number: int
    is_waiting: bool
    kind: str
    pid: int
    inode: str


def parse_locks(text: str) -> list[FileLock]:
    """The file locks of the host, and their waiters."""
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        words = rest.split()
        is_waiting = words[:1] == ["->"]
        words = words[1:] if is_waiting else words
        if len(words) < 5 or not number.strip().isdecimal() or not words[3].lstrip("-").isdecimal():
            continue
        found.append(FileLock(int(number), is_waiting, words[0], int(words[3]), words[4]))
    return found


def lock_holders(pid: int, locks: list[FileLock]) -> list[FileLock]:
    """The holders of the locks that a process waits for."""
    waited = {one.number for one in locks if one.is_waiting and one.pid == pid}
    return [one for one in locks if one.number in waited and not one.is_waiting]


@dataclass(frozen=True, slots=True)
class SocketPeer:
    """The ends of a connection. local_port, state: 0 and "" if it has none."""

    protocol: str
    remote: str
    local_port: int = 0
    state: str = ""


_TCP_STATES = {1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 8: "CLOSE_WAIT", 10: "LISTEN"}


def find_peer(pid: int, inode: int, proc: Path = PROC) -> SocketPeer | None:
    """The connection of a socket, looked for in the network namespace of its process."""
    folder = proc / str(pid) / "net"
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in read_text(folder / protocol, most=4 << 20).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[9] == str(inode):
                return _inet_peer(protocol, words)
    for line in read_text(folder / "unix", most=4 << 20).splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) > 6 and words[6] == str(inode):
            return SocketPeer("unix", words[7][:_MAX_PATH] if len(words) > 7 else "")
    return None


def _inet_peer(protocol: str, words: list[str]) -> SocketPeer:
    state = _TCP_STATES.get(int(words[3], 16), "") if protocol.startswith("tcp") else ""
    address, _, port = words[2].partition(":")
    return SocketPeer(protocol, f"{_address(address)}:{int(port, 16)}", int(words[1].partition(":")[2], 16), state)


def _address(text: str) -> str:
    import ipaddress  # noqa: PLC0415  # 10 ms that only a hang with a socket pays

    raw = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address) if address.version == 4 or mapped else f"[{address}]"


def is_listening(pid: int, port: int, proc: Path = PROC) -> bool:
    """Whether a TCP port is listened on in the network namespace of a process: then its connections are incoming."""
    for protocol in ("tcp", "tcp6"):
        for line in read_text(proc / str(pid) / "net" / protocol, most=4 << 20).splitlines()[1:]:
            words = line.split(maxsplit=4)
            if len(words) > 4 and words[3] == "0A" and words[1].endswith(f":{port:04X}"):
                return True
    return False


def shared_memory(pid: int, proc: Path = PROC) -> tuple[int, int] | None:
    """(size, free) in bytes of a process's /dev/shm; None if that is no file system in memory."""
    mounts = read_text(proc / str(pid) / "mountinfo", most=1 << 20)
    if mount_of("/dev/shm", mounts)[0] != "tmpfs":
        return None
    try:
        found = os.statvfs(proc / str(pid) / "root/dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def read_text(path: Path, *, most: int = _MAX_BYTES) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(most)
    except OSError:
        return ""
    return decoded(raw, most=most)
