"""Tasks of a sandboxed opener: it finds and opens files, and does not interpret them.

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
from ingero.discover.waiting import wait_content
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Task


def tasks() -> Mapping[str, Task]:
    """The tasks by name."""
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
    """A mapping as content of a `reach` question."""
    return {
        "start": mapped.start,
        "end": mapped.end,
        "inode": mapped.inode,
        "path": mapped.path,
        "is_deleted": mapped.is_deleted,
    }


def _reach(question: Message) -> Message:
    """A path to a mapped file, how it was reached, and its key."""
    content = question.content["mapped"]
    mapped = MappedRange(
        start=content["start"],
        end=content["end"],
        permissions="",
        offset=0,
        device=0,
        inode=content["inode"],
        path=content["path"],
        is_deleted=content["is_deleted"],
    )
    path, reach = reachable_path(Path(question.content["process"]), mapped)
    return Message({"path": str(path), "reach": reach.value, "key": _key(path.stat())})


def _open(question: Message) -> Message:
    """Opens a regular file; also returns its key."""
    file = open_regular(Path(question.content["path"]))
    return Message({"key": _key(os.fstat(file))}, files=[file])


def _open_mapped(question: Message) -> Message:
    """Opens the regular files behind mappings; for each, why it cannot be opened, "" if it is."""
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
    """The first bytes of a small file in a process's root."""
    content = question.content
    return Message({}, RootFiles().read(content["pid"], content["path"], content["most_bytes"]))


def _devices(question: Message) -> Message:
    """The device node at each path in a process's root; null if there is none."""
    return Message({"devices": RootFiles().devices(question.content["pid"], question.content["paths"])})


def _launched_with(question: Message) -> Message:
    """The raw environment and command line of a process; size null for one that cannot be read."""
    found = MemoryFiles().launched_with(question.content["pid"])
    parts = (found.environ, found.command_line)
    sizes = [None if one is None else len(one) for one in parts]
    return Message({"sizes": sizes}, b"".join(one for one in parts if one))


def _maps(question: Message) -> Message:
    """The text of /proc/PID/maps."""
    return Message({}, MemoryFiles().maps(question.content["pid"]))


def _stat(question: Message) -> Message:
    """The text of /proc/PID/stat."""
    return Message({}, MemoryFiles().stat(question.content["pid"]) or b"")


def _pid_namespace(question: Message) -> Message:
    """The inode of a process's pid namespace; 0 if not readable."""
    return Message({"number": MemoryFiles().pid_namespace(question.content["pid"])})


def _program(question: Message) -> Message:
    """The path of a process's program."""
    return Message({"program": MemoryFiles().program(question.content["pid"])})


def _positions(question: Message) -> Message:
    """The positions of threads of a process; null for one that is gone."""
    found = MemoryFiles().positions(question.content["pid"], question.content["tids"])
    return Message({"positions": [[one.call, one.switches] if one else None for one in found]})


def _mapped_bytes(question: Message) -> Message:
    """Bytes of a process's memory, as far as mapped."""
    content = question.content
    return Message({}, MemoryFiles().mapped(content["pid"], content["address"], content["size"]))


def _memory(question: Message) -> Message:
    """Opens a process's memory; its holder may read it without any capability."""
    return Message({}, files=[MemoryFiles().memory(question.content["pid"])])


def _root(question: Message) -> Message:
    """Device and inode of a process's root."""
    return Message({"root": DiskFiles().root(question.content["pid"])})


def _copies(question: Message) -> Message:
    """Files named like traced libraries, in the usual places and where programs point."""
    content = question.content
    homes = content["homes"]
    found = DiskFiles().copies(
        Path(content["root"]),
        prefixes=list(map(Path, content["prefixes"])),
        environs=content["environs"],
        homes=None if homes is None else list(map(Path, homes)),
        has_well_known=content["has_well_known"],
    )
    return Message({"copies": [[str(one.path), one.inode, one.changed_ns] for one in found]})


def _waits(question: Message) -> Message:
    """What threads of a process wait for; null for one that is gone."""
    found = WaitFiles().waits(question.content["pid"], question.content["tids"])
    return Message({"waits": [wait_content(one) if one else None for one in found]})


def _pipes(question: Message) -> Message:
    """The pipes that processes have open."""
    found = WaitFiles().pipes(question.content["pids"], question.content["wanted"])
    return Message({"pipes": found.found, "cpu_s": found.cpu_s})


def _sides(question: Message) -> Message:
    """What descriptors of a process refer to, and whether they are writable."""
    return Message({"sides": WaitFiles().sides(question.content["pid"], question.content["numbers"])})


def _folder(question: Message) -> Message:
    """The current folder of a process."""
    return Message({"folder": WaitFiles().folder(question.content["pid"])})


def _shared_memory(question: Message) -> Message:
    """Size and free bytes of a process's /dev/shm; null if it is not in memory."""
    return Message({"bytes": WaitFiles().shared_memory(question.content["pid"])})


def _keys(question: Message) -> Message:
    """The key of the file at each path; null if there is none."""
    return Message({"keys": [_key_at(path) for path in question.content["paths"]]})


def _key_at(path: str) -> list[int] | None:
    try:
        return _key(Path(path).stat())
    except OSError:
        return None


def _key(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
