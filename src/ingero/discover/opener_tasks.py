"""What an opener of the sandbox does: it looks where files lie and opens them, and interprets nothing of them.

It also reads what the kernel says of processes, as far as that takes its rights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ingero.discover.disk_files import DiskFiles
from ingero.discover.mapped_paths import reachable_path
from ingero.discover.mappings import Mapping as MappedRange
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.rooted import RootFiles, open_regular
from ingero.discover.wait_files import WaitFiles
from ingero.discover.waiting import told_of
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Task


def tasks() -> Mapping[str, Task]:
    """By the names that they are asked for by."""
    return {
        "reach": _reach,
        "open": _open,
        "keys": _keys,
        "open_mapped": _open_mapped,
        "read": _read,
        "devices": _devices,
        "launched_with": _launched_with,
        "maps": _maps,
        "stat": _stat,
        "pid_namespace": _pid_namespace,
        "program": _program,
        "positions": _positions,
        "mapped": _mapped_bytes,
        "memory": _memory,
        "root": _root,
        "copies": _copies,
        "waits": _waits,
        "pipes": _pipes,
        "sides": _sides,
        "folder": _folder,
        "shared_memory": _shared_memory,
    }


def range_of(mapped: MappedRange) -> dict[str, int | str | bool]:
    """What `reach` wants to know of a mapping."""
    return {
        "start": mapped.start,
        "end": mapped.end,
        "inode": mapped.inode,
        "path": mapped.path,
        "is_deleted": mapped.is_deleted,
    }


def _reach(question: Message) -> Message:
    """A path to a mapped file, how it was reached, and what lies there."""
    told = question.content["mapped"]
    mapped = MappedRange(
        start=told["start"],
        end=told["end"],
        permissions="",
        offset=0,
        device=0,
        inode=told["inode"],
        path=told["path"],
        is_deleted=told["is_deleted"],
    )
    path, reach = reachable_path(Path(question.content["process"]), mapped)
    return Message({"path": str(path), "reach": reach.value, "key": _key(path.stat())})


def _open(question: Message) -> Message:
    """A regular file, and what it is."""
    file = open_regular(Path(question.content["path"]))
    return Message({"key": _key(os.fstat(file))}, files=[file])


def _open_mapped(question: Message) -> Message:
    """The regular files behind some mappings, and of each of these why it cannot be opened; "" where it is."""
    process = Path(question.content["process"])
    files: list[int] = []
    problems: list[str] = []
    for range_name, path, inode in question.content["mappings"]:
        try:
            files.append(_mapped(process, range_name, path, inode))
            problems.append("")
        except OSError as error:
            problems.append(error.strerror or str(error))
    return Message({"problems": problems}, files=files)


def _mapped(process: Path, range_name: str, path: str, inode: int) -> int:
    """The mapped file; by its path only where its mapping may not be opened (it takes CAP_CHECKPOINT_RESTORE)."""
    try:
        return open_regular(process / "map_files" / range_name)
    except PermissionError:
        file = open_regular(process / "root" / path.lstrip("/"))
        if os.fstat(file).st_ino != inode:
            os.close(file)
            raise
        return file


def _read(question: Message) -> Message:
    """The first bytes of a small file in a process's root, as they are."""
    told = question.content
    return Message({}, RootFiles().read(told["pid"], told["path"], told["most_bytes"]))


def _devices(question: Message) -> Message:
    """Which device node lies at each of some paths in a process's root; null where none does."""
    return Message({"devices": RootFiles().devices(question.content["pid"], question.content["paths"])})


def _launched_with(question: Message) -> Message:
    """The environment of a process and its command line, as they are; null for the size of one that cannot be read."""
    found = MemoryFiles().launched_with(question.content["pid"])
    parts = (found.environ, found.command_line)
    sizes = [None if one is None else len(one) for one in parts]
    return Message({"sizes": sizes}, b"".join(one for one in parts if one))


def _maps(question: Message) -> Message:
    """What a process maps, as the kernel tells it."""
    return Message({}, MemoryFiles().maps(question.content["pid"]))


def _stat(question: Message) -> Message:
    """What the kernel tells of a process in one line."""
    return Message({}, MemoryFiles().stat(question.content["pid"]) or b"")


def _pid_namespace(question: Message) -> Message:
    """The number of the namespace of a process's pids; 0 where that is not to be had."""
    return Message({"number": MemoryFiles().pid_namespace(question.content["pid"])})


def _program(question: Message) -> Message:
    """The path of what a process runs."""
    return Message({"program": MemoryFiles().program(question.content["pid"])})


def _positions(question: Message) -> Message:
    """Where threads of a process are; null of one that is gone."""
    found = MemoryFiles().positions(question.content["pid"], question.content["tids"])
    return Message({"positions": [[one.call, one.switches] if one else None for one in found]})


def _mapped_bytes(question: Message) -> Message:
    """Bytes of a process's memory, as far as they are mapped."""
    told = question.content
    return Message({}, MemoryFiles().mapped(told["pid"], told["address"], told["size"]))


def _memory(question: Message) -> Message:
    """A process's memory, open; who has it may read it without any right."""
    return Message({}, files=[MemoryFiles().memory(question.content["pid"])])


def _root(question: Message) -> Message:
    """Device and inode of a process's root."""
    return Message({"root": DiskFiles().root(question.content["pid"])})


def _copies(question: Message) -> Message:
    """Files that are called like traced libraries, in the usual places and where programs say."""
    told = question.content
    homes = told["homes"]
    found = DiskFiles().copies(
        Path(told["root"]),
        prefixes=list(map(Path, told["prefixes"])),
        environs=told["environs"],
        homes=None if homes is None else list(map(Path, homes)),
        has_well_known=told["has_well_known"],
    )
    return Message({"copies": [[str(one.path), one.inode, one.changed_ns] for one in found]})


def _waits(question: Message) -> Message:
    """What threads of a process wait for; null of one that is gone."""
    found = WaitFiles().waits(question.content["pid"], question.content["tids"])
    return Message({"waits": [told_of(one) if one else None for one in found]})


def _pipes(question: Message) -> Message:
    """The pipes that processes have open."""
    found = WaitFiles().pipes(question.content["pids"], question.content["wanted"])
    return Message({"pipes": found.found, "cpu_s": found.cpu_s})


def _sides(question: Message) -> Message:
    """What descriptors of a process are, and whether they can write."""
    return Message({"sides": WaitFiles().sides(question.content["pid"], question.content["numbers"])})


def _folder(question: Message) -> Message:
    """The folder that a process is in."""
    return Message({"folder": WaitFiles().folder(question.content["pid"])})


def _shared_memory(question: Message) -> Message:
    """Size and free bytes of a process's shared memory; null where it is none."""
    return Message({"bytes": WaitFiles().shared_memory(question.content["pid"])})


def _keys(question: Message) -> Message:
    """What lies at each of some paths; null where nothing does."""
    return Message({"keys": [_key_at(path) for path in question.content["paths"]]})


def _key_at(path: str) -> list[int] | None:
    try:
        return _key(Path(path).stat())
    except OSError:
        return None


def _key(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
