"""Tests on a child process that return probes do not kill a process that runs under seccomp.

On x86-64 a return probe enters the kernel through the system call `uretprobe` (335, Linux 6.11) and a probe on a 5-byte
nop through `uprobe` (336, Linux 6.18). Kernels before the fix "seccomp: passthrough uretprobe systemcall without
filtering" (6.14, backported to stable) kill a process whose filter does not list them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import signal
import struct
from contextlib import ExitStack, suppress

from ingero.attach.libbpf import AttachType, BpfError, BpfObject
from ingero.attach.objects import object_path
from ingero.discover.mappings import parse_maps, read_maps
from ingero.program import command

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2  # linux/prctl.h, linux/seccomp.h
_RET_ALLOW, _RET_KILL_PROCESS = 0x7FFF0000, 0x80000000  # SECCOMP_RET_*, linux/seccomp.h
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # classic BPF: linux/filter.h
_PROBE_SYSTEM_CALLS = (335, 336)
_PROBED = "getppid"  # of libc: takes nothing, changes nothing
_CHILD_SECONDS = 10
_HUNG = (signal.SIGALRM, signal.SIGKILL)  # what ends a child that does not end by itself
_TRIES = 2  # one that hangs tells nothing of return probes


def are_return_probes_safe(attach_type: AttachType) -> bool:
    """Whether a child whose seccomp filter refuses the probes' system calls survives a probed call.

    Raises:
        BpfError: the trial program cannot be loaded or attached, or no child came to an end by itself.
    """
    if platform.machine() != "x86_64":
        return True
    for _ in range(_TRIES):
        code = os.waitstatus_to_exitcode(_status_of_child(attach_type))
        if code <= 0 and -code not in _HUNG:
            return code == 0
    raise BpfError(f"the test of return probes did not finish: status {code}, {_TRIES} times")


def _status_of_child(attach_type: AttachType) -> int:
    """The waitpid() status of a child that makes the probed call; killed if it hangs.

    Raises:
        BpfError: the trial program cannot be loaded or attached.
    """
    go_read, go_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        _filtered_child(go_read)
    os.close(go_read)
    try:
        with ExitStack() as stack:
            stack.callback(os.close, go_write)
            _probe(pid, attach_type, stack)
            with suppress(BrokenPipeError):  # it has ended already: its status says how
                os.write(go_write, b"x")
            return _end_of(pid)
    except BpfError:
        _end_of(pid)  # no probes: it has read the end of the pipe and ended
        raise


def _end_of(pid: int) -> int:
    """Waits for a child up to a limit: one that hangs early has set no alarm yet."""
    child = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(child, select.POLLIN)
        if not poll.poll((_CHILD_SECONDS + 1) * 1000):
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(child)
    return os.waitpid(pid, 0)[1]


def _probe(pid: int, attach_type: AttachType, stack: ExitStack) -> None:
    """Puts the trial program on the child's copy of the probed function, on entry and return."""
    path, offset = _probed_function()
    trial = stack.enter_context(BpfObject(object_path("trial"), uprobe_types={"trial": attach_type}))
    directions = (False,) if attach_type is AttachType.UPROBE_SESSION else (False, True)
    for is_return in directions:
        link = trial.program("trial").attach_uprobes(path, [(offset, 0)], attach_type, is_return=is_return, pid=pid)
        stack.callback(link.close)


def _probed_function() -> tuple[str, int]:
    """File and offset of the probed function."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), _PROBED), ctypes.c_void_p).value or 0
    for mapping in parse_maps(read_maps(os.getpid())):
        if mapping.start <= address < mapping.end and mapping.path:
            return mapping.path, address - mapping.start + mapping.offset
    raise BpfError(f"{_PROBED} of libc is in no mapped file", hint=f"`{command('check')}` shows what this system lacks")


def _filtered_child(go: int) -> None:
    """Waits for the probes, calls the probed function under the filter, and exits; never returns."""
    try:
        signal.alarm(_CHILD_SECONDS)
        if os.read(go, 1):
            libc = ctypes.CDLL(None)
            _refuse_probe_system_calls(libc)
            getattr(libc, _PROBED)()
        os._exit(0)
    finally:
        os._exit(1)


def _refuse_probe_system_calls(libc: ctypes.CDLL) -> None:
    kill, allow = _return(_RET_KILL_PROCESS), _return(_RET_ALLOW)
    checks = (struct.pack("<HBBI", _JUMP_EQUAL, 0, 1, number) + kill for number in _PROBE_SYSTEM_CALLS)
    code = struct.pack("<HBBI", _LOAD_WORD, 0, 0, 0) + b"".join(checks) + allow
    instructions = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("<H6xQ", len(code) // 8, ctypes.addressof(instructions)))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0):
        os._exit(0)  # no seccomp in this kernel: nothing can be killed


def _return(value: int) -> bytes:
    return struct.pack("<HBBI", _RETURN, 0, 0, value)
