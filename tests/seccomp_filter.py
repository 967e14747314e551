"""Puts a process under a seccomp profile of containers, as a container runtime does, without one."""

from __future__ import annotations

import ctypes
import platform
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06  # of absolute words; equal to, any bit of; a constant
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # of struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_MACHINES = {"x86_64": (0xC000003E, "asm/unistd_64.h"), "aarch64": (0xC00000B7, "asm-generic/unistd.h")}
_NEWER = {"uretprobe": 335, "uprobe": 336} if platform.machine() == "x86_64" else {}  # than some headers
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def numbers() -> dict[str, int]:
    """Of this machine's system calls, from the headers of the C library."""
    _, header = _MACHINES[platform.machine()]
    path = next(
        path
        for path in (Path("/usr/include") / header, Path(f"/usr/include/{platform.machine()}-linux-gnu") / header)
        if path.exists()
    )
    return _NEWER | {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
    }


def instructions(profile: Mapping[str, Any]) -> bytes:
    """The filter that a profile means on this machine; a call that the headers do not know is left out."""
    known = numbers()
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    refused = _ERRNO | profile["defaultErrnoRet"]
    made = [(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_EQUAL, 1, 0, _MACHINES[platform.machine()][0])]
    made += [(_RETURN, 0, 0, refused), (_LOAD, 0, 0, _NUMBER)]
    for group in profile["syscalls"]:
        answer = _ALLOW if group["action"] == "SCMP_ACT_ALLOW" else _ERRNO | group["errnoRet"]
        conditions = group.get("args", [])
        for number in (known[name] for name in group["names"] if name in known):
            if not conditions:
                made += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]
                continue
            [one] = conditions
            assert (one["op"], one["valueTwo"]) == ("SCMP_CMP_MASKED_EQ", 0)
            made += [(_JUMP_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS + 8 * one["index"])]
            made += [(_JUMP_SET, 1, 0, one["value"]), (_RETURN, 0, 0, answer), (_RETURN, 0, 0, refused)]
    made.append((_RETURN, 0, 0, refused))
    return b"".join(struct.pack("=HBBI", code, if_true, if_false, value) for code, if_true, if_false, value in made)


def applied(profile: Mapping[str, Any]) -> Callable[[], None]:
    """To be called in the process, before it becomes the program."""
    raw = instructions(profile)
    program = _Program(len(raw) // 8, raw)

    def apply() -> None:
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(
            _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "the filter was refused")

    return apply
