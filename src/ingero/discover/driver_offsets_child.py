"""Asks one copy of libcuda for its entry points: a script that runs in a short-lived process of its own.

The file is untrusted, and loading a library runs its code. So this process first gives up everything: it
moves into namespaces of its own where only a copy of the file exists and no network, becomes nobody, and drops its
capabilities. It never calls cuInit and needs no GPU. Standard library only; nothing of ingero is imported.

Input (stdin, JSON): {"fd": the open file, "needed": [soname, ...], "trusted": bool, "entry_points": [[name, version,
flags], ...]}. Output (stdout, JSON): {"addresses": [address relative to the load base or null, ...]} or
{"failure": text}.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any

_NOBODY = 65534
_NEW_NAMESPACES = 0x00020000 | 0x40000000 | 0x08000000 | 0x04000000  # CLONE_NEWNS, NEWNET, NEWIPC, NEWUTS
_NEW_USER = 0x10000000  # CLONE_NEWUSER
_MS_REC, _MS_PRIVATE, _MS_NODEV, _MS_NOSUID = 0x4000, 1 << 18, 4, 2  # linux/mount.h
_NEW_ROOT = b"/proc"  # a folder that exists everywhere; only this process sees it change
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38  # linux/prctl.h
_RTLD_DI_LINKMAP = 2  # dlfcn.h
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_MAX_ADDRESSES_BYTES = 512 << 20  # beside those of the library; this process begins with 40 MB
_MAX_DATA_BYTES, _MAX_FILES = 128 << 20, 32  # libcuda takes 5 MB as it is loaded
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED

_libc = ctypes.CDLL(None, use_errno=True)


class RefusedError(Exception):
    """The library cannot be asked; the message says why."""


def main() -> None:
    """Reads the request, answers it, and ends without running any destructor of the library."""
    request = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever the library prints
    try:
        result: dict[str, Any] = {"addresses": _resolve(request)}
    except (RefusedError, OSError) as error:
        result = {"failure": str(error)}
    json.dump(result, answer)
    answer.flush()
    os._exit(0)


def _resolve(request: dict[str, Any]) -> list[int | None]:
    for name in request["needed"]:
        _load_dependency(name)
    try:
        path = _isolate(request["fd"])
    except OSError as error:
        if not request["trusted"]:
            raise RefusedError(
                f"it is not safe to load: the file may be written by others than root, and this process cannot be "
                f"isolated ({error.strerror})"
            ) from error
        path = f"/proc/self/fd/{request['fd']}"
    _drop_privileges(os.fstat(request["fd"]).st_size)
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_LOCAL)
    except OSError as error:
        raise RefusedError(f"the loader refused it: {error}") from error
    return _ask(library, request["entry_points"])


def _load_dependency(name: str) -> None:
    """Loads a dependency from the trusted system folders, before the file system disappears."""
    if "/" in name:
        raise RefusedError(f"it needs {name!r}, which is not a plain library name")
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise RefusedError(f"a library that it needs is missing outside the container: {error}") from error


def _isolate(fd: int) -> str:
    """Isolates this process with a copy of the file; returns the path of the copy.

    Raises:
        OSError: the kernel or a sandbox around the agent does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_NEW_NAMESPACES) != 0:
        _check(_libc.unshare(_NEW_NAMESPACES | _NEW_USER))
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    size = os.fstat(fd).st_size
    options = f"size={size + (1 << 20)},mode=755".encode()
    _check(_libc.mount(b"none", _NEW_ROOT, b"tmpfs", _MS_NODEV | _MS_NOSUID, options))
    copy = os.open(_NEW_ROOT + b"/library", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    done = 0
    while done < size:
        sent = os.sendfile(copy, fd, done, size - done)
        if sent == 0:
            break
        done += sent
    os.close(copy)
    os.chroot(_NEW_ROOT)
    os.chdir("/")
    return "/library"


def _drop_privileges(library_bytes: int) -> None:
    if os.geteuid() == 0:
        # In a user namespace of its own only uid 0 is mapped, and these fail; it has no rights outside anyway.
        _ignore_failure(lambda: os.setgroups([]))
        _ignore_failure(lambda: os.setresgid(_NOBODY, _NOBODY, _NOBODY))
        _ignore_failure(lambda: os.setresuid(_NOBODY, _NOBODY, _NOBODY))
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:  # the agent's
        _ignore_failure(lambda: os.setpriority(os.PRIO_PROCESS, 0, 0))
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))  # or /proc/self/fd stays closed to the new user
    for limit, value in (
        (resource.RLIMIT_AS, 4 * library_bytes + _MAX_ADDRESSES_BYTES),
        (resource.RLIMIT_CPU, 5),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, _MAX_DATA_BYTES),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_NOFILE, _MAX_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))


def _ask(library: ctypes.CDLL, entry_points: list[tuple[str, int, int]]) -> list[int | None]:
    function = getattr(library, "cuGetProcAddress_v2", None)
    takes_status = function is not None
    function = function or getattr(library, "cuGetProcAddress", None)
    if function is None:
        raise RefusedError("it exports no cuGetProcAddress (a driver older than CUDA 11.3)")
    base = _load_base(library)
    addresses: list[int | None] = []
    for name, version, flags in entry_points:
        pointer = ctypes.c_void_p()
        arguments = [name.encode(), ctypes.byref(pointer), ctypes.c_int(version), ctypes.c_uint64(flags)]
        status = function(*arguments, ctypes.byref(ctypes.c_int())) if takes_status else function(*arguments)
        if status == _NOT_INITIALIZED:
            raise RefusedError("its cuGetProcAddress wants cuInit first, which is never called here")
        addresses.append(pointer.value - base if status == 0 and pointer.value else None)
    return addresses


def _load_base(library: ctypes.CDLL) -> int:
    link_map = ctypes.POINTER(ctypes.c_uint64)()
    handle = ctypes.c_void_p(library._handle)
    if _libc.dlinfo(handle, _RTLD_DI_LINKMAP, ctypes.byref(link_map)) != 0:
        raise RefusedError("the loader does not say where it put it")
    return int(link_map[0])  # struct link_map begins with l_addr


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - pathlib costs this process 5 ms
        file.write(text)


def _ignore_failure(action: Any) -> None:
    try:
        action()
    except OSError:
        return


if __name__ == "__main__":
    main()
